package file

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// countedFeed counts what a source tells.
type countedFeed struct {
	upstreams.Feed
	received, repeated, closed int
	result                     records.Result // of what is received
}

func (f *countedFeed) Tell(e intake.Event) (r records.Result) {
	switch e.(type) {
	case intake.Received:
		f.received++
		return f.result
	case intake.Repeated:
		f.repeated++
	case intake.Closed:
		f.closed++
	}
	return r
}

// A source reads its files once a minute. What has not changed costs no more than that, unless the feed asks for it, did
// not take all of it, or was told since that there is no contact.
func TestUnchangedFilesAreNotToldAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, serviceEntry("a", "a.x"), dir, "a.yaml")
	s := New(config.Upstream{Name: "east", Source: &Config{Path: dir}}, upstreams.Env{Log: slog.New(slog.DiscardHandler)})
	s.scanner.now = func() time.Time { return time.Now().Add(time.Hour) } // all files rest
	feed := &countedFeed{}
	reads := func(what string, blind error, received, repeated int) {
		t.Helper()
		before := *feed
		for range 3 {
			if err := s.read(feed, blind); err != nil {
				t.Fatal(err)
			}
		}
		if n, m := feed.received-before.received, feed.repeated-before.repeated; n != received || m != repeated {
			t.Errorf("%s: three readings tell %d times, and %d repetitions, want %d and %d", what, n, m, received, repeated)
		}
	}
	reads("the first", nil, 1, 0)
	reads("unchanged", nil, 0, 0)
	reads("not watched any more", errors.New("too many files"), 1, 0)
	reads("watched again", nil, 1, 0)
	s.Repeat()
	reads("asked for", nil, 1, 1)
	write(t, serviceEntry("b", "b.x"), dir, "b.yaml")
	reads("a new file", nil, 1, 0)
	write(t, serviceEntry("b", "b.y"), dir, "b.yaml")
	feed.result = records.Result{Refused: []records.Refusal{{Resource: "b", Reason: "bad"}}, RefusedTotal: 1}
	reads("refused", nil, 3, 0)
	feed.result = records.Result{}
	reads("taken", nil, 1, 0)
	must(t, os.Remove(filepath.Join(dir, "b.yaml")))
	reads("a file less", nil, 1, 0)
	write(t, "a: [", dir, "c.yaml")
	reads("a broken file", nil, 3, 0)
	must(t, os.Remove(filepath.Join(dir, "c.yaml")))
	reads("repaired", nil, 1, 0)
	must(t, os.Rename(dir, dir+".away"))
	if err := s.Read(feed); err == nil || feed.closed != 1 {
		t.Errorf("a directory that is gone: %v, told %d times", err, feed.closed)
	}
	must(t, os.Rename(dir+".away", dir))
	reads("it is back", nil, 1, 0)
}

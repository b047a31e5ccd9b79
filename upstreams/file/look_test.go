package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"

	"meshrelay/internal/panics"
)

// manyFiles writes files with mistakes and resources of one name here and there, 10 documents each.
func manyFiles(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range n {
		var docs []string
		for k := range 10 {
			name := fmt.Sprintf("se-%d-%d", i, k)
			if k == 7 && i%5 == 0 {
				name = "everywhere"
			}
			docs = append(docs, serviceEntry(name, name+".example"))
		}
		if i%7 == 0 {
			docs[3] = strings.Replace(docs[3], "hosts", "hostz", 1)
		}
		write(t, strings.Join(docs, "---\n"), dir, fmt.Sprintf("%03d.yaml", i))
	}
	return dir
}

func TestFilesReadAtTheSameTimeGiveTheSame(t *testing.T) {
	dir := manyFiles(t, 40)
	type result struct {
		Versions map[string]string
		Problems []string
		Total    int
	}
	read := func(helpers int64) (r result) {
		s := newScanner("east")
		s.helpers = semaphore.NewWeighted(helpers)
		must(t, s.scan(dir))
		merged, problems, total := s.merge()
		r = result{Versions: map[string]string{}, Total: total}
		for key, one := range merged {
			r.Versions[key.String()] = one.Version()
		}
		for _, p := range problems {
			r.Problems = append(r.Problems, p.Resource+" "+p.Reason)
		}
		return r
	}
	alone := read(0)
	if len(alone.Versions) != 387 || alone.Total != 13 { // 6 mistakes, and 7 times the same name again
		t.Errorf("%d resources and %d problems: %q", len(alone.Versions), alone.Total, alone.Problems)
	}
	for range 5 {
		if d := cmp.Diff(alone, read(7)); d != "" {
			t.Fatalf("-one goroutine +eight:\n%s", d)
		}
	}
}

func TestPanicOfAHelperIsThatOfTheScan(t *testing.T) {
	dir := manyFiles(t, 10)
	s := newScanner("east")
	s.helpers = semaphore.NewWeighted(3)
	s.read = func(*listing, string) ([]byte, time.Time, error) { panic("reading") }
	defer func() {
		p, _ := recover().(*panics.Panic)
		if p == nil || p.Value != "reading" || !strings.Contains(p.Stack, "readFile") {
			t.Errorf("recovered %v", p)
		}
		if !s.helpers.TryAcquire(3) {
			t.Error("a helper goes on")
		}
	}()
	t.Error(s.scan(dir))
}

func TestLookLeavesTheRestOutWhenItsTimeIsUp(t *testing.T) {
	dir := manyFiles(t, 10)
	for reads, want := range map[int]string{0: "0 in 0 of 10, about 0, mistakes []", 2: "9 in 1 of 10, about 89, mistakes [000.yaml:34]", 20: "97 in 10 of 10, about 97, mistakes [000.yaml:34 005.yaml:64 007.yaml:34]"} {
		s := newScanner("east")
		s.helpers = semaphore.NewWeighted(0)
		ended := make(chan struct{})
		s.ended = ended
		if reads == 0 {
			close(ended)
		}
		s.read = func(found *listing, path string) ([]byte, time.Time, error) {
			if reads--; reads == 0 {
				close(ended)
			}
			return readBounded(found, path)
		}
		c := s.look(dir, "east")
		at := []string{}
		for _, err := range c.Problems {
			where, _, _ := strings.Cut(err.Error(), " ")
			at = append(at, strings.TrimPrefix(where, dir+string(os.PathSeparator)))
		}
		if got := fmt.Sprintf("%d in %d of %d, about %d, mistakes %v", c.Resources, c.Files, c.All, c.About, at); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
	if c := newScanner("east").look(filepath.Join(dir, "none"), "east"); len(c.Problems) != 1 {
		t.Errorf("problems %v", c.Problems)
	}
}

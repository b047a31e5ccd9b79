package upstreams_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams"
)

// A hold whose clock is over, against real servers of both protocols: what was deleted goes
// when the server has repeated that, and what it has again by then stays.
func TestAServerIsAskedToRepeatBeforeHeldDeletionsGo_C4_C14(t *testing.T) {
	for _, protocol := range []string{"sotw", "delta"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := startServer(t, xdsEntry("ns/a", "a.example").WithVersion("1"), xdsEntry("ns/b", "b.example").WithVersion("1"), xdsEntry("ns/c", "c.example").WithVersion("1"))
				u := xdsUpstream("east", server)
				sectionOf(u).Protocol = protocol
				u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(time.Minute)}
				r := runManager(t, nil, u)
				r.await("the upstream has synced", func() bool { return r.m.Status()[0].State == upstreams.StateSynced })
				server.Set(xdsEntryURL)
				server.Push(xdsEntryURL)
				r.await("the deletions are held", func() bool { return r.m.Status()[0].Held != nil })
				// Nobody is told of this but who asks.
				server.Set(xdsEntryURL, xdsEntry("ns/b", "b.example").WithVersion("1"))
				await.Pass(time.Minute)
				server.Await("a request to repeat it", func(q fakexds.Request) bool {
					return q.TypeURL == xdsEntryURL && q.Nonce == "" && q.Held == nil && q.Stream == 1 && (q.Names != nil) == (protocol == "delta") && q.Node == nil
				})
				r.awaitServed("ns/b=b.example@east")
				if st := r.m.Status()[0]; st.Held != nil {
					t.Errorf("held: %+v", st.Held)
				}
			})
		})
	}
}

// The same with files, which are read once more.
func TestFilesAreReadOnceMoreBeforeHeldDeletionsGo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		writeFile(t, filepath.Join(dir, name+".yaml"), serviceEntry(name, name+".example"))
	}
	u := fileUpstream("local", dir)
	u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(100 * time.Millisecond)}
	r := runManager(t, nil, u)
	r.await("the files are served", func() bool { return r.m.Status()[0].State == upstreams.StateSynced })
	for _, name := range []string{"a", "b", "c"} {
		if err := os.Remove(filepath.Join(dir, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	r.await("they have gone at the end of a hold", func() bool {
		ended := r.journal.Read(events.Query{Filter: events.Filter{Types: []events.Type{events.CarriedOut}}}).Events
		return len(ended) > 0 && r.m.Status()[0].Held == nil && r.served() == ""
	})
}

package upstreams_test

import (
	"testing"
	"testing/synctest"

	"meshrelay/config"
	"meshrelay/upstreams"
)

// Other rules for an upstream need a new stream, and are no release.
func TestAHoldOutlivesAReloadThatChangesItsUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := startServer(t, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example"), xdsEntry("ns/c", "c.example"))
		u := xdsUpstream("east", server)
		u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold}
		r := runManager(t, nil, u)
		r.awaitServed("ns/a=a.example@east ns/b=b.example@east ns/c=c.example@east")
		server.Set(xdsEntryURL)
		server.Push(xdsEntryURL)
		r.await("the deletions are held", func() bool { return r.m.Status()[0].Held != nil })
		before := *r.m.Status()[0].Held

		u.Rewrite.Labels.Set = map[string]string{"n": "1"}
		r.mustApply(u)
		r.await("the upstream has synced under the new rules", func() bool {
			return r.m.Status()[0].State == upstreams.StateSynced && r.m.Status()[0].Protocol != ""
		})
		st := r.m.Status()[0]
		if st.Held == nil || st.Held.ID != before.ID || !st.Held.Since.Equal(before.Since) {
			t.Fatalf("held is %+v, was %+v", st.Held, before)
		}
		server.Set(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example"), xdsEntry("ns/c", "c.example"))
		server.Push(xdsEntryURL)
		r.await("nothing is held any more", func() bool { return r.m.Status()[0].Held == nil })
		r.awaitServed("ns/a=a.example@east ns/b=b.example@east ns/c=c.example@east")
	})
}

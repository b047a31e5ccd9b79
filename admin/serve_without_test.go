package admin

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshrelay/upstreams"
)

func TestWhatIsNotKnownOfAnUpstreamIsToldWithWhatToDo(t *testing.T) {
	source := func(f *upstreams.FirstSync) upstreams.Status {
		return upstreams.Status{Name: "west", State: upstreams.StateConnecting, Address: "west:1", LastError: "west:1: refused", FirstSync: f}
	}
	const goOn = `; to serve them without it: "relay serve-without west"`
	for _, tc := range []struct {
		name     string
		released bool
		first    upstreams.FirstSync
		want     string
	}{
		{"for ever", false, upstreams.FirstSync{Awaited: true, Reason: "why"}, "clients are held until it has synced: why" + goOn},
		{"for a while", false, upstreams.FirstSync{Awaited: true, Until: created, Reason: "why"}, "clients are held until it has synced, or until 2024-02-03T04:05:06Z: why" + goOn},
		{"not at all", false, upstreams.FirstSync{Reason: "why"}, "clients do not wait for it: why"},
		{"no more", true, upstreams.FirstSync{Reason: "why"}, "clients are served without it: why"},
	} {
		r := Assess(tc.released, []upstreams.Status{source(&tc.first)})
		want := []string{"upstream west: connecting (west:1): refused; " + tc.want}
		if r.Ready != tc.released || !slices.Equal(r.Reasons, want) {
			t.Errorf("%s: %v %q, want %q", tc.name, r.Ready, r.Reasons, want)
		}
	}
}

// TestServeWithoutTellsWhoIsWaitedForStill, and does not change /healthz.
func TestServeWithoutTellsWhoIsWaitedForStill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "admin.sock")
	f, c, _ := controlled(t, Config{Socket: path})
	waits := func(name string, awaited bool) upstreams.Status {
		return upstreams.Status{Name: name, State: upstreams.StateConnecting, FirstSync: &upstreams.FirstSync{Awaited: awaited, Reason: "why"}}
	}
	f.sources = []upstreams.Status{waits("east", true), waits("west", true)}
	c.set = func(string) { f.sources[0] = waits("east", false) }
	if code, body, _ := f.do(t, request{path: "/healthz"}); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	address, stop := f.running(t)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	if v, err := (Client{Address: address}).Version(t.Context()); err != nil || v.AdminSocket != path {
		t.Fatalf("%+v %v", v, err)
	}
	w, err := Client{Socket: path}.ServeWithout(t.Context(), "east")
	if err != nil || !slices.Equal(w.For, []string{"west"}) || !w.KeepsState {
		t.Errorf("%+v, %v", w, err)
	}
	if !slices.Contains(c.told, "serve-without east") || !strings.Contains(f.logged.String(), "action=serve-without") {
		t.Errorf("told %q, logged %s", c.told, f.logged)
	}
}

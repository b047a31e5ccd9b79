package upstreams

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

// A hold whose clock is over, against real servers of both protocols: what was deleted goes
// when the server has repeated that, and what it has again by then stays.
func TestAServerIsAskedToRepeatBeforeHeldDeletionsGo_C4_C14(t *testing.T) {
	for _, protocol := range []string{config.ProtocolSotW, config.ProtocolDelta} {
		t.Run(protocol, func(t *testing.T) {
			server := startServer(t, xdsEntry("ns/a", "a.example").WithVersion("1"), xdsEntry("ns/b", "b.example").WithVersion("1"), xdsEntry("ns/c", "c.example").WithVersion("1"))
			u := xdsUpstream("east", server)
			u.XDS.Protocol = protocol
			u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(300 * time.Millisecond)}
			r := runManager(t, nil, u)
			r.await("the upstream has synced", func() bool { return r.m.Status()[0].State == StateSynced })
			server.Set(xdsEntryURL)
			server.Push(xdsEntryURL)
			r.await("the deletions are held", func() bool { return r.m.Status()[0].Held != nil })
			// Nobody is told of this but who asks.
			server.Set(xdsEntryURL, xdsEntry("ns/b", "b.example").WithVersion("1"))
			server.Await("a request to repeat it", func(q fakexds.Request) bool {
				return q.TypeURL == xdsEntryURL && q.Nonce == "" && q.Held == nil && q.Stream == 1 && (q.Names != nil) == (protocol == config.ProtocolDelta) && q.Node == nil
			})
			r.awaitServed("ns/b=b.example@east")
			if st := r.m.Status()[0]; st.Held != nil {
				t.Errorf("held: %+v", st.Held)
			}
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
	u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(500 * time.Millisecond)}
	r := runManager(t, nil, u)
	r.await("the files are served", func() bool { return r.m.Status()[0].State == StateSynced })
	file := r.m.members[0].source.(*File)
	for _, name := range []string{"a", "b", "c"} {
		if err := os.Remove(filepath.Join(dir, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	r.await("the deletions are held", func() bool { return r.m.Status()[0].Held != nil })
	r.await("they go", func() bool { return r.m.Status()[0].Held == nil })
	r.awaitServed("")
	if file.isAsked() {
		t.Error("the files are still to be read once more")
	}
}

var scopeKeys = []mirror.Key{
	{Kind: serviceEntryKind, Namespace: "shop", Name: "a"},
	{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "shop", Name: "a"},
	{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "team", Name: "a"},
}

func TestScopesPickByKindAndNamespace(t *testing.T) {
	for text, want := range map[string][]string{
		"virtualservice/shop":                   {"VirtualService shop/a"},
		"vs/*":                                  {"VirtualService shop/a", "VirtualService team/a"},
		"*/shop":                                {"ServiceEntry shop/a", "VirtualService shop/a"},
		"networking.istio.io/ServiceEntry/shop": {"ServiceEntry shop/a"},
		"se/nowhere":                            nil,
	} {
		scope, err := ParseScope(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, key := range scopeKeys {
			if (Order{Only: []Scope{scope}}).picks(key) {
				got = append(got, key.Kind.Kind+" "+key.FullName())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s picks %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"", "vs", "nothing/shop"} {
		if _, err := ParseScope(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

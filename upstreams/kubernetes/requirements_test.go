package kubernetes

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// Every well-known kind is mirrored in every version that this build knows, whichever a server has.
func TestEveryWellKnownKindIsMirrored_K1(t *testing.T) {
	for name, version := range map[string]func(all []string) string{
		"the newest version": func(all []string) string { return all[0] },
		"the oldest version": func(all []string) string { return all[len(all)-1] },
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			var want []string
			for _, info := range mirror.Kinds() {
				if info.Kind == mirror.MeshConfig {
					continue
				}
				one := info.Kind.Kind + " shop/a"
				o := fakekube.Object("shop", "a", `{}`)
				if info.ClusterScoped {
					one = info.Kind.Kind + " /a" // it is in no namespace
					delete(o["metadata"].(map[string]any), "namespace")
				}
				s.Define(info.Kind.Group, info.Kind.Kind, info.Plural, version(info.Versions))
				s.Put(info.Kind.Group+"/"+info.Plural, o)
				want = append(want, one)
			}
			if len(want) < 27 {
				t.Fatalf("%d kinds", len(want))
			}
			w := s.mirrors("", "")
			w.synced()
			w.serves(append(want, "TrafficExtension shop/a"+federation.Translated)...)
		})
	}
}

// A kind that is served and may be read holds the sync up until all of it was listed, and nothing else
// does: most kinds have no definition here.
func TestAKindThatIsServedHoldsTheSyncUpUntilItIsListed_K2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1")
		s.entry("shop/a", "a.x")
		s.Put("networking.istio.io/virtualservices", fakekube.Object("shop", "r", `{"hosts":["a"]}`))
		s.Set(func() { s.Fault = failing("/virtualservices", 503, "ServiceUnavailable") })
		w := s.mirrors("", "")
		w.serves("ServiceEntry shop/a")
		w.until("it is asked for again and again", func() bool { return s.Asked("virtualservices") > 5 })
		if w.status().Synced || w.status().State == upstreams.StateSynced {
			t.Errorf("it has synced without a kind: %+v", w.status())
		}
		s.Set(func() { s.Fault = nil })
		w.serves("ServiceEntry shop/a", "VirtualService shop/r")
		w.synced()
		if !w.status().Synced {
			t.Error("it has not synced")
		}
	})
}

// What a cluster has beyond the spec, and what the rules leave out, takes no memory; and what is mirrored
// is there once. The heap of the test has the server's own objects before it is measured.
func TestMemoryFollowsWhatIsMirrored_K7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const objects, spec, noise = 3000, 1200, 4000
		s := newAPIServer(t)
		for i := range objects {
			namespace := []string{"shop", "left", "out"}[i%3]
			s.entry(fmt.Sprintf("%s/a%04d", namespace, i), strings.Repeat("h", spec-8)+fmt.Sprintf("%04d.x", i),
				fmt.Sprintf(`{"metadata":{"managedFields":[{"manager":%q}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":%q}},"status":{"noise":%q}}`,
					strings.Repeat("m", noise/2), strings.Repeat("l", noise/4), strings.Repeat("s", noise/4)))
		}
		s.Set(func() { s.Events = nil })
		heap := func() int {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc)
		}
		before := heap()
		w := s.mirrors("", "  import: {namespaces: {include: [shop]}}\n")
		w.synced()
		w.until("all of the namespace is served", func() bool { return len(w.has()) == objects/3 })
		await.Settle(time.Second) // the list is over
		// Once each: the spec, and what is kept of a resource beside its bytes.
		const most = objects / 3 * (spec + 2100)
		grown := heap() - before
		if grown > most {
			t.Errorf("the heap has grown by %d bytes for %d of %d objects, more than %d", grown, objects/3, objects, most)
		}
		t.Logf("%d bytes, bound %d", grown, most)
		runtime.KeepAlive(s)
	})
}

// An upstream whose server is down delays nobody but itself.
func TestAServerThatIsDownDelaysOnlyItsOwnUpstream_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, up := newAPIServer(t), newAPIServer(t)
		down.UID = "two"
		down.Set(func() { down.Fault = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) } })
		down.entry("shop/down", "a.x")
		up.entry("shop/up", "b.x")
		w := &world{apiServer: up, t: t, aggregate: mirror.NewAggregate()}
		cfg, err := config.Parse("relay.yaml", fmt.Appendf(nil, `upstreams:
- {name: down, kubernetes: {cluster: {kubeconfig: %q}}}
- {name: up, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`, down.kubeconfig("t"), up.kubeconfig("t")), &Config{})
		if err != nil {
			t.Fatal(err)
		}
		kind := Kind()
		kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
			return newSource(u, env), nil
		}
		if w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, nil, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		w.run(w.manager.Run, w.aggregate.Run)
		w.serves("ServiceEntry shop/up")
		w.until("the other one has synced", func() bool { return w.manager.Status()[1].State == upstreams.StateSynced })
		w.until("the first one tells why it has not", func() bool { st := w.manager.Status()[0]; return !st.Synced && st.LastError != "" })
		up.entry("shop/up2", "b.x")
		w.serves("ServiceEntry shop/up", "ServiceEntry shop/up2")
		down.Set(func() { down.Fault = nil })
		w.serves("ServiceEntry shop/down", "ServiceEntry shop/up", "ServiceEntry shop/up2")
	})
}

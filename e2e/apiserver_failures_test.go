package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatAnAPIServerLosesStays_K4 has an API server lose its token, its etcd and at last all of its
// data, each with the real processes. Nothing disappears, and the relay tells what is wrong.
func TestWhatAnAPIServerLosesStays_K4(t *testing.T) {
	t.Parallel()
	k := newKubernetesWith(t, "east", "RBAC")
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	k.createNamespace("shop")
	for i := range 12 {
		k.entry(fmt.Sprintf("shop/entry-%02d", i), "shop.example")
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	k.readerKubeconfig(kubeconfig)
	r := relayOf(t, "reader", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, kubeconfig)).start().ready()
	follower := dial(t, r.xds).follow("networking.istio.io/v1/ServiceEntry", nil)
	has := func(what string, want int, text string) {
		t.Helper()
		eventually(t, what, func() error {
			if all := r.configs(); len(all) != want || !strings.Contains(fmt.Sprint(all), text) {
				return fmt.Errorf("%d resources, want %d with %q", len(all), want, text)
			}
			return nil
		})
	}
	tells := func(texts ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the relay tells %q", texts), func() error {
			out, _ := r.command("status")
			more, _ := r.command("upstreams", "east")
			for _, text := range texts {
				if !strings.Contains(out+more, text) {
					return fmt.Errorf("it tells\n%s%s", out, more)
				}
			}
			return nil
		})
		if n := follower.size(); n < 12 {
			t.Errorf("a client has %d resources", n)
		}
		if events := follower.events(); strings.Contains(events, "-shop/") {
			t.Errorf("a client was told that something is gone: %s", events)
		}
	}
	has("everything is mirrored", 12, "entry-11")

	// The identity is gone, as a token that has expired. Streams go on; a server that starts asks anew.
	if err := k.do(http.MethodDelete, "/api/v1/namespaces/istio-system/serviceaccounts/relay-reader", "", nil); err != nil {
		t.Fatal(err)
	}
	k.server.kill()
	k.serve()
	tells("denied", "does not accept the relay's identity")
	k.entry("shop/late", "late.example")
	k.readerKubeconfig(kubeconfig) // with a new token
	has("a new token is used without a restart", 13, "late.example")

	// The etcd is gone, and the API server answers with errors.
	k.etcd.kill()
	k.server.kill()
	tells("disconnected")

	// It comes back with nothing, as if the cluster had been made anew: it is another one.
	k.empty()
	k.serve()
	k.define("networking.istio.io", "ServiceEntry", "serviceentries", "v1")
	k.createNamespace("shop")
	k.entry("shop/new", "new.example")
	k.readerKubeconfig(kubeconfig)
	tells("failed", "another cluster")
	has("everything that was mirrored is served", 13, "entry-11")
	if all := fmt.Sprint(r.configs()); strings.Contains(all, "new.example") {
		t.Error("the other cluster is mirrored as if it were the same")
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
)

// newest makes an istiod, which has not started, the one of the module newest. It does not start without the API of a
// cluster, and gives what it has only to an authenticated control plane, unless it is told otherwise.
func (i *istiod) newest() *istiod {
	i.t.Helper()
	i.program = binary(i.t, "NEWEST_ISTIOD_BIN", "bin/newest/pilot-discovery")
	if !slices.Contains(i.args, "--kubeconfig") {
		i.args = append(i.args, "--registries=Kubernetes", "--kubeconfig", emptyCluster(i.t).kubeconfig)
	}
	i.env = append(i.env, "ENABLE_XDS_API_GENERATOR_AUTH=false", "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS=false")
	return i
}

// allNewest reports whether all istiods of a run are the newest.
func allNewest() bool { return os.Getenv("ISTIODS") == "newest" }

var emptyClusters sync.Map // *testing.T to *kubernetes

// emptyCluster returns the API of a cluster with the kinds of Istio and nothing else, one for each test.
func emptyCluster(t *testing.T) *kubernetes {
	t.Helper()
	if k, is := emptyClusters.Load(t); is {
		return k.(*kubernetes)
	}
	k := newKubernetes(t, "empty")
	k.apply("{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	k.defineKinds("newest")
	emptyClusters.Store(t, k)
	t.Cleanup(func() { emptyClusters.Delete(t) })
	return k
}

// translated ends the names of TrafficExtensions that are made of WasmPlugins.
const translated = "~istio-translated-wasmplugin"

// kindsOver returns the kinds that an istiod asks for over MCP.
func kindsOver(newest bool) []string {
	if !newest {
		return kindsOf1_23
	}
	return append(slices.Clone(kindsOf1_23), "TrafficExtension")
}

// of returns the configs of some kinds.
func (c configs) of(kinds []string) configs {
	out := configs{}
	for key, config := range c {
		name, _, _ := strings.Cut(key, " ")
		if _, kind, _ := strings.Cut(name, "/"); slices.Contains(kinds, kind) {
			out[key] = config
		}
	}
	return out
}

// TestIstiodsOldAndNewest: the newest istiod is fed by the oldest over a relay, and feeds it.
func TestIstiodsOldAndNewest(t *testing.T) {
	for name, newest := range map[string]struct{ upstream, client bool }{
		"the client is the newest":   {client: true},
		"the upstream is the newest": {upstream: true},
		"both are":                   {upstream: true, client: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			east := newIstiod(t, "east")
			if newest.upstream {
				east.newest()
			}
			copySamples(t, "east", east.configDir)
			east.start().ready()
			r := newRelay(t, "hub", []string{"east=" + east.grpc}).start().ready()
			third := newIstiod(t, "third", r.xds)
			if newest.client {
				third.newest()
			}
			third.start().ready()
			same := func(what string) {
				t.Helper()
				eventually(t, what, func() error { return differs(third.configs(), r.configs().of(kindsOver(newest.client))) })
			}
			same("the client has what the relay has")
			if body, err := httpGet("http://" + third.http + "/debug/configz"); err != nil || strings.Contains(string(body), translated) != newest.client {
				t.Errorf("TrafficExtensions of WasmPlugins in the client: want %t (%v)", newest.client, err)
			}
			east.write(t, "new", "new.example")
			eventually(t, "an addition arrives", func() error {
				if c := third.configs()["networking.istio.io/ServiceEntry shop/new"]; !strings.Contains(c, "new.example") {
					return fmt.Errorf("it is %q", c)
				}
				return nil
			})
			east.remove(t, "new")
			eventually(t, "a deletion arrives", func() error {
				if c, is := third.configs()["networking.istio.io/ServiceEntry shop/new"]; is {
					return fmt.Errorf("it is %q", c)
				}
				return nil
			})
			same("the client has what the relay has at the end")
		})
	}
}

// TestTheNewestIstiodAnswersAnIdentityOfItsRootNamespaceOnly: with a token of the service account istiod, on the secure port.
func TestTheNewestIstiodAnswersAnIdentityOfItsRootNamespaceOnly(t *testing.T) {
	t.Parallel()
	east, secure, k := newIstiod(t, "east").newest(), freePort(t), emptyCluster(t)
	east.args = append(east.args, "--secureGRPCAddr", secure)
	east.env = append(east.env, "ENABLE_XDS_API_GENERATOR_AUTH=true", "ENABLE_CA_SERVER=true")
	east.write(t, "a", "a.example")
	east.start().ready()

	dir := t.TempDir()
	root, account := filepath.Join(dir, "root.pem"), "/api/v1/namespaces/istio-system/serviceaccounts/istiod"
	eventually(t, "the root is in its ConfigMap", func() error {
		answer, err := k.ask(http.MethodGet, "/api/v1/namespaces/istio-system/configmaps/istio-ca-root-cert", "", nil)
		var m struct{ Data map[string]string }
		if err == nil {
			err = json.Unmarshal(answer, &m)
		}
		if err == nil {
			writeFile(t, root, m.Data["root-cert.pem"])
		}
		return err
	})
	k.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: istio-system, name: istiod}}")
	answer, err := k.ask(http.MethodPost, account+"/token", "application/json", []byte(`{"spec": {"audiences": ["istio-ca"], "expirationSeconds": 3600}}`))
	var token struct{ Status struct{ Token string } }
	if err == nil {
		err = json.Unmarshal(answer, &token)
	}
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "token"), token.Status.Token)
	upstream := "upstreams:\n- name: east\n  xds: {addresses: [%q], tls: {caFile: " + root + ", serverName: istiod.istio-system.svc}%s}\n"
	r := newRelayOf(t, "hub", fmt.Sprintf(upstream, secure, ", tokenFile: "+filepath.Join(dir, "token"))).start().ready()
	eventually(t, "what the istiod has is served", func() error {
		if c := r.configs()["networking.istio.io/ServiceEntry shop/a"]; !strings.Contains(c, "a.example") {
			return fmt.Errorf("it is %q", c)
		}
		return nil
	})
	without := newRelayOf(t, "without", fmt.Sprintf(upstream, secure, "")).start()
	eventually(t, "without a token the relay is told that it may not", func() error {
		if out, _ := without.command("status"); !strings.Contains(out, " denied ") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// TestAllocatedAddressesReachOtherClusters: two TCP services of one port have a listener each, at home and behind a relay, where
// proxies capture DNS. Behind the relay they have them without, too, and those of the other family (docs/services.md).
func TestAllocatedAddressesReachOtherClusters(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "east")
	k.defineKinds("newest")
	k.createNamespace("istio-system")
	k.createNamespace("shop")
	for n, name := range []string{"orders", "stock"} {
		k.apply(fmt.Sprintf(`{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: shop, name: %s}, spec: {
  hosts: [%s.example], ports: [{number: 3306, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.9.0.%d}]}}`, name, name, n+1))
	}
	home := newNativeIstiod(t, k).newest().start().ready()
	r := newRelayOf(t, "hub", fmt.Sprintf("upstreams:\n- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}\n", k.kubeconfig)).start().ready()
	far := newIstiod(t, "far", r.xds).newest().start().ready()

	listeners := func(i *istiod, capturesDNS bool) (map[string]proto.Message, error) {
		all, err := dial(t, i.grpc).fetch(proxy{capturesDNS: capturesDNS})
		of := maps.Clone(all[ldsType])
		maps.DeleteFunc(of, func(name string, _ proto.Message) bool {
			return !strings.HasSuffix(name, "_3306") || strings.HasPrefix(name, "2001:")
		})
		return of, err
	}
	eventually(t, "both istiods have the same listeners", func() error {
		want, err := listeners(home, true)
		for _, capturesDNS := range []bool{true, false} {
			var have map[string]proto.Message
			if err == nil {
				have, err = listeners(far, capturesDNS)
			}
			if err != nil {
				return err
			}
			if all := compare("a client", envoyConfig{ldsType: want}, envoyConfig{ldsType: have}); len(want) < 2 || len(all) > 0 {
				return fmt.Errorf("DNS is captured: %t: at home %v, and these differ: %v", capturesDNS, slices.Sorted(maps.Keys(want)), all)
			}
		}
		return nil
	})
}

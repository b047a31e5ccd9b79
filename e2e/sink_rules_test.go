package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gatewaySchema defines Gateways whose listeners have a name as their key, as the Gateway API does.
const gatewaySchema = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.gateway.networking.k8s.io, annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api"}}
spec:
  group: gateway.networking.k8s.io
  names: {kind: Gateway, listKind: GatewayList, plural: gateways, singular: gateway}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              gatewayClassName: {type: string}
              listeners:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, port: {type: integer}, protocol: {type: string}, hostname: {type: string}}
`

// site is a relay with a file source and a sink for an API server.
type site struct {
	*relay
	t    *testing.T
	k    *kubernetes
	dir  string // of the source
	sink string
}

// newSite starts one, with more settings of the sink.
func newSite(t *testing.T, k *kubernetes, sink, settings string, files map[string]string) *site {
	t.Helper()
	s := &site{t: t, k: k, dir: t.TempDir(), sink: sink}
	for name, text := range files {
		s.write(name, text)
	}
	s.relay = s.another("relay", settings)
	return s
}

// another starts a relay with the same source and the same sink. Its mode is apply, unless settings has another one.
func (s *site) another(name, settings string) *relay {
	s.t.Helper()
	if !strings.Contains(settings, "mode:") {
		settings += ", mode: apply"
	}
	return relayOf(s.t, name, fmt.Sprintf(`upstreams: [{name: primary, file: {path: %q}, guard: {percent: 100}}]
provenance: {relay: site}
state: {dir: DIR/state}
views: [{name: all, default: true}]
sinks: [{name: %s, view: all, prune: true, writesPerSecond: 1000, cluster: {kubeconfig: %q}%s}]
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, s.dir, s.sink, s.k.kubeconfig, settings)).start().ready()
}

func (s *site) write(name, text string) {
	s.t.Helper()
	writeFile(s.t, filepath.Join(s.dir, name+".yaml"), text)
}

func (s *site) remove(name string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.dir, name+".yaml")); err != nil {
		s.t.Fatal(err)
	}
}

// is waits until the sink is so.
func (s *site) is(what string, is func(st sinkStatus) bool) {
	s.t.Helper()
	sinkIs(s.t, s.relay, s.sink, what, is)
}

// written waits until the site has n objects as desired.
func (s *site) written(n int) {
	s.t.Helper()
	s.is(fmt.Sprintf("%d objects are written", n), func(st sinkStatus) bool {
		return st.State == "writing" && st.Objects == n && len(st.Todo)+len(st.TroublesByState) == 0
	})
}

// get returns an object of the namespace shop as JSON, empty for none.
func (s *site) get(apiVersion, kind, name string) string {
	out, err := s.k.ask(http.MethodGet, objectPath(apiVersion, kind, "shop", name), "", nil)
	if err != nil {
		return ""
	}
	return string(out)
}

// prints waits until a command of a relay exits with a code and prints a text.
func prints(t *testing.T, r *relay, code int, text string, args ...string) {
	t.Helper()
	eventually(t, "relay "+strings.Join(args, " ")+" prints "+text, func() error {
		if out, exit := r.command(args...); exit != code || !strings.Contains(out, text) {
			return fmt.Errorf("it exits with %d: %s", exit, out)
		}
		return nil
	})
}

const istioV1 = "networking.istio.io/v1"

// TestRulesOfSinksOnARealCluster: each subtest has a sink of its own, and all write into one cluster with the newest definitions.
func TestRulesOfSinksOnARealCluster(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "site")
	k.defineKinds("newest")
	k.apply(gatewaySchema)
	eventually(t, "Gateways are served", func() error { return k.do(http.MethodGet, "/apis/gateway.networking.k8s.io/v1/gateways", "", nil) })
	k.createNamespace("istio-system")
	k.createNamespace("shop")

	t.Run("integers of 64 bits are numbers", func(t *testing.T) {
		// internal/kube has a test that no other kind of objects has such fields, and that each of them is written so.
		const ring, maglev, old = "ringHash: {minimumRingSize: 1024}", "maglev: {tableSize: 65537}", "minimumRingSize: 2048"
		files := map[string]string{}
		for i, hash := range []string{ring, maglev, old} {
			policy := "loadBalancer: {consistentHash: {useSourceIp: true, " + hash + "}}"
			ports := "portLevelSettings: [{port: {number: 80}, " + policy + "}]"
			files[fmt.Sprintf("n%d", i)] = fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: n%d}\nspec: {host: n%[1]d.example, trafficPolicy: {%s, %s}, subsets: [{name: one, labels: {a: b}, trafficPolicy: {%[2]s, %[3]s}}]}\n", i, policy, ports)
		}
		s := newSite(t, k, "numbers", "", files)
		s.written(3)
		for i, number := range []string{`"minimumRingSize":1024`, `"tableSize":65537`, `"minimumRingSize":2048`} {
			if o := s.get(istioV1, "DestinationRule", fmt.Sprintf("n%d", i)); strings.Count(o, number+"}") != 4 && strings.Count(o, number+",") != 4 {
				t.Errorf("%s", o)
			}
		}
		out, err := relayCommand(t, "get", "destinationrules", "-A", "-o", "yaml", "--server", s.xds)
		if err != nil {
			t.Fatal(err)
		}
		if applied, err := k.kubectl(out, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"); err != nil || strings.Count(applied, "serverside-applied") != 3 {
			t.Errorf("what the relay prints can not be applied: %v: %s", err, applied)
		}
	})

	t.Run("a dry run tells the troubles of apply, and diff has them", func(t *testing.T) {
		k.apply("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {namespace: shop, name: theirs}, spec: {host: theirs.example}}")
		s := newSite(t, k, "dry", ", mode: dryRun", map[string]string{
			"theirs":  rule("theirs", "RANDOM", ""),
			"fine":    rule("fine", "RANDOM", ""),
			"nowhere": strings.Replace(rule("nowhere", "RANDOM", ""), "namespace: shop", "namespace: nowhere", 1),
			"refused": "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: refused}\nspec: {host: refused.example, workloadSelector: {matchLabels: {\"\": x}}}\n",
			"schema":  "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: shop, name: schema}\nspec: {listeners: [{name: web, port: eighty}]}\n", // code 500
		})
		want := map[string]int{"foreign": 1, "namespaceMissing": 1, "refused": 2}
		s.is("each trouble is told", func(st sinkStatus) bool {
			return st.State == "following" && fmt.Sprint(st.TroublesByState) == fmt.Sprint(want)
		})
		if s.get(istioV1, "DestinationRule", "fine") != "" {
			t.Error("a dry run writes")
		}
		prints(t, s.relay, 0, "create networking.istio.io/DestinationRule shop/fine", "sink", "diff", "dry", "--do", "create", "-n", "shop")
		if out, _ := s.command("sink", "diff", "dry", "--kind", "DestinationRule", "--do", "create"); strings.Contains(out, "meshrelay.io/version") || !strings.Contains(out, "shop/theirs: create: it has no label of this sink") {
			t.Error(out)
		}
		s.terminate()
		s.relay = s.another("applies", "")
		s.is("apply tells the same", func(st sinkStatus) bool { return st.Objects == 1 && fmt.Sprint(st.TroublesByState) == fmt.Sprint(want) })
	})

	t.Run("a freeze holds for all relays, and release is for the writer", func(t *testing.T) {
		files := map[string]string{}
		for i := range 4 {
			files[fmt.Sprintf("f%d", i)] = rule(fmt.Sprintf("f%d", i), "RANDOM", "")
		}
		s := newSite(t, k, "frozen", "", files)
		s.written(4)
		second := s.another("second", "")
		prints(t, second, 0, "standby", "sink", "frozen")
		prints(t, second, 0, "sink frozen is frozen", "freeze", "sink/frozen", "--reason", "test")
		s.is("the writer is frozen", func(st sinkStatus) bool { return st.State == "frozen" })
		s.pause(func() {
			second.pause(func() {
				for i := range 4 {
					s.remove(fmt.Sprintf("f%d", i))
				}
				s.write("entry", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {namespace: shop, name: entry}\nspec: {hosts: [entry.example], ports: [{number: 443, name: tls, protocol: TLS}]}\n")
			})
		})
		s.is("the change is seen", func(st sinkStatus) bool { return st.Desired == 1 })
		prints(t, second, 0, "frozen", "sink", "frozen")
		s.terminate() // the other one takes over, frozen
		s.relay = second
		prints(t, second, 0, "writes again", "unfreeze", "sink/frozen")
		s.is("all of a kind are held, few as they are", func(st sinkStatus) bool {
			return st.Leader && st.Held != nil && st.Held.Removals == 4 && st.Objects == 5
		})
		st, err := sinkOf(second, s.sink)
		if err != nil {
			t.Fatal(err)
		}
		third := s.another("third", "")
		prints(t, third, 0, "standby", "sink", "frozen")
		prints(t, third, 1, "give the order to the one that does, which is \"second_", "release", "sink/frozen", "--hold", st.Held.ID)
		prints(t, second, 0, "4 deletions released", "release", "sink/frozen", "--hold", st.Held.ID)
		s.written(1)
	})

	t.Run("labels of Helm stay, and what tools track objects by is not copied", func(t *testing.T) {
		s := newSite(t, k, "labels", "", map[string]string{"till": `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  namespace: shop
  name: till
  labels: {app.kubernetes.io/managed-by: Helm, helm.sh/chart: till-2.0.1, kustomize.toolkit.fluxcd.io/name: apps, helm.toolkit.fluxcd.io/name: till}
  annotations: {meta.helm.sh/release-name: till, argocd.argoproj.io/tracking-id: "till:networking.istio.io/VirtualService:shop/till"}
spec: {hosts: [till.example], http: [{route: [{destination: {host: till.example}}]}]}
`})
		s.written(1)
		o := s.get(istioV1, "VirtualService", "till")
		for text, has := range map[string]bool{`"app.kubernetes.io/managed-by":"Helm"`: true, `"helm.sh/chart":"till-2.0.1"`: true, `"meta.helm.sh/release-name":"till"`: true, "kustomize.toolkit": false, "helm.toolkit": false, "argocd": false} {
			if strings.Contains(o, text) != has {
				t.Errorf("it has %s: %v: %s", text, !has, o)
			}
		}
	})

	t.Run("what others add is told, and stays", func(t *testing.T) {
		const gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: shop, name: edge}\nspec: {gatewayClassName: istio, listeners: [{name: web, port: 80, protocol: HTTP, hostname: %s}]}\n"
		s := newSite(t, k, "added", ", conflicts: take", map[string]string{"edge": fmt.Sprintf(gateway, "shop.example"), "rule": rule("added", "RANDOM", "")})
		s.written(2)
		if out, err := k.kubectl("", "patch", "-n", "shop", "gateways.gateway.networking.k8s.io", "edge", "--type=json", "-p", `[{"op":"replace","path":"/spec/listeners/0/name","value":"renamed"}]`); err != nil {
			t.Fatal(out, err)
		}
		if out, err := k.kubectl("", "patch", "-n", "shop", "destinationrule", "added", "--type=merge", "-p", `{"spec":{"trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":3}}}}`); err != nil {
			t.Fatal(out, err)
		}
		s.is("both are told", func(st sinkStatus) bool { return st.Added == 2 && len(st.Todo) == 0 })
		s.write("edge", fmt.Sprintf(gateway, "new.example")) // the primary withdraws a host
		eventually(t, "it is written", func() error {
			if o := s.get("gateway.networking.k8s.io/v1", "Gateway", "edge"); !strings.Contains(o, "new.example") || !strings.Contains(o, `"name":"renamed"`) {
				return fmt.Errorf("%s", o)
			}
			return nil
		})
		prints(t, s.relay, 0, `Gateway shop/edge: added at the site, and stays: .spec.listeners[name="renamed"]`, "sink", "diff", "added")
		prints(t, s.relay, 0, "DestinationRule shop/added: added at the site, and stays: .spec.trafficPolicy.outlierDetection", "sink", "diff", "added")
	})

	t.Run("a conflict ends as the table of states tells", func(t *testing.T) {
		s := newSite(t, k, "conflict", "", map[string]string{"rule": rule("owned", "RANDOM", "")})
		s.written(1)
		if out, err := k.kubectl("", "patch", "-n", "shop", "destinationrule", "owned", "--type=merge", "-p", `{"spec":{"trafficPolicy":{"loadBalancer":{"simple":"ROUND_ROBIN"}}}}`); err != nil {
			t.Fatal(out, err)
		}
		s.is("it is a conflict", func(st sinkStatus) bool { return st.TroublesByState["conflict"] == 1 })
		s.write("rule", rule("owned", "ROUND_ROBIN", "")) // the edit is made at the primary
		if out, err := k.kubectl("", "delete", "-n", "shop", "destinationrule", "owned"); err != nil {
			t.Fatal(out, err)
		}
		s.written(1)
		s.write("rule", rule("owned", "LEAST_REQUEST", ""))
		eventually(t, "the next change is no conflict", func() error {
			if simple, _, _ := k.ruleOf("owned"); simple != "LEAST_REQUEST" {
				return fmt.Errorf("%s", simple)
			}
			return nil
		})
		s.written(1)
	})

	t.Run("a promotion of what the cluster does not know is refused", func(t *testing.T) {
		for _, dryRun := range []string{"--dry-run", "--yes"} {
			out, err := relayCommand(t, "sink", "promote", "unknown", "--kubeconfig", k.kubeconfig, dryRun)
			if err == nil || !strings.Contains(out, "no object has the label meshrelay.io/sink=unknown, and the sink has no Lease") {
				t.Errorf("%s: %v %s", dryRun, err, out)
			}
		}
	})

	t.Run("two relays with a sink of one name learn of each other", func(t *testing.T) {
		s := newSite(t, k, "twins", "", map[string]string{"rule": rule("twin", "RANDOM", "")})
		s.written(1)
		text, err := os.ReadFile(s.config)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\n") // node and admin are in two lines
		_, rest, _ = strings.Cut(rest, "\n")
		other := relayOf(t, "other", strings.NewReplacer(filepath.Dir(s.config), "DIR", "{relay: site}", "{relay: other}", s.xds, "XDS").Replace(rest)).start()
		prints(t, other, 0, "the relay site has a sink of this name in this cluster, too", "sink", "twins")
		prints(t, s.relay, 0, "the relay other has a sink of this name in this cluster, too", "sink", "twins")
	})

	t.Run("nobody writes, and it is told", func(t *testing.T) {
		s := newSite(t, k, "nobody", "", map[string]string{"rule": rule("nobody", "RANDOM", "")})
		s.written(1)
		k.server.kill()
		s.write("rule", rule("nobody", "ROUND_ROBIN", ""))
		eventually(t, "the relay is not healthy", func() error {
			out, err := relayCommand(t, "wait", "--for", "healthy", "--timeout", "0", "--admin", s.admin)
			if err == nil || !strings.Contains(err.Error(), "sink nobody: nobody has written since") {
				return fmt.Errorf("%w %s", err, out)
			}
			return nil
		})
		prints(t, s.relay, 0, "nobody has written since", "status")
		prints(t, s.relay, 0, "sink nobody is frozen", "freeze", "sink/nobody", "--reason", "away")
		k.serve()
		eventually(t, "the Lease has the freeze that was given while the site was away", func() error {
			out, err := k.ask(http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/meshrelay-sink-nobody", "", nil)
			if err == nil && !strings.Contains(string(out), `"meshrelay.io/frozen-reason":"away"`) {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
		prints(t, s.relay, 0, "writes again", "unfreeze", "sink/nobody")
		s.written(1)
		prints(t, s.relay, 0, "", "wait", "--for", "healthy")
	})

	t.Run("a site whose etcd is restored has everything again", func(t *testing.T) {
		s := newSite(t, k, "restored", "", map[string]string{"same": rule("same", "RANDOM", ""), "changed": rule("changed", "RANDOM", ""), "gone": rule("gone", "RANDOM", "")})
		s.written(3)
		restore := k.backup()
		s.write("changed", rule("changed", "ROUND_ROBIN", ""))
		s.write("late", rule("late", "RANDOM", ""))
		s.remove("gone")
		has := func(what string) {
			t.Helper()
			eventually(t, what, func() error {
				late, changed, gone := s.get(istioV1, "DestinationRule", "late"), s.get(istioV1, "DestinationRule", "changed"), s.get(istioV1, "DestinationRule", "gone")
				if late == "" || gone != "" || !strings.Contains(changed, "ROUND_ROBIN") {
					return fmt.Errorf("late: %s\nchanged: %s\ngone: %s", late, changed, gone)
				}
				return nil
			})
		}
		has("the changes are written")
		s.written(3)
		restore()
		has("the changes are written again")
		s.written(3)
	})

	t.Run("a cluster that is built anew gets nothing", func(t *testing.T) {
		s := newSite(t, k, "anew", "", map[string]string{"rule": rule("anew", "RANDOM", "")})
		s.written(1)
		k.server.kill()
		k.etcd.kill()
		k.empty()
		k.serve()
		k.defineKinds("newest")
		k.createNamespace("istio-system")
		k.createNamespace("shop")
		s.is("it is blocked", func(st sinkStatus) bool {
			return st.State == "blocked" && st.Objects == 0 && slices.ContainsFunc(st.Problems, func(p string) bool { return strings.Contains(p, "clusterUID") })
		})
		prints(t, s.relay, 1, "clusterUID", "sink", "diff", "anew")
		if s.get(istioV1, "DestinationRule", "anew") != "" {
			t.Error("it is written")
		}
	})
}

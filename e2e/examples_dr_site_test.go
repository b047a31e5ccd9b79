package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestExampleDRSite runs examples/dr-site with two API servers that ask RBAC, and an istiod in each cluster. The primary
// is lost, the site is promoted and changed, and the primary returns.
func TestExampleDRSite(t *testing.T) {
	t.Parallel()
	x := newExample(t, "dr-site")
	primary, site := newKubernetesWith(t, "mesh", "RBAC"), newKubernetesWith(t, "mesh", "RBAC") // one trust domain, and one cluster for its proxies
	x.ports["127.0.0.1:6443"], x.ports["127.0.0.1:7443"] = strings.TrimPrefix(primary.url, "https://"), strings.TrimPrefix(site.url, "https://")
	web, err := os.ReadFile(filepath.Join(x.dir, "both", "web.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []*kubernetes{primary, site} {
		k.defineIstio()
		k.createNamespace("istio-system")
		k.createNamespace("shop")
		k.apply(strings.Replace(string(web), "\nspec:", "\nspec:\n  clusterIP: 10.96.1.1", 1)) // each cluster would take one of its own
	}
	primary.createNamespace("payments")
	primary.createNamespace("dev-alice")
	primary.readerKubeconfig(filepath.Join(x.dir, "primary.kubeconfig"))
	site.createNamespace("on-call")
	site.applyFile("../deploy/kubernetes/rbac-sink.yaml")
	site.applyFile(filepath.Join(x.dir, "rights.yaml"))
	site.tokenKubeconfig(filepath.Join(x.dir, "dr.kubeconfig"), site.token("istio-system", "relay-sink"))
	onCall, err := os.ReadFile(filepath.Join(x.dir, "promoter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	site.apply("{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: on-call, name: on-call}}")
	for _, one := range strings.Split(string(onCall), "\n---\n") {
		site.apply(strings.ReplaceAll(one, "name: on-call}", "name: system:serviceaccounts:on-call}")) // a group that the server knows
	}
	site.tokenKubeconfig(filepath.Join(x.dir, "on-call.kubeconfig"), site.token("on-call", "on-call"))
	files, err := filepath.Glob(filepath.Join(x.dir, "primary", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of primary: %v", err)
	}
	const leftOut = "left-out.yaml" // the site's istiod is not to give this
	for _, path := range files {
		if filepath.Base(path) != leftOut {
			primary.applyFile(path)
		}
	}
	began, step := time.Now(), ""
	next := func(name string) { // measures, and gates nothing
		if step != "" {
			t.Logf("%s: %.1f s", step, time.Since(began).Seconds())
		}
		began, step = time.Now(), name
	}

	ofPrimary := newNativeIstiod(t, primary).start().ready()
	ofSite := newNativeIstiod(t, site).start().ready()
	proxies := []proxy{
		{name: "web", namespace: "shop", address: "10.1.0.1", labels: map[string]string{"app": "web"}},
		{kind: "router", name: "gateway", namespace: "shop", address: "10.1.0.2", labels: map[string]string{"istio": "ingressgateway"}},
	}
	gives := func(i *istiod) map[string]envoyConfig {
		t.Helper()
		c := dial(t, i.grpc)
		defer c.conn.Close()
		all, err := c.fetchAll(proxies)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	gave := gives(ofPrimary)
	same := func(when string) {
		t.Helper()
		eventually(t, when, func() error {
			have := gives(ofSite)
			for _, p := range proxies {
				if all := compare(p.String(), gave[p.String()], have[p.String()]); len(all) > 0 {
					return fmt.Errorf("%d differences, the first: %s", len(all), all[0])
				}
			}
			return nil
		})
	}
	if n := len(gave[proxies[0].String()][cdsType]); n < 7 {
		t.Fatalf("a proxy of the primary has %d clusters", n)
	}
	primary.applyFile(filepath.Join(x.dir, "primary", leftOut))
	next("from the start of the relay until the site's istiod gives what the primary's gives")
	r := x.relay("relay.yaml").start().ready()
	same("the site's istiod gives what the primary's gives")
	next("")
	x.shows(t, "validate")
	x.showsAt(t, "wait", 0)
	x.showsAt(t, "sink status", 0)

	// The primary is lost.
	ofPrimary.kill()
	primary.server.kill()
	x.showsAt(t, "status", 0)
	next("dry run of the promotion")
	x.showsAt(t, "sink promote", 0)
	next("promotion while the relay runs")
	x.showsAt(t, "sink promote", 1)
	next("")
	x.showsAt(t, "sink status", 1)
	same("the promoted site's istiod gives what the primary's gave")
	ofSite.kill()
	next("start of the site's istiod")
	ofSite.start().ready()
	same("an istiod that starts in the promoted site gives what the primary's gave")
	next("")

	// edit does what kubectl edit does to the DestinationRule.
	const rule = "networking.istio.io/DestinationRule shop/web"
	path := objectPath("networking.istio.io/v1", "DestinationRule", "shop", "web")
	edit := func(k *kubernetes, simple string) {
		t.Helper()
		if err := k.do(http.MethodPatch, path+"?fieldManager=kubectl-edit", "application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"trafficPolicy":{"loadBalancer":{"simple":%q}}}}`, simple)); err != nil {
			t.Fatal(err)
		}
	}
	// A server-side apply meets the sink's manager.
	err = site.do(http.MethodPatch, path+"?fieldManager=kubectl", "application/apply-patch+yaml", []byte("{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {namespace: shop, name: web}, spec: {host: web.shop.svc.cluster.local, trafficPolicy: {loadBalancer: {simple: RANDOM}}}}"))
	if err == nil || !strings.Contains(err.Error(), "meshrelay-sink-dr") {
		t.Errorf("a first server-side apply at the promoted site: %v", err)
	}
	next("edit until the site's istiod has it")
	edit(site, "ROUND_ROBIN")
	ofSite.has(rule, "ROUND_ROBIN")

	// The primary returns, as it was.
	next("start of the primary until the relay follows it again")
	primary.serve()
	x.showsAt(t, "wait", 1) // pauses between two tries grow to 30 s
	x.showsAt(t, "status", 1)
	next("adopt")
	x.showsAt(t, "sink adopt", 0)
	next("")
	x.showsAt(t, "sink diff", 0)
	ofSite.has(rule, "ROUND_ROBIN")
	edit(primary, "ROUND_ROBIN")
	x.showsAt(t, "sink diff", 1)
	next("unfreeze until the sink has written all")
	x.showsAt(t, "sink unfreeze", 0)
	x.showsAt(t, "sink status", 2)
	next("edit at the primary until the site's istiod has it")
	ofSite.has(rule, "ROUND_ROBIN")
	edit(primary, "RANDOM")
	ofSite.has(rule, "RANDOM")
	next("promotion after the relay was killed")
	r.kill()
	x.showsAt(t, "sink promote", 2)
	next("adopt after the relay was killed")
	x.showsAt(t, "sink adopt", 1)
	next("start of the relay until the sink has written all")
	r.start().ready()
	x.showsAt(t, "sink unfreeze", 1)
	x.showsAt(t, "sink status", 3)
	next("")
	if out, err := site.ask(http.MethodGet, path, "", nil); err != nil || !strings.Contains(string(out), `"meshrelay.io/sink":"dr"`) || !strings.Contains(string(out), "RANDOM") {
		t.Errorf("the object is not the sink's again: %v: %s", err, out)
	}
}

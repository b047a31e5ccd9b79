package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
	x.showsAt(t, "explain", 0)
	x.showsAt(t, "sink", 0)

	// A kill of the relay changes nothing at the site, and what the site's etcd loses comes again.
	d := &drill{t, x, primary, site}
	d.equal("the site is filled", "")
	before := d.objects(site)
	r.kill()
	r.start().ready()
	x.showsAt(t, "sink", 0)
	if diff := differ(before, d.objects(site)); diff != "" {
		t.Errorf("a restart writes: %s", diff)
	}
	restore := site.backup()
	primary.apply("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: payments, name: cards}, spec: {hosts: [cards.example], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}, {number: 444, name: more, protocol: TLS}]}}")
	d.equal("the site has a change", "")
	restore()
	d.equal("the restored site has it again", "")
	primary.applyFile(filepath.Join(x.dir, "primary", "shop.yaml"))
	d.equal("the site is as in the beginning", "")
	same("the istiod of the restored site gives what the primary's gives")
	before = d.objects(site)

	// The primary is lost.
	ofPrimary.kill()
	primary.server.kill()
	x.showsAt(t, "status", 0)
	next("dry run of the promotion")
	x.showsAt(t, "sink promote", 0)
	next("promotion while the relay runs")
	x.showsAt(t, "sink promote", 1)
	next("")
	x.showsAt(t, "sink", 3)
	if diff := differ(before, d.objects(site)); diff != "" {
		t.Errorf("a promotion touches objects: %s", diff)
	}
	same("the promoted site's istiod gives what the primary's gave")
	ofSite.kill()
	next("start of the site's istiod")
	ofSite.start().ready()
	same("an istiod that starts in the promoted site gives what the primary's gave")
	next("")

	// People work at the site, and the relay is restarted.
	const rule = "networking.istio.io/DestinationRule shop/web"
	path := objectPath("networking.istio.io/v1", "DestinationRule", "shop", "web")
	next("edit until the site's istiod has it")
	d.kubectl("The primary is lost")
	ofSite.has(rule, "ROUND_ROBIN")
	edited := d.specs(site)
	if n := changes(before, d.objects(site)); n != 4 {
		t.Errorf("%d objects are edited", n)
	}
	r.terminate()
	r.start().ready()
	x.showsAt(t, "sink", 4)

	// The primary returns, without the edits, and with changes of its own.
	next("start of the primary until the relay follows it again")
	primary.serve()
	primary.delete("networking.istio.io/v1", "ServiceEntry", "shop", "fax")
	primary.apply("{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {namespace: shop, name: public}, spec: {selector: {istio: ingressgateway}, servers: [{hosts: [www.shop.example], port: {number: 80, name: http, protocol: HTTP}}]}}")
	x.showsAt(t, "wait", 0) // pauses between two tries grow to 30 s
	x.showsAt(t, "status", 1)
	next("adopt")
	x.showsAt(t, "sink adopt", 0)
	next("")
	x.showsAt(t, "sink diff", 0)
	if diff := differ(edited, d.specs(site)); diff != "" {
		t.Errorf("the adopted site is written into: %s", diff)
	}
	d.kubectl("Back again")
	x.showsAt(t, "sink diff", 1)
	if diff := differ(edited, d.specs(site)); diff != "" {
		t.Errorf("the frozen site is written into: %s", diff)
	}
	next("unfreeze until the sink has written all")
	x.showsAt(t, "unfreeze", 0)
	x.showsAt(t, "sink dr", 0)
	d.equal("all but the held deletion is written", "ServiceEntry shop/fax")
	for name, spec := range edited {
		if now := d.specs(site)[name]; now != spec && name != "Gateway shop/public" {
			t.Errorf("%s has lost its edit: %s, and it was %s", name, now, spec)
		}
	}
	x.ports["4kq3vx2a"] = d.hold(r)
	x.showsAt(t, "release", 0)
	x.showsAt(t, "sink dr", 1)
	d.equal("all is written", "")
	next("edit at the primary until the site's istiod has it")
	ofSite.has(rule, "ROUND_ROBIN")
	if _, err := primary.kubectl("", "patch", "-n", "shop", "destinationrule", "web", "--type=merge", "-p", `{"spec":{"trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}}}`); err != nil {
		t.Fatal(err)
	}
	ofSite.has(rule, "RANDOM")
	next("promotion after the relay was killed")
	r.kill()
	x.showsAt(t, "sink promote", 2)
	next("adopt after the relay was killed")
	x.showsAt(t, "sink adopt", 1)
	next("start of the relay until the sink has written all")
	r.start().ready()
	x.showsAt(t, "unfreeze", 1)
	x.showsAt(t, "sink", 12)
	next("")
	if out, err := site.ask(http.MethodGet, path, "", nil); err != nil || !strings.Contains(string(out), `"meshrelay.io/sink":"dr"`) || !strings.Contains(string(out), "RANDOM") {
		t.Errorf("the object is not the sink's again: %v: %s", err, out)
	}
	d.runbook(r, "RANDOM")
}

// drill is an example whose two clusters are compared.
type drill struct {
	t             *testing.T
	x             *example
	primary, site *kubernetes
}

// objects returns the objects of a cluster that the sink may write, by kind, namespace and name.
func (d *drill) objects(k *kubernetes) map[string]string {
	return d.all(k, func(o deployed) any { return map[string]any(o) })
}

// specs returns only what they ask for.
func (d *drill) specs(k *kubernetes) map[string]string {
	return d.all(k, func(o deployed) any { return o.at("spec") })
}

func (d *drill) all(k *kubernetes, part func(deployed) any) map[string]string {
	d.t.Helper()
	all := map[string]string{}
	for _, kind := range []string{"Gateway", "VirtualService", "DestinationRule", "ServiceEntry", "AuthorizationPolicy"} {
		group := "networking.istio.io/v1"
		if kind == "AuthorizationPolicy" {
			group = "security.istio.io/v1"
		}
		for _, namespace := range []string{"shop", "payments"} {
			var list struct{ Items []deployed }
			eventually(d.t, "the API server has started", func() error {
				out, err := k.ask(http.MethodGet, strings.TrimSuffix(objectPath(group, kind, namespace, ""), "/"), "", nil)
				if err == nil {
					err = json.Unmarshal(out, &list)
				}
				return err
			})
			for _, o := range list.Items {
				all[kind+" "+namespace+"/"+o.text("metadata", "name")] = encode(d.t, part(o))
			}
		}
	}
	return all
}

// differ returns the first difference of two clusters, empty for none.
func differ(before, after map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			return fmt.Sprintf("%s is %q, and was %q", name, after[name], before[name])
		}
	}
	for name := range after {
		if before[name] == "" {
			return name + " is new"
		}
	}
	return ""
}

func changes(before, after map[string]string) (n int) {
	for name, o := range before {
		if after[name] != o {
			n++
		}
	}
	return n
}

// equal waits until the site has what the primary has, and one object more.
func (d *drill) equal(when, more string) {
	d.t.Helper()
	eventually(d.t, when, func() error {
		at := d.specs(d.site)
		if more != "" && at[more] == "" {
			d.t.Fatalf("%s: %s is gone", when, more)
		}
		delete(at, more)
		if diff := differ(d.specs(d.primary), at); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// kubectl runs the kubectl commands in a part of the README.
func (d *drill) kubectl(part string) {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.x.dir, "README.md"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.primary.editor = `sed -i s/LEAST_REQUEST/ROUND_ROBIN/ "$1"` + "\n"
	d.site.editor = d.primary.editor
	_, section, _ := strings.Cut(string(text), "\n## "+part+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := 0
	for line := range strings.Lines(section) {
		args, is := strings.CutPrefix(strings.TrimSpace(line), "$ kubectl --context ")
		if !is {
			continue
		}
		n++
		context, args, _ := strings.Cut(strings.ReplaceAll(args, "examples/"+d.x.name, d.x.dir), " ")
		k := map[string]*kubernetes{"primary": d.primary, "dr": d.site}[context]
		if out, err := k.kubectl("", strings.Fields(args)...); err != nil {
			d.t.Fatal(err, out)
		}
	}
	if n == 0 {
		d.t.Errorf("README.md has no kubectl in %q", part)
	}
}

// hold returns the ID of what the sink holds.
func (d *drill) hold(r *relay) (id string) {
	d.t.Helper()
	eventually(d.t, "the sink holds a deletion", func() error {
		s, err := sinkOf(r, "dr")
		if err == nil && s.Held == nil {
			err = fmt.Errorf("%+v", s)
		}
		if err == nil {
			id = s.Held.ID
		}
		return err
	})
	return id
}

// runbook runs the commands of the runbook of docs/sites.md as they stand, with what happens between them. An object is deleted
// at the primary while it is lost, and one at the site.
func (d *drill) runbook(r *relay, simple string) {
	t, x := d.t, d.x
	t.Helper()
	page, err := os.ReadFile("../docs/sites.md")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := os.ReadFile(filepath.Join(x.dir, "on-call.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(x.dir, "dr-admin.kubeconfig"), string(admin))
	_, text, _ := strings.Cut(string(page), "\n## Runbook")
	text, _, _ = strings.Cut(text, "\n## ")
	parts := strings.Split(text, "\n**")[1:]
	parts = slices.DeleteFunc(parts, func(p string) bool { return p[0] < '1' || p[0] > '9' })
	if len(parts) > 9 {
		t.Errorf("the runbook has %d steps", len(parts))
	}
	d.equal("before the runbook", "")
	filled := len(d.specs(d.site))
	ran := 0
	for _, part := range parts {
		switch part[0] {
		case '1':
			d.primary.server.kill()
		case '5':
			if _, err := d.site.kubectl("", "patch", "-n", "shop", "destinationrule", "web", "--type=merge", "-p", `{"spec":{"trafficPolicy":{"loadBalancer":{"simple":"LEAST_REQUEST"}}}}`); err != nil {
				t.Error(err)
			}
			if _, err := d.site.kubectl("", "delete", "-n", "payments", "serviceentry", "cards"); err != nil {
				t.Error(err)
			}
		case '6':
			d.primary.serve()
			d.primary.delete("networking.istio.io/v1", "ServiceEntry", "shop", "carrier")
		}
		for line := range strings.Lines(part) {
			command, is := strings.CutPrefix(strings.TrimSpace(line), "$ relay ")
			if !is {
				continue
			}
			ran++
			args := strings.Fields(command)
			if !slices.Contains(args, "--kubeconfig") {
				args = append(args, "--admin", x.address("127.0.0.1:15014"))
			}
			out, err := x.command(args...)
			if err != nil && args[0] != "status" { // status tells of a relay that is degraded by its exit code
				t.Errorf("step %c: %v: %s", part[0], err, out)
			}
			if part[0] == '7' && (!strings.Contains(out, "-      simple: LEAST_REQUEST") || !strings.Contains(out, "ServiceEntry payments/cards") || !strings.Contains(out, "ServiceEntry shop/carrier")) {
				t.Errorf("step 7: %s", out)
			}
		}
		switch part[0] {
		case '2':
			if s, err := sinkOf(r, "dr"); err != nil || s.State != "promoted" {
				t.Errorf("after step 2: %+v, %v", s, err)
			}
		case '7':
			if _, err := d.primary.kubectl("", "patch", "-n", "shop", "destinationrule", "web", "--type=merge", "-p", `{"spec":{"trafficPolicy":{"loadBalancer":{"simple":"LEAST_REQUEST"}}}}`); err != nil {
				t.Error(err)
			}
		case '8':
			d.equal("after step 8", "ServiceEntry shop/carrier")
		case '9':
			if out, err := x.command("release", "sink/dr", "--hold", d.hold(r), "--admin", x.address("127.0.0.1:15014")); err != nil {
				t.Error(err, out)
			}
			d.equal("after step 9", "")
		}
	}
	if at := d.specs(d.site); ran < 9 || len(at) != filled-1 || strings.Contains(at["DestinationRule shop/web"], simple) {
		t.Errorf("%d commands, %v", ran, at)
	}
}

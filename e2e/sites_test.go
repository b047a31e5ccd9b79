package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// relayCommand runs a command of the relay.
func relayCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary(t, "RELAY_BIN", "../bin/relay"), args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("relay %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// youngerTwin claims the host of another ServiceEntry.
const youngerTwin = "networking.istio.io/ServiceEntry istio-system/ratings"

// TestTheIstiodOfASiteGivesItsProxiesWhatThatOfThePrimaryGave has a relay write a primary cluster into a site. The
// istiods of both clusters read their API servers. Then the primary is lost, and the site promoted.
func TestTheIstiodOfASiteGivesItsProxiesWhatThatOfThePrimaryGave(t *testing.T) {
	t.Parallel()
	primary, site := newKubernetes(t, "mesh"), newKubernetes(t, "mesh") // one trust domain, and one cluster for its proxies
	primary.defineIstio()
	site.defineIstio()
	site.createNamespace("istio-system")
	// Of two ServiceEntries of one host a gateway takes the older one, and objects of a site have ages of their own.
	set := slices.DeleteFunc(readManifests(t, "testdata/oracle"), func(m manifest) bool { return m.key() == youngerTwin })
	namespaces := map[string]bool{}
	for _, m := range set {
		if !namespaces[m.Metadata.Namespace] {
			namespaces[m.Metadata.Namespace] = true
			primary.createNamespace(m.Metadata.Namespace)
		}
		if err := primary.put(m); err != nil {
			t.Fatal(err)
		}
	}
	r := relayOf(t, "sites", fmt.Sprintf(`upstreams:
- {name: primary, kubernetes: {cluster: {kubeconfig: %q}}}
views: [{name: all, default: true}]
sinks:
- {name: site, cluster: {kubeconfig: %q}, view: all, mode: apply, prune: true, createNamespaces: true, writesPerSecond: 1000}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, primary.kubeconfig, site.kubeconfig)).start().ready()

	istiods := map[string]*istiod{}
	for name, k := range map[string]*kubernetes{"primary": primary, "site": site} {
		i := newNativeIstiod(t, k)
		i.env = append(i.env, "REVISION="+oracleRevision)
		istiods[name] = i.start().ready()
	}
	everything := func(i *istiod) map[string]envoyConfig {
		t.Helper()
		client := dial(t, i.grpc)
		defer client.conn.Close()
		all, err := client.fetchAll(fixedProxies)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	var gave map[string]envoyConfig
	same := func(when string) {
		t.Helper()
		eventually(t, when, func() error {
			have := everything(istiods["site"])
			for _, proxy := range fixedProxies {
				if all := compare(proxy.String(), gave[proxy.String()], have[proxy.String()]); len(all) > 0 {
					return fmt.Errorf("%d differences, the first: %s", len(all), all[0])
				}
			}
			return nil
		})
	}
	eventually(t, "all is written", func() error {
		out, err := relayCommand(t, "sink", "--admin", r.admin)
		want := fmt.Sprintf("site all apply writing %d %[1]d - -", len(set))
		if err == nil && !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			err = fmt.Errorf("want %s: %s", want, out)
		}
		return err
	})
	gave = everything(istiods["primary"])
	if n := len(gave[fixedProxies[0].String()][cdsType]); n < 5 {
		t.Fatalf("a proxy of the primary has %d clusters", n)
	}
	same("the site's istiod gives what the primary's gives")

	// The primary is lost. The relay stays: the Lease of the promoted sink forbids it to write.
	istiods["primary"].kill()
	primary.server.kill()
	out, err := relayCommand(t, "sink", "promote", "site", "--kubeconfig", site.kubeconfig, "--yes", "--reason", "the primary is lost")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
	same("the promoted site's istiod gives what the primary's gave")
	istiods["site"].kill()
	istiods["site"].start().ready()
	same("an istiod that starts in the promoted site gives what the primary's gave")
	out, err = relayCommand(t, "sink", "adopt", "site", "--kubeconfig", site.kubeconfig, "--yes")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
}

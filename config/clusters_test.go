package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes"
)

const clustersOnly = `clusters:
- name: fleet
  secrets: {cluster: {inCluster: true}}
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`

func TestAConfigWithClustersAloneIsValid(t *testing.T) {
	c, err := parse("relay.yaml", []byte(clustersOnly))
	if err != nil {
		t.Fatal(err)
	}
	one := c.Clusters[0]
	section, is := one.Upstream.Source.(*kubernetes.Config)
	if !is || section.Ingress.Mode != "off" || one.Upstream.FirstSync != config.FirstSyncOptional {
		t.Errorf("the template is %+v", one.Upstream)
	}
	if one.Secrets.Namespace != "istio-system" || one.Secrets.Selector != "istio/multiCluster=true" || one.RemoveAfter.D() != 24*time.Hour {
		t.Errorf("%+v", one)
	}
	c.FitMemory(1 << 30) // without upstreams
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := parse("relay.yaml", text)
	if err != nil || !reflect.DeepEqual(again.Clusters, c.Clusters) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestMistakesInClustersAreNamedWithTheirLines(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hub"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for fields, want := range map[string]string{
		`secrets: {cluster: {inCluster: true}}, name: Fleet`: `"Fleet" is not a name: write 1 to 63 lower-case letters`,
		``:            "clusters[0].secrets: missing",
		`secrets: {}`: "clusters[0].secrets.cluster: neither kubeconfig nor inCluster",
		`secrets: {cluster: {inCluster: true, kubeconfig: hub}}`:                                              "clusters[0].secrets.cluster.inCluster: inCluster and kubeconfig are both set",
		`secrets: {cluster: {inCluster: true, context: a}}`:                                                   "clusters[0].secrets.cluster.context: only a kubeconfig has contexts",
		`secrets: {cluster: {inCluster: true, allowExec: [a]}}`:                                               "clusters[0].secrets.cluster.allowExec: only a kubeconfig",
		`secrets: {cluster: {inCluster: true}, namespace: A}`:                                                 `clusters[0].secrets.namespace: "A" is not a namespace`,
		`secrets: {cluster: {inCluster: true}, selector: "a in"}`:                                             `clusters[0].secrets.selector: "a in" is not a label selector`,
		`secrets: {cluster: {inCluster: true}}, removeAfter: 1s`:                                              "clusters[0].removeAfter: 1s is out of range: 1m0s to 8760h0m0s, or never",
		`secrets: {cluster: {inCluster: true}}, ignore: [a/b]`:                                                `clusters[0].ignore[0]: "a/b" is not the ID of a cluster`,
		`secrets: {cluster: {inCluster: true}}, allowExec: [""]`:                                              "clusters[0].allowExec[0]: no command",
		`secrets: {cluster: {inCluster: true}}, allowExec: [{args: [b]}]`:                                     "clusters[0].allowExec[0]: no command",
		`secrets: {cluster: {inCluster: true}}, allowExec: [{command: a, arg: [b]}]`:                          "clusters[0].allowExec[0].arg: unknown field",
		`secrets: {cluster: {inCluster: true}}, allowExec: [[a]]`:                                             "clusters[0].allowExec[0]: want a map of fields, not a list",
		`secrets: {cluster: {inCluster: true}}, allowExec: [1]`:                                               "clusters[0].allowExec[0]: want a text, not",
		`secrets: {cluster: {inCluster: true}}, allowExec: [a, {command: a, env: {B: c}}]`:                    "clusters[0].allowExec[1]: the same command and arguments as in allowExec[0]",
		`secrets: {cluster: {inCluster: true}}, allowServers: [10.0.0.0/8, "https://a"]`:                      `clusters[0].allowServers[1]: "https://a" is neither an IP address, nor a network`,
		`secrets: {cluster: {inCluster: true}}, allowServers: [10.0.0.1/8]`:                                   `clusters[0].allowServers[0]: "10.0.0.1/8" has bits after the network: write 10.0.0.0/8`,
		`secrets: {cluster: {inCluster: true}}, upstream: {name: a}`:                                          "clusters[0].upstream.name: a found cluster is named after its ID",
		`secrets: {cluster: {inCluster: true}}, upstream: {clusterID: a}`:                                     "clusters[0].upstream.clusterID: a found cluster has an ID",
		`secrets: {cluster: {inCluster: true}}, upstream: {required: true}`:                                   "clusters[0].upstream.required: clients never wait for found clusters",
		`secrets: {cluster: {inCluster: true}}, upstream: {firstSync: wait}`:                                  "clusters[0].upstream.firstSync: \"wait\": clients never wait for found clusters",
		`secrets: {cluster: {inCluster: true}}, upstream: {file: {path: a}}`:                                  "clusters[0].upstream.file: found clusters are API servers",
		`secrets: {cluster: {inCluster: true}}, upstream: {kubernetes: {cluster: {inCluster: true}}}`:         "clusters[0].upstream.kubernetes.cluster: found clusters bring their own connection",
		`secrets: {cluster: {inCluster: true}}, upstream: {services: {mode: gateway, gateways: [192.0.2.1]}}`: "clusters[0].upstream.services.mode: \"gateway\" needs the gateways of each cluster",
		`secrets: {cluster: {inCluster: true}}, upstream: {services: {mode: discover, pods: false}}`:          "",
		`secrets: {cluster: {inCluster: true}}, upstream: {kubernetes: {cluster: {kubeconfig: hub}}}`:         "clusters[0].upstream.kubernetes.cluster: found clusters bring their own connection",
		`secrets: {cluster: {inCluster: true}}, upstream: {kubernetes: {cluster: {allowExec: [a]}}}`:          "clusters[0].upstream.kubernetes.cluster: found clusters bring their own connection, and clusters[].allowExec names their programs: leave it out",
		`secrets: {cluster: {inCluster: true}}, upstream: {kubernetes: {namespaces: [A]}}`:                    `clusters[0].upstream.kubernetes.namespaces[0]: "A" is not a namespace`,
		`secrets: {cluster: {inCluster: true}}, upstream: {import: {kinds: [nothing]}}`:                       "clusters[0].upstream.import.kinds",
		`secrets: {cluster: {inCluster: true}}, upstream: {rewrite: {namespacePrefix: "A-"}}`:                 "clusters[0].upstream.rewrite.namespacePrefix",
		`secrets: {cluster: {inCluster: true}}, upstream: {staleness: {staleAfter: 2h, expireAfter: 1h}}`:     "clusters[0].upstream.staleness.expireAfter",
		`secrets: {cluster: {kubeconfig: hub, allowExec: [a]}}, upstream: {rewrite: {namespacePrefix: "{cluster}-"}, kubernetes: {selector: a}}, allowExec: [x, {command: x, args: [y], env: {A: b}}, {command: x, args: [z]}], allowServers: [10.0.0.0/8, "::1", "*.example.com"]`: "",
		`secrets: {cluster: {inCluster: true}}, removeAfter: never`: "",
	} {
		name := "name: fleet"
		if strings.Contains(fields, "name: Fleet") {
			name = "removeAfter: 1h"
		}
		text := fmt.Sprintf("clusters:\n- {%s, %s}\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\n", name, fields)
		_, err := parse(filepath.Join(dir, "relay.yaml"), []byte(strings.ReplaceAll(text, ", }", "}")))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", fields, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), ":2: ") || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
	_, err := parse("relay.yaml", []byte("clusters:\n- {name: a, secrets: {cluster: {inCluster: true}}}\n- {name: a, secrets: {cluster: {inCluster: true}}}\n"+clustersOnly[strings.Index(clustersOnly, "downstream"):]))
	if err == nil || !strings.Contains(err.Error(), `3: clusters[1].name: "a" is the name of clusters[0] already`) {
		t.Error(err)
	}
}

func TestCheckReadsTheKubeconfigsOfHubs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: hub, cluster: {server: "https://hub.example"}}]
users: [{name: relay, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: getToken, interactiveMode: Never}}}]
contexts: [{name: hub, context: {cluster: hub, user: relay}}]
current-context: hub
`
	good := write("good", kubeconfig)
	bad := write("bad", strings.ReplaceAll(kubeconfig, "https:", "http:"))
	for fields, want := range map[string]string{
		fmt.Sprintf(`secrets: {cluster: {kubeconfig: %q, allowExec: [getToken]}}`, good):                "",
		fmt.Sprintf(`secrets: {cluster: {kubeconfig: %q}}`, good):                                       `clusters[0].secrets.cluster.kubeconfig: FILE: user "relay" runs the program "getToken"`,
		fmt.Sprintf(`secrets: {cluster: {kubeconfig: %q, allowExec: [getToken], context: east}}`, good): `clusters[0].secrets.cluster.kubeconfig: FILE: context "east" does not exist`,
		fmt.Sprintf(`secrets: {cluster: {kubeconfig: %q, allowExec: [getToken]}}`, bad):                 `clusters[0].secrets.cluster.kubeconfig: FILE: cluster "hub": the server does not begin with https://`,
	} {
		path := write("relay.yaml", "clusters:\n- name: fleet\n  "+fields+"\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\n")
		want = strings.Replace(want, "FILE", map[bool]string{true: bad, false: good}[strings.Contains(fields, bad)], 1)
		switch _, err := config.Check(path, sources()...); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", fields, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "relay.yaml:3: "+want)):
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
}

func TestATemplateBecomesTheUpstreamOfACluster(t *testing.T) {
	c, err := parse("relay.yaml", []byte(strings.Replace(clustersOnly, "true}}\n", `true}}
  upstream:
    rewrite: {namespacePrefix: "{cluster}-", labels: {set: {cluster: "{cluster}"}}}
    guard: {percent: 50}
`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	section := &kubernetes.Config{}
	u, err := c.Clusters[0].For("east", "east", section)
	if err != nil || u.Name != "east" || u.ClusterID != "east" || u.Rewrite.NamespacePrefix != "east-" || u.Rewrite.Labels.Set["cluster"] != "east" || u.Guard.Percent != 50 || u.Source != section {
		t.Errorf("%v: %+v", err, u)
	}
	if got := c.Clusters[0].Upstream.Rewrite; got.NamespacePrefix != "{cluster}-" || got.Labels.Set["cluster"] != "{cluster}" {
		t.Errorf("the template has become %+v", got)
	}
	if _, err := c.Clusters[0].For("east-1", "East_1", section); err == nil || !strings.HasPrefix(err.Error(), "rewrite.namespacePrefix: ") {
		t.Errorf("a prefix that no namespace can have: %v", err)
	}
}

func TestAnIstiodAndAnAPIServerOfOneClusterAreWarnedOf(t *testing.T) {
	text := func(first, second string) string {
		return fmt.Sprintf(`upstreams:
- {name: a, clusterID: east, import: {profile: all}, %s}
- {name: b, import: {profile: all}, clusterID: %s}
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`, first, second)
	}
	const istiod = `xds: {addresses: ["a:1"], plaintext: true}`
	for second, want := range map[string]bool{
		"east, kubernetes: {cluster: {inCluster: true}}": true, "west, kubernetes: {cluster: {inCluster: true}}": false,
		"east, " + istiod: false, "east, file: {path: a}": false,
	} {
		c, err := parse("relay.yaml", []byte(text(istiod, second)))
		if err != nil {
			t.Fatal(err)
		}
		lines := c.Warnings()
		if (len(lines) > 0) != want || want && !strings.Contains(lines[0], "upstreams a (xds) and b (kubernetes) read the same cluster, east") {
			t.Errorf("%s: %q", second, lines)
		}
	}
}

func TestUpstreamsWithoutAProfileAreNamedOnce(t *testing.T) {
	for fields, want := range map[string]string{
		"": "upstream a, b, and", "import: {profile: all}": "", "import: {profile: routing}": "", "import: {kinds: [se]}": "",
		"import: {namespaces: {include: [shop]}}": "", `import: {hosts: {include: ["*.a"]}}`: "upstream a, b, and",
	} {
		text := "upstreams:\n"
		for _, name := range []string{"a", "b"} {
			text += fmt.Sprintf("- {name: %s, file: {path: %[1]s}, %s}\n", name, fields)
		}
		c, err := parse("relay.yaml", []byte(text+`downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}`))
		if err != nil {
			t.Fatal(err)
		}
		lines := c.Warnings()
		if len(lines) > 1 || (len(lines) == 1) != (want != "") || want != "" && !strings.Contains(lines[0], want) {
			t.Errorf("%s: %q", fields, lines)
		}
	}
}

func TestProgramsWithoutServersAreWarnedOf(t *testing.T) {
	for fields, want := range map[string]bool{
		`secrets: {cluster: {inCluster: true}}`:                                             false,
		`secrets: {cluster: {kubeconfig: hub, allowExec: [x]}}`:                             false,
		`secrets: {cluster: {inCluster: true}}, allowExec: [x]`:                             true,
		`secrets: {cluster: {inCluster: true}}, allowExec: [x], allowServers: [10.0.0.0/8]`: false,
	} {
		c, err := parse("relay.yaml", []byte(fmt.Sprintf("clusters:\n- {name: fleet, %s}\n", fields)+clustersOnly[strings.Index(clustersOnly, "downstream"):]))
		if err != nil {
			t.Fatal(err)
		}
		lines := c.Warnings()
		if (len(lines) > 0) != want || want && !strings.Contains(lines[0], "clusters fleet: no cluster whose credentials a program gives is followed, because clusters[0].allowServers is missing") {
			t.Errorf("%s: %q", fields, lines)
		}
	}
}

func TestAProgramMayBeACommandAlone(t *testing.T) {
	c, err := parse("relay.yaml", []byte(strings.Replace(clustersOnly, "true}}\n", "true}}\n  allowExec: [a, {command: b, args: [c], env: {D: e}}]\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Program{{Command: "a"}, {Command: "b", Args: []string{"c"}, Env: map[string]string{"D": "e"}}}
	if got := c.Clusters[0].AllowExec; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := parse("relay.yaml", text); err != nil || !reflect.DeepEqual(again.Clusters[0].AllowExec, want) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestChangesOfClustersAreNamed(t *testing.T) {
	before, err := parse("relay.yaml", []byte(clustersOnly))
	if err != nil {
		t.Fatal(err)
	}
	next, err := parse("relay.yaml", []byte(strings.Replace(clustersOnly, "true}}\n", "true}}\n  removeAfter: 5h\n- {name: other, secrets: {cluster: {inCluster: true}}}\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := config.Changes(before, next), []string{"clusters[fleet].removeAfter", "clusters: other added"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := config.Diff(before, next); len(got) > 0 {
		t.Errorf("a restart is needed for %q", got)
	}
}

func TestAShownConfigHasNoTextOfPrograms(t *testing.T) {
	c, err := parse("relay.yaml", []byte(`clusters:
- name: fleet
  secrets: {cluster: {inCluster: true}}
  allowExec: [{command: other, args: [--client-secret, canary], env: {AZURE_KEY: canary}}]
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	shown, err := c.Shown()
	if err != nil || strings.Contains(string(shown), "canary") || !strings.Contains(string(shown), "AZURE_KEY:") || !strings.Contains(string(shown), "command: other") {
		t.Errorf("%v\n%s", err, shown)
	}
	if text, err := c.YAML(); err != nil || strings.Count(string(text), "canary") != 2 {
		t.Errorf("the config itself was changed: %v\n%s", err, text)
	}
}

func TestAFoundClusterMayBringServicesUnlessItsImportSaysOtherwise(t *testing.T) {
	with := func(fields string) string {
		return strings.Replace(clustersOnly, "true}}\n", "true}}\n  upstream:\n    import: {"+fields+"}\n", 1)
	}
	for fields, want := range map[string]string{"": "services", "profile: routing": "routing"} {
		c, err := parse("relay.yaml", []byte(with(fields)))
		if err != nil {
			t.Fatal(err)
		}
		if u, err := c.Clusters[0].For("east", "east", &kubernetes.Config{}); err != nil || u.Import.Profile != want {
			t.Errorf("%s: %+v: %v", fields, u.Import, err)
		}
	}
	for fields, want := range map[string]string{
		"kinds: [vs]":             `5: clusters[0].upstream.import.kinds[0]: profile services does not have "vs"`,
		"requireVia: [\"dns:a\"]": "5: clusters[0].upstream.import.requireVia: only a server that is another relay",
	} {
		wantMistakes(t, with(fields), []string{want})
	}
}

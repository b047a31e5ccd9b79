package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

func TestMistakesInTheSectionAreNamedWithTheirLines(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "east")
	if err := os.WriteFile(kubeconfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	many := strings.TrimSuffix(strings.Repeat("a,", 65), ",")
	for section, want := range map[string]string{
		`{}`: "3: upstreams[0].kubernetes.cluster: neither kubeconfig nor inCluster",
		`{cluster: {kubeconfig: east, inCluster: true}}`:                                                            "3: upstreams[0].kubernetes.cluster.inCluster: inCluster and kubeconfig are both set",
		`{cluster: {inCluster: true, context: a}}`:                                                                  "3: upstreams[0].kubernetes.cluster.context: only a kubeconfig has contexts",
		`{cluster: {inCluster: true, allowExec: [a]}}`:                                                              "3: upstreams[0].kubernetes.cluster.allowExec: only a kubeconfig runs programs",
		"{cluster: {kubeconfig: east},\n    namespaces: [A]}":                                                       `4: upstreams[0].kubernetes.namespaces[0]: "A" is not a namespace`,
		`{cluster: {kubeconfig: east}, namespaces: [` + many + `]}`:                                                 "3: upstreams[0].kubernetes.namespaces: 65 namespaces, and each is a watch",
		`{cluster: {kubeconfig: east}, selector: "a=="}`:                                                            "",
		`{cluster: {kubeconfig: east}, selector: "a in"}`:                                                           `3: upstreams[0].kubernetes.selector: "a in" is not a label selector`,
		`{cluster: {kubeconfig: east}, kinds: [Widget]}`:                                                            `3: upstreams[0].kubernetes.kinds[0]: "Widget" is not group/Kind`,
		`{cluster: {kubeconfig: east}, kinds: [a.b/Widget, networking.istio.io/ServiceEntry]}`:                      `3: upstreams[0].kubernetes.kinds[1]: "networking.istio.io/ServiceEntry" is mirrored anyway`,
		`{cluster: {kubeconfig: east, allowExec: [""]}}`:                                                            "3: upstreams[0].kubernetes.cluster.allowExec[0]: empty",
		`{cluster: {kubeconfig: east}, discoverySelectors: ["a in", ""]}`:                                           `3: upstreams[0].kubernetes.discoverySelectors[0]: "a in" is not a label selector`,
		`{cluster: {kubeconfig: east}, discoverySelectors: [""]}`:                                                   "3: upstreams[0].kubernetes.discoverySelectors[0]: it selects every namespace",
		`{cluster: {kubeconfig: east}, discoverySelectors: [a], namespaces: [b]}`:                                   "3: upstreams[0].kubernetes.discoverySelectors: namespaces and discoverySelectors are both set",
		`{cluster: {kubeconfig: east}, ingress: {mode: on}}`:                                                        "3: upstreams[0].kubernetes.ingress.mode",
		`{cluster: {kubeconfig: east}, ingress: {mode: strict, namespace: A}}`:                                      `3: upstreams[0].kubernetes.ingress.namespace: "A" is not a namespace`,
		"{cluster: {kubeconfig: east}, ingress: {mode: strict}}\n  import: {kinds: [gateways.networking.istio.io]}": "3: upstreams[0].kubernetes.ingress.mode: Ingresses become Gateways and VirtualServices, and import leaves out networking.istio.io/VirtualService",
		`{cluster: {kubeconfig: east}, ingress: {mode: strict}, discoverySelectors: [a=b], clusterUID: x}`:          "",
		`{cluster: {kubeconfig: east}, clusterUID: "a b"}`:                                                          "3: upstreams[0].kubernetes.clusterUID: it is not the UID of a cluster",
		`{cluster: {kubeconfig: east}, bogus: a}`:                                                                   "3: upstreams[0].kubernetes.bogus",
	} {
		text := fmt.Sprintf("upstreams:\n- name: east\n  kubernetes: %s\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\n", section)
		_, err := config.Parse(filepath.Join(filepath.Dir(kubeconfig), "relay.yaml"), []byte(text), &Config{})
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", section, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "relay.yaml:"+want)):
			t.Errorf("%s:\n got %v\nwant %s", section, err, want)
		}
	}
}

// kubeconfigOf returns a kubeconfig with other parts.
func kubeconfigOf(cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: %s}]
users: [{name: u, user: %s}]
contexts: [{name: east, context: {cluster: c, user: u}}, {name: lost, context: {cluster: x, user: u}}, {name: nobody, context: {cluster: c, user: x}}]
current-context: east
`, cluster, user)
}

func TestForbiddenPartsOfAKubeconfigAreRefused_K8(t *testing.T) {
	const good, token = `{server: "https://127.0.0.1:1"}`, `{token: t}`
	const exec = `{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/login, interactiveMode: IfAvailable}}`
	for name, tc := range map[string]struct {
		text    string
		cluster config.Cluster
		want    string
	}{
		"all is well":            {kubeconfigOf(good, token), config.Cluster{}, ""},
		"not YAML":               {"a: [", config.Cluster{}, "is not a kubeconfig"},
		"too large":              {strings.Repeat("#", 1<<20+1), config.Cluster{}, "larger than 1024 KiB"},
		"no such context":        {kubeconfigOf(good, token), config.Cluster{Context: "west"}, `context "west" does not exist: there are east, lost, nobody`},
		"no current context":     {strings.Replace(kubeconfigOf(good, token), "current-context: east", "", 1), config.Cluster{}, "there is no current-context: set context to one of east, lost, nobody"},
		"no such cluster":        {kubeconfigOf(good, token), config.Cluster{Context: "lost"}, `the cluster "x", which does not exist`},
		"no such user":           {kubeconfigOf(good, token), config.Cluster{Context: "nobody"}, `the user "x", which does not exist`},
		"in the clear":           {kubeconfigOf(`{server: "http://127.0.0.1:1"}`, token), config.Cluster{}, "does not begin with https://"},
		"a password in the URL":  {kubeconfigOf(`{server: "https://user:hunter2@127.0.0.1:1"}`, token), config.Cluster{}, `cluster "c": the server must be a URL without user and password`},
		"not verified":           {kubeconfigOf(`{server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}`, token), config.Cluster{}, "insecure-skip-tls-verify is not accepted: give certificate-authority"},
		"a CA that is not there": {kubeconfigOf(`{server: "https://127.0.0.1:1", certificate-authority: no.crt}`, token), config.Cluster{}, "no.crt"},
		"an auth-provider":       {kubeconfigOf(good, `{auth-provider: {name: gcp}}`), config.Cluster{}, `the auth-provider "gcp" is not accepted`},
		"a program":              {kubeconfigOf(good, exec), config.Cluster{}, `runs the program "/bin/login": name it in allowExec`},
		"another program":        {kubeconfigOf(good, exec), config.Cluster{AllowExec: []string{"login"}}, `runs the program "/bin/login": name it in allowExec`},
		"an allowed program":     {kubeconfigOf(good, exec), config.Cluster{AllowExec: []string{"/bin/login"}}, ""},
		"a token that is gone":   {kubeconfigOf(good, `{tokenFile: gone}`), config.Cluster{}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cluster.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(tc.cluster.Kubeconfig, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := (&apiserver.Credentials{Cluster: tc.cluster}).Check()
			switch {
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %s", err, tc.want)
			case tc.want == "" && err != nil:
				t.Error(err)
			}
			// "relay validate" tells the same, with the line.
			file := filepath.Join(filepath.Dir(tc.cluster.Kubeconfig), "relay.yaml")
			text := fmt.Sprintf("upstreams:\n- {name: east, kubernetes: {cluster: {kubeconfig: kubeconfig, context: %q, allowExec: [%s]}}}\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\n", tc.cluster.Context, strings.Join(tc.cluster.AllowExec, ","))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = config.Check(file, &Config{})
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "relay.yaml:2: upstreams[0].kubernetes.cluster.kubeconfig: ")) {
				t.Errorf("validate: got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestOutsideOfAClusterInClusterIsAnError(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if err := (&apiserver.Credentials{Cluster: config.Cluster{InCluster: true}}).Check(); err == nil || !strings.Contains(err.Error(), "the relay does not run in a pod") {
		t.Error(err)
	}
}

func TestKindsOfTheSectionAreFollowedOnce(t *testing.T) {
	u := config.Upstream{Name: "east", Source: &Config{Kinds: []string{"example.com/Widget", "example.com/Widget"}}}
	s := New(u, envOf())
	n := 0
	for _, k := range s.kinds {
		if k.Group == "example.com" {
			n++
		}
	}
	if n != 1 || slices.Contains(s.kinds, mirror.MeshConfig) {
		t.Errorf("kinds: %v", s.kinds)
	}
}

func configOf() config.Upstream {
	return config.Upstream{Name: "east", Source: &Config{}}
}

// TestIngressesOfFoundClustersNeedAProfileThatHasWhatTheyBecome: services, the default, does not.
func TestIngressesOfFoundClustersNeedAProfileThatHasWhatTheyBecome(t *testing.T) {
	for rules, fits := range map[string]bool{
		"": false, "import: {profile: routing}, ": true,
	} {
		text := "clusters:\n- name: fleet\n  secrets: {cluster: {inCluster: true}}\n  upstream: {" + rules + "kubernetes: {ingress: {mode: strict}}}\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\n"
		_, err := config.Parse("relay.yaml", []byte(text), &Config{})
		if fits && err != nil || !fits && (err == nil || !strings.Contains(err.Error(), "clusters[0].upstream.kubernetes.ingress.mode: Ingresses become Gateways and VirtualServices, and import leaves out")) {
			t.Errorf("%q: %v", rules, err)
		}
	}
}

// Package deploy_test checks that what is deployed is what the relay takes.
package deploy_test

import (
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"meshrelay/config"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// manifest is what these tests look at of a Kubernetes object.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       struct {
		Ports []struct { // of the Service
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Spec podSpec
		}
		Ingress []struct { // of the NetworkPolicy
			Ports []struct{ Port int }
		}
	}
}

type podSpec struct {
	TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
	Containers                    []struct {
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		ReadinessProbe probe `yaml:"readinessProbe"`
		LivenessProbe  probe `yaml:"livenessProbe"`
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	file, err := parser.ParseBytes(read(t, "kubernetes/relay.yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]manifest{}
	for _, doc := range file.Docs {
		var m manifest
		if err := yaml.NodeToValue(doc.Body, &m); err != nil {
			t.Fatal(err)
		}
		if m.APIVersion == "" || m.Metadata.Name != "relay" {
			t.Errorf("%s: apiVersion %q, name %q", m.Kind, m.APIVersion, m.Metadata.Name)
		}
		if _, twice := byKind[m.Kind]; twice {
			t.Errorf("two of kind %s", m.Kind)
		}
		byKind[m.Kind] = m
	}
	return byKind
}

func TestEveryKindIsThereOnce(t *testing.T) {
	got := slices.Sorted(maps.Keys(manifests(t)))
	want := []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}
	if !slices.Equal(got, want) {
		t.Errorf("kinds %v, want %v", got, want)
	}
}

// relayConfig is the config of the ConfigMap.
func relayConfig(t *testing.T) *config.Config {
	t.Helper()
	cfg, err := config.Parse("relay.yaml", []byte(manifests(t)["ConfigMap"].Data["relay.yaml"]))
	if err != nil {
		t.Fatalf("the config in the ConfigMap: %v", err)
	}
	return cfg
}

func port(t *testing.T, address string) int {
	t.Helper()
	host, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		t.Errorf("%s can not be reached from outside of the pod", address)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPortsAreThoseOfTheConfig(t *testing.T) {
	cfg, all := relayConfig(t), manifests(t)
	c := all["Deployment"].Spec.Template.Spec.Containers[0]
	named := map[string]int{}
	for _, p := range c.Ports {
		named[p.Name] = p.ContainerPort
	}
	xds, http := port(t, cfg.Downstream.Listeners[0].Address), port(t, cfg.Admin.Address)
	if got := c.ReadinessProbe.HTTPGet; got.Path != "/ready" || named[got.Port] != http {
		t.Errorf("readiness probe %v, the admin port is %d", got, http)
	}
	if got := c.LivenessProbe.HTTPGet; got.Path != "/healthz" || named[got.Port] != http {
		t.Errorf("liveness probe %v, the admin port is %d", got, http)
	}
	if got := all["Service"].Spec.Ports; len(got) != 1 || named[got[0].TargetPort] != xds {
		t.Errorf("the Service leads to %v, the listener's port is %d", got, xds)
	}
	var open []int
	for _, rule := range all["NetworkPolicy"].Spec.Ingress {
		for _, p := range rule.Ports {
			open = append(open, p.Port)
		}
	}
	if !slices.Equal(open, []int{xds, http}) {
		t.Errorf("the NetworkPolicy opens %v, want %d and %d", open, xds, http)
	}
}

// TestThereIsTimeToDrain: who is killed while draining cuts its clients off.
func TestThereIsTimeToDrain(t *testing.T) {
	drain := relayConfig(t).Downstream.DrainTimeout.D()
	given := manifests(t)["Deployment"].Spec.Template.Spec.TerminationGracePeriodSeconds
	if d := time.Duration(given) * time.Second; d <= drain {
		t.Errorf("Kubernetes waits %v, draining takes up to %v", d, drain)
	}
	m := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindSubmatch(read(t, "systemd/relay.service"))
	if m == nil {
		t.Fatal("the unit has no TimeoutStopSec in seconds")
	}
	if d, _ := time.ParseDuration(string(m[1]) + "s"); d <= drain {
		t.Errorf("systemd waits %v, draining takes up to %v", d, drain)
	}
}

func TestTheReadmesConfigIsValid(t *testing.T) {
	m := regexp.MustCompile("(?s)```yaml\n# relay.yaml\n(.*?)```").FindSubmatch(read(t, "../README.md"))
	if m == nil {
		t.Fatal("the README shows no config")
	}
	if _, err := config.Parse("relay.yaml", m[1]); err != nil {
		t.Error(err)
	}
}

// TestAlertsNameMetricsThatExist: an alert on a metric or a state that does not exist
// never fires. (A test in docs holds docs/metrics.md to the code.)
func TestAlertsNameMetricsThatExist(t *testing.T) {
	doc := string(read(t, "../docs/metrics.md"))
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	metric := regexp.MustCompile(`relay_[a-z_]+`)
	label := regexp.MustCompile(`([a-z]+)="([a-z]+)"`)
	alerts := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			alerts++
			names := metric.FindAllString(r.Expr, -1)
			if len(names) == 0 || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s: metrics %q, labels %v, annotations %v", r.Alert, names, r.Labels, r.Annotations)
			}
			for _, name := range names {
				_, row, ok := strings.Cut(doc, "| `"+strings.TrimSuffix(name, "_bucket")+"` |")
				if !ok {
					t.Errorf("%s: no metric %s", r.Alert, name)
					continue
				}
				row, _, _ = strings.Cut(row, "\n")
				for _, l := range label.FindAllStringSubmatch(r.Expr, -1) {
					if !strings.Contains(row, l[1]) || !strings.Contains(row, l[2]) {
						t.Errorf("%s: %s has no %s", r.Alert, name, l[0])
					}
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("no alerts")
	}
}

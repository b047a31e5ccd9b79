// Package deploy_test checks that what is deployed is what the relay takes.
package deploy_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

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

func TestManifestsParseAndTheConfigIsValid(t *testing.T) {
	file, err := parser.ParseBytes(read(t, "kubernetes/relay.yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, doc := range file.Docs {
		var o struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   struct{ Name string }
			Data       map[string]string
		}
		if err := yaml.NodeToValue(doc.Body, &o); err != nil {
			t.Fatal(err)
		}
		if o.APIVersion == "" || o.Metadata.Name != "relay" {
			t.Errorf("%s: apiVersion %q, name %q", o.Kind, o.APIVersion, o.Metadata.Name)
		}
		kinds[o.Kind]++
		if o.Kind == "ConfigMap" {
			if _, err := config.Parse("relay.yaml", []byte(o.Data["relay.yaml"])); err != nil {
				t.Errorf("the config in the ConfigMap: %v", err)
			}
		}
	}
	for _, k := range []string{"ServiceAccount", "ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} {
		if kinds[k] != 1 {
			t.Errorf("%d of kind %s", kinds[k], k)
		}
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

func TestAlertsNameMetricsThatExist(t *testing.T) {
	doc := string(read(t, "../docs/metrics.md"))
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			for _, metric := range regexp.MustCompile(`relay_[a-z_]+`).FindAllString(r.Expr, -1) {
				if !strings.Contains(doc, "`"+strings.TrimSuffix(metric, "_bucket")+"`") {
					t.Errorf("%s: no metric %s", r.Alert, metric)
				}
			}
		}
	}
	if n == 0 {
		t.Error("no alerts")
	}
}

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// alert is an alerting rule of deploy/prometheus/alerts.yaml.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	b, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.UnmarshalStrict(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("no alerts")
	}
	return all
}

// metricLabels returns the labels of each metric, as docs/metrics.md lists them. (A test in
// docs holds that to the code.)
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{"process_cpu_seconds_total": {"job", "instance"}} // of every process
	for _, m := range regexp.MustCompile("(?m)^\\| `(relay_[a-z_]+)` \\| (\\w+) \\|([^|]*)\\|").FindAllStringSubmatch(string(b), -1) {
		name, labels := m[1], regexp.MustCompile(`[a-z]+`).FindAllString(m[3], -1)
		if m[2] == "histogram" {
			name, labels = name+"_bucket", append(labels, "le")
		}
		all[name] = labels
	}
	if len(all) == 0 {
		t.Fatal("no metrics")
	}
	return all
}

// aggregation returns the labels that are left of a selector: those of the outermost
// aggregation around it. absent leaves none.
func aggregation(path []parser.Node) (by []string, aggregated bool) {
	for _, n := range path {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			if !n.Without {
				return n.Grouping, true
			}
		case *parser.Call:
			if n.Func.Name == "absent" {
				return nil, true
			}
		}
	}
	return nil, false
}

// mistakes returns what is wrong with an expression of an alert, and the labels that its
// alerts have.
func mistakes(expr string, metrics map[string][]string) (wrong, left []string) {
	e, err := parser.ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}, nil
	}
	selectors := 0
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		if c, is := n.(*parser.Call); is && c.Func.Name == "label_replace" {
			left = append(left, c.Args[1].(*parser.StringLiteral).Val)
		}
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selectors++
		have, exists := metrics[s.Name]
		if !exists {
			wrong = append(wrong, "no metric "+s.Name)
			return nil
		}
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName && !slices.Contains(have, m.Name) {
				wrong = append(wrong, fmt.Sprintf("%s has no label %s", s.Name, m.Name))
			}
		}
		by, aggregated := aggregation(path)
		if !aggregated {
			wrong = append(wrong, s.Name+" is not aggregated: there would be an alert for each replica")
		}
		if slices.Contains(have, "upstream") && !slices.Contains(by, "upstream") {
			wrong = append(wrong, s.Name+" is not aggregated by upstream")
		}
		for _, l := range by {
			if !slices.Contains(have, l) {
				wrong = append(wrong, fmt.Sprintf("%s has no label %s to aggregate by", s.Name, l))
			}
		}
		left = append(left, by...)
		return nil
	})
	if selectors == 0 {
		wrong = append(wrong, "no metric at all")
	}
	return wrong, left
}

// TestAlertsTakeAllReplicasTogether parses the expressions as Prometheus does: every metric
// and label exists, and an alert is for an upstream, never for a replica.
func TestAlertsTakeAllReplicasTogether(t *testing.T) {
	t.Parallel()
	metrics := metricLabels(t)
	for _, a := range readAlerts(t) {
		t.Run(a.Alert, func(t *testing.T) {
			wrong, left := mistakes(a.Expr, metrics)
			for _, w := range wrong {
				t.Error(w)
			}
			for name, text := range a.Annotations {
				out, queries, err := expand(text)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
					if !slices.Contains(left, label[1]) {
						t.Errorf("%s: %s names the label %s, the alert has %v", name, text, label[1], left)
					}
				}
				for _, q := range queries {
					if !strings.Contains(out, " relay-1") {
						t.Errorf("%s: %q does not name the replica", name, out)
					}
					// These are for the replicas one by one.
					if wrong, _ := mistakes("absent("+q+")", metrics); slices.ContainsFunc(wrong, func(w string) bool { return !strings.Contains(w, "aggregated by") }) {
						t.Errorf("%s: %s: %v", name, q, wrong)
					}
				}
			}
		})
	}
}

// sample is what the function query returns to a template.
type sample struct {
	Labels map[string]string
	Value  float64
}

// expand runs the template of an annotation for an alert on an upstream, with what
// Prometheus puts in front of it. It returns the queries that the template makes, which one
// replica answers.
func expand(text string) (out string, queries []string, err error) {
	tmpl, err := template.New("").Option("missingkey=zero").Funcs(template.FuncMap{
		"query": func(q string) []sample {
			queries = append(queries, q)
			return []sample{{Labels: map[string]string{"instance": "relay-1", "upstream": "east"}, Value: 1}}
		},
	}).Parse("{{$labels := .Labels}}{{$value := .Value}}" + text)
	if err != nil {
		return "", nil, err
	}
	var b bytes.Buffer
	err = tmpl.Execute(&b, sample{Labels: map[string]string{"upstream": "east", "reason": "rate", "kind": "Gateway"}, Value: 3})
	return b.String(), queries, err
}

// TestWrongAlertsAreFound: the checks above notice each kind of mistake.
func TestWrongAlertsAreFound(t *testing.T) {
	t.Parallel()
	metrics := metricLabels(t)
	for expr, want := range map[string]string{
		"relay_upstream_stale == 1":                         "relay_upstream_stale is not aggregated: there would be an alert for each replica",
		"max(relay_upstream_stale) == 1":                    "relay_upstream_stale is not aggregated by upstream",
		"max without (pod) (relay_upstream_stale) == 1":     "relay_upstream_stale is not aggregated: there would be an alert for each replica",
		"max by (upstream, pod) (relay_upstream_stale) > 0": "relay_upstream_stale has no label pod to aggregate by",
		"max by (upstream) (relay_upstream_tired) > 0":      "no metric relay_upstream_tired",
		`min(relay_state_healthy{disk="a"}) == 0`:           "relay_state_healthy has no label disk",
		"max by (upstream (relay_upstream_stale) == 1":      "unexpected",
		"vector(1) > 0": "no metric at all",
	} {
		wrong, _ := mistakes(expr, metrics)
		if !slices.ContainsFunc(wrong, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("%s: found %q, want %q", expr, wrong, want)
		}
	}
}

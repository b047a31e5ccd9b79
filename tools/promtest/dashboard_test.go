package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// TestTheDashboardIsWritten: the file is what "make dashboard" writes.
func TestTheDashboardIsWritten(t *testing.T) {
	want, err := marshal(dashboard())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is old: run make dashboard", file)
	}
}

// metricLabels returns the labels of each metric in docs/metrics.md, and of those that rules record.
func metricLabels(t *testing.T) map[string][]string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(relay_[a-z_]+)` \\| (\\w+) \\|([^|]*)\\|").FindAllStringSubmatch(string(doc), -1) {
		name, has := m[1], regexp.MustCompile(`[a-z]+`).FindAllString(m[3], -1)
		if m[2] == "histogram" {
			name, has = name+"_bucket", append(has, "le")
		}
		all[name] = append(has, "job", "instance")
	}
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(string(rules), -1) {
		all[m[1]] = []string{"job", "instance"}
	}
	return all
}

// TestExpressionsOfTheDashboardParse as Prometheus does it. The labels that they and their legends name exist, and
// each selector selects jobs and instances.
func TestExpressionsOfTheDashboardParse(t *testing.T) {
	metrics := metricLabels(t)
	p := parser.NewParser(parser.Options{})
	n := 0
	for _, one := range dashboard().Panels {
		for _, q := range one.Targets {
			n++
			e, err := p.ParseExpr(strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"))
			if err != nil {
				t.Errorf("%s: %s: %v", one.Title, q.Expr, err)
				continue
			}
			if e.Type() != parser.ValueTypeVector {
				t.Errorf("%s: %s is a %s", one.Title, q.Expr, e.Type())
			}
			var left []string // labels of the result, at most
			aggregated := false
			parser.Inspect(e, func(node parser.Node, path []parser.Node) error {
				switch node := node.(type) {
				case *parser.AggregateExpr:
					if !slices.ContainsFunc(path, func(outer parser.Node) bool { _, is := outer.(*parser.AggregateExpr); return is }) {
						aggregated = true
						left = append(left, node.Grouping...)
					}
				case *parser.VectorSelector:
					has, own := metrics[node.Name]
					if own && !aggregated {
						left = append(left, has...)
					}
					if !own && !strings.HasPrefix(node.Name, "go_") && !strings.HasPrefix(node.Name, "process_") {
						t.Errorf("%s: no metric %s", one.Title, node.Name)
					}
					named := map[string]bool{}
					for _, m := range node.LabelMatchers {
						named[m.Name] = true
						if own && m.Name != model.MetricNameLabel && !slices.Contains(has, m.Name) {
							t.Errorf("%s: %s has no label %s", one.Title, node.Name, m.Name)
						}
					}
					if !named["job"] || !named["instance"] {
						t.Errorf("%s: %s selects no job or no instance", one.Title, node.Name)
					}
					if !own {
						left = append(left, "job", "instance")
					}
					for _, outer := range path {
						if a, is := outer.(*parser.AggregateExpr); is && own {
							for _, label := range a.Grouping {
								if !slices.Contains(has, label) {
									t.Errorf("%s: %s has no label %s to group by", one.Title, node.Name, label)
								}
							}
						}
					}
				}
				return nil
			})
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				if !slices.Contains(left, m[1]) {
					t.Errorf("%s: the legend names %s, the series have %q: %s", one.Title, m[1], left, q.Expr)
				}
			}
		}
	}
	if n < 60 {
		t.Errorf("%d expressions", n)
	}
}

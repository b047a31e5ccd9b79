package deploy_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// panel is a panel of a Grafana dashboard, as far as the tests look at it.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ Type, UID string }
	Targets                  []struct{ Expr, RefID, LegendFormat string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
}

func readDashboard(t *testing.T) (d struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type, AllValue string }
	}
	Panels []panel
}) {
	t.Helper()
	if err := json.Unmarshal(read(t, "grafana/relay.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestTheDashboardHasTheRowsAndVariables that its readers look for. (A test in tools/promtest parses the expressions.)
func TestTheDashboardHasTheRowsAndVariables(t *testing.T) {
	d := readDashboard(t)
	var rows, variables []string
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
		}
	}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		// Without a value of its own, "All" is every relay. With .* it is every process that Prometheus scrapes.
		if v.AllValue != "" {
			t.Errorf("all of %s is %s", v.Name, v.AllValue)
		}
	}
	if want := []string{"Health", "Upstreams", "What is served", "Clients", "Pushes and acknowledgements", "Guard", "Sinks", "Replicas", "Disk", "Process"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q", rows)
	}
	if want := []string{"datasource", "job", "instance"}; !slices.Equal(variables, want) {
		t.Errorf("variables %q", variables)
	}
}

// TestEachPanelHasAUnitAndADescription, a place of its own, and the datasource of the variable.
func TestEachPanelHasAUnitAndADescription(t *testing.T) {
	ids, cells := map[int]bool{}, map[string]string{}
	for _, p := range readDashboard(t).Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				cell := fmt.Sprint(x, " ", y)
				if other, taken := cells[cell]; taken || x >= 24 {
					t.Fatalf("%s is over %s or the edge", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.FieldConfig.Defaults.Unit == "" || p.Description == "" || p.Title == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s has unit %q, description %q, %d expressions, datasource %q", p.Title, p.FieldConfig.Defaults.Unit, p.Description, len(p.Targets), p.Datasource.UID)
		}
	}
}

// exported returns the metrics that a relay exports: those of docs/metrics.md, of the Go runtime and of the process.
// (A test in docs holds docs/metrics.md to the code.) Histograms have the suffixes of their series.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(relay_[a-z_]+)` \\| (\\w+) ").FindAllStringSubmatch(string(read(t, "../docs/metrics.md")), -1) {
		if m[2] == "histogram" {
			all[m[1]+"_bucket"], all[m[1]+"_sum"], all[m[1]+"_count"] = true, true, true
			continue
		}
		all[m[1]] = true
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		all[f.GetName()] = true
	}
	return all
}

// recorded returns the recording rules: expressions by the name of the metric.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all[r.Record] = r.Expr
		}
	}
	return all
}

// metricName matches names of metrics in an expression, also those that rules record.
var metricName = regexp.MustCompile(`\b(?:\w+:)?(?:relay|go|process)_\w+(?::\w+)?`)

// TestPanelsAndRulesNameMetricsThatExist: and the dashboard shows everything that is recorded.
func TestPanelsAndRulesNameMetricsThatExist(t *testing.T) {
	exist, rules, shown, n := exported(t), recorded(t), map[string]bool{}, 0
	for name, expr := range rules {
		for _, metric := range metricName.FindAllString(expr, -1) {
			shown[metric] = true // a rule may use another one
			if !exist[metric] && rules[metric] == "" {
				t.Errorf("%s is recorded from %s, which does not exist", name, metric)
			}
		}
	}
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			names := metricName.FindAllString(q.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s names no metric: %s", p.Title, q.Expr)
			}
			for _, metric := range names {
				n++
				shown[metric] = true
				if !exist[metric] && rules[metric] == "" {
					t.Errorf("%s shows %s, which does not exist", p.Title, metric)
				}
			}
			if !strings.Contains(q.Expr, `{job=~"$job", instance=~"$instance"`) {
				t.Errorf("%s is not of the selected relays: %s", p.Title, q.Expr)
			}
		}
	}
	for name := range rules {
		if !shown[name] {
			t.Errorf("nothing shows %s", name)
		}
	}
	if n < 60 {
		t.Errorf("%d metrics", n)
	}
}

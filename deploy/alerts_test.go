package deploy_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"meshrelay/docs"
)

// alerts are the alerting rules.
type alerts struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func readAlerts(t *testing.T) (rules alerts) {
	t.Helper()
	if err := yaml.Unmarshal(read(t, "prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestWhatNeedsAPersonHasAnAlert: each of these stays as it is until somebody does something,
// or has taken something from clients.
func TestWhatNeedsAPersonHasAnAlert(t *testing.T) {
	rules := readAlerts(t)
	for _, expr := range []string{
		`max by (upstream, state) (relay_upstream_state{state="denied"}) == 1`, `min by (upstream) (relay_upstream_state{state="synced"}) == 0`,
		"max by (upstream) (relay_upstream_held_deletions) > 0", "max by (upstream) (last_over_time(relay_upstream_frozen[15m])) == 1",
		"max by (upstream) (relay_upstream_expired_resources) > 0", "max by (upstream) (relay_upstream_over_limit_resources) > 0",
		"max by (upstream) (relay_upstream_refused_resources) > 0",
		"min(relay_state_healthy) == 0", "min(relay_state_journal_healthy) == 0", "sum(relay_state_set_aside_files) > 0",
		`max by (clusters, state) (relay_clusters{state=~"held|orphaned|refused"}) > 0`, "min by (clusters) (relay_clusters_readable) == 0",
		"min(relay_config_last_reload_successful) == 0", "absent(relay_build_info)",
		"min(relay_orders_reachable) == 0 or max(relay_orders_not_in_force) > 0",
		"max by (sink) (relay_sink_held_deletions) > 0 unless max by (sink) (relay_sink_suspended) == 1",
		"max by (sink) (relay_sink_conflicts + relay_sink_foreign + relay_sink_refused) > 0 unless max by (sink) (relay_sink_suspended) == 1",
		"sum by (sink) (increase(relay_sink_drift_total[15m])) > 0",
	} {
		found := 0
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				found += strings.Count(strings.Join(strings.Fields(r.Expr), " "), expr)
			}
		}
		if found != 1 {
			t.Errorf("%d alerts on %s", found, expr)
		}
	}
}

// TestAlertsNameMetricsThatExist: an alert on a metric or a state that does not exist
// never fires. (A test in docs holds docs/metrics.md to the code.)
func TestAlertsNameMetricsThatExist(t *testing.T) {
	doc := string(read(t, "../docs/metrics.md"))
	rules := readAlerts(t)
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
				if labels := strings.Split(row, "|")[1]; strings.Contains(labels, "upstream") && !strings.Contains(r.Expr, " by (upstream) (") {
					t.Errorf("%s: not by upstream: %s", r.Alert, r.Expr)
				}
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

// TestThereAreFewAlerts: one for each cause that a person can act on. Whoever is called by many learns to look at none.
func TestThereAreFewAlerts(t *testing.T) {
	n := 0
	for _, g := range readAlerts(t).Groups {
		n += len(g.Rules)
	}
	if most := 22; n > most {
		t.Errorf("%d alerts, want at most %d: give the alert of the same cause a label that tells which", n, most)
	}
}

// TestEachAlertHasARunbook of its name, which its annotation names, and there is no other runbook.
func TestEachAlertHasARunbook(t *testing.T) {
	var names []string
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
			if want := "relay help runbook " + r.Alert; r.Annotations["runbook"] != want {
				t.Errorf("%s: the annotation runbook is %q, want %q", r.Alert, r.Annotations["runbook"], want)
			}
		}
	}
	slices.Sort(names)
	if got := docs.Runbooks(); !slices.Equal(got, names) {
		t.Errorf("the runbooks are\n%q, the alerts\n%q", got, names)
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	alertsFile = "../../deploy/prometheus/alerts.yaml"
	rulesFile  = "../../deploy/prometheus/rules.yaml"
)

// world is a Prometheus with rules and series, one sample of each per minute.
type world struct {
	t      *testing.T
	loader *promqltest.LazyLoader
	groups map[string]*rules.Group
}

func newWorld(t *testing.T, series, file string) *world {
	t.Helper()
	var load strings.Builder
	load.WriteString("load 1m\n")
	for line := range strings.Lines(series) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(&load, "  %s\n", line)
		}
	}
	p := parser.NewParser(parser.Options{})
	loader, err := promqltest.NewLazyLoader(load.String(), promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true, Parser: p})
	if err != nil {
		t.Fatalf("%v\n%s", err, load.String())
	}
	t.Cleanup(func() {
		if err := loader.Close(); err != nil {
			t.Error(err)
		}
	})
	loader.SubqueryInterval = time.Minute
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(loader.QueryEngine(), loader.Storage()), AppendableV2: loader.Storage(),
		Context: context.Background(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Logger: slog.New(slog.DiscardHandler), Parser: p,
	})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, file)
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 || len(groups) == 0 {
		t.Fatalf("%s has %d groups", file, len(groups))
	}
	return &world{t, loader, groups}
}

// each evaluates all rules in each minute, and calls f after that.
func (w *world) each(minutes int, f func(minute int)) {
	w.t.Helper()
	for minute := range minutes + 1 {
		at := time.Unix(int64(minute)*60, 0).UTC()
		w.loader.WithSamplesTill(at, func(err error) {
			if err != nil {
				w.t.Fatal(err)
			}
			for _, g := range w.groups {
				g.Eval(w.loader.Context(), at)
				for _, r := range g.Rules() {
					if err := r.LastError(); err != nil {
						w.t.Fatalf("%s at minute %d: %v", r.Name(), minute, err)
					}
				}
			}
		})
		f(minute)
	}
}

// alerts returns the alerting rules.
func (w *world) alerts() (all []*rules.AlertingRule) {
	for _, g := range w.groups {
		for _, r := range g.Rules() {
			if a, is := r.(*rules.AlertingRule); is {
				all = append(all, a)
			}
		}
	}
	return all
}

func (w *world) alert(name string) *rules.AlertingRule {
	w.t.Helper()
	for _, a := range w.alerts() {
		if a.Name() == name {
			return a
		}
	}
	w.t.Fatalf("no alert %s", name)
	return nil
}

// instances returns the alerts of a rule in a state, as their labels without the name.
func instances(a *rules.AlertingRule, state rules.AlertState) (all []string) {
	for _, one := range a.ActiveAlerts() {
		if one.State == state {
			all = append(all, labels.NewBuilder(one.Labels).Del(labels.AlertName).Labels().String())
		}
	}
	slices.Sort(all)
	return all
}

// TestEachAlertFires on the series that it is for: it is pending from the minute on in which its condition begins, and
// fires when that has lasted for its time.
func TestEachAlertFires(t *testing.T) {
	t.Parallel()
	for _, tc := range cases {
		t.Run(tc.alert+tc.labels, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tc.bad, alertsFile)
			rule := w.alert(tc.alert)
			minutes := int(rule.HoldDuration() / time.Minute)
			begins, fires := -1, -1
			w.each(tc.begins+minutes+1, func(minute int) {
				if begins < 0 && len(rule.ActiveAlerts()) > 0 {
					begins = minute
				}
				if got := instances(rule, rules.StateFiring); fires < 0 && len(got) > 0 {
					fires = minute
					if want := []string{tc.labels}; !slices.Equal(got, want) {
						t.Errorf("fires with %q, want %q", got, want)
					}
				}
			})
			if begins != tc.begins || fires != begins+minutes {
				t.Errorf("the condition begins in minute %d and the alert fires in %d; want %d and %d", begins, fires, tc.begins, tc.begins+minutes)
			}
			for _, one := range rule.ActiveAlerts() {
				one.Annotations.Range(func(l labels.Label) {
					if strings.Contains(l.Value, "<error") || strings.Contains(l.Value, "<no value>") || strings.Contains(l.Value, "{{") {
						t.Errorf("%s: %s", l.Name, l.Value)
					}
				})
				if got := one.Annotations.Get("runbook"); got != "relay help runbook "+tc.alert {
					t.Errorf("runbook: %q", got)
				}
			}
		})
	}
}

// TestQuietSeriesFireNoAlert: what is nearly bad, or bad for too short a time.
func TestQuietSeriesFireNoAlert(t *testing.T) {
	t.Parallel()
	for _, tc := range cases {
		t.Run(tc.alert+tc.labels, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tc.quiet, alertsFile)
			rule := w.alert(tc.alert)
			w.each(tc.begins+2*int(rule.HoldDuration()/time.Minute)+30, func(minute int) {
				if got := instances(rule, rules.StateFiring); len(got) > 0 {
					t.Fatalf("fires in minute %d: %q", minute, got)
				}
			})
		})
	}
}

// TestHealthyRelaysFireNoAlert: two replicas with clients, changes, and certificates of all ages.
func TestHealthyRelaysFireNoAlert(t *testing.T) {
	t.Parallel()
	w := newWorld(t, healthy, alertsFile)
	w.each(180, func(minute int) {
		for _, a := range w.alerts() {
			if got := instances(a, rules.StateFiring); len(got) > 0 {
				t.Fatalf("%s fires in minute %d: %q", a.Name(), minute, got)
			}
		}
	})
}

// TestEachAlertHasACase that makes it fire, with series that do not, and each of its causes has one.
func TestEachAlertHasACase(t *testing.T) {
	t.Parallel()
	var names, tested []string
	cause := regexp.MustCompile(`"(?:cause|state)", "(\w+)"|state=~"([\w|]+)"|state="(denied)"`)
	for _, a := range newWorld(t, "relay_build_info 1", alertsFile).alerts() {
		names = append(names, a.Name())
		for _, m := range cause.FindAllStringSubmatch(a.Query().String(), -1) {
			for one := range strings.SplitSeq(m[1]+m[2]+m[3], "|") {
				if !slices.ContainsFunc(cases, func(tc alertCase) bool {
					return tc.alert == a.Name() && strings.Contains(tc.labels, `"`+one+`"`)
				}) {
					t.Errorf("%s: the cause %s has no case", a.Name(), one)
				}
			}
		}
	}
	for _, tc := range cases {
		tested = append(tested, tc.alert)
		if tc.bad == "" || tc.quiet == "" {
			t.Errorf("%s: a case needs bad and quiet series", tc.alert)
		}
	}
	slices.Sort(names)
	slices.Sort(tested)
	tested = slices.Compact(tested)
	if !slices.Equal(names, tested) {
		t.Errorf("the alerts are\n%q, the cases\n%q", names, tested)
	}
}

// TestRulesRecordWhatTheDashboardShows: of histograms, counters and gauges, and nothing of a relay that pushes nothing.
func TestRulesRecordWhatTheDashboardShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
		relay_downstream_push_latency_seconds_bucket{job="relay",instance="a",le="0.1"} 0+60x30
		relay_downstream_push_latency_seconds_bucket{job="relay",instance="a",le="1"}   0+120x30
		relay_downstream_push_latency_seconds_bucket{job="relay",instance="a",le="+Inf"} 0+120x30
		relay_downstream_ack_latency_seconds_bucket{job="relay",instance="a",le="1"}    0+60x30
		relay_downstream_ack_latency_seconds_bucket{job="relay",instance="a",le="2"}    0+120x30
		relay_downstream_ack_latency_seconds_bucket{job="relay",instance="a",le="+Inf"} 0+120x30
		relay_push_busy_seconds_total{job="relay",instance="a"} 0+60x30
		go_sched_gomaxprocs_threads{job="relay",instance="a"} 4x30
		relay_downstream_acks_total{job="relay",instance="a",kind="Gateway"}  0+90x30
		relay_downstream_nacks_total{job="relay",instance="a",kind="Gateway"} 0+30x30
		relay_downstream_push_latency_seconds_bucket{job="relay",instance="quiet",le="1"}    7x30
		relay_downstream_push_latency_seconds_bucket{job="relay",instance="quiet",le="+Inf"} 7x30
		relay_downstream_ack_latency_seconds_bucket{job="relay",instance="quiet",le="1"}     7x30
		relay_downstream_ack_latency_seconds_bucket{job="relay",instance="quiet",le="+Inf"}  7x30
		relay_downstream_acks_total{job="relay",instance="quiet",kind="Gateway"}  7x30
		relay_downstream_nacks_total{job="relay",instance="quiet",kind="Gateway"} 0x30
	`, rulesFile)
	w.each(30, func(int) {})
	for name, want := range map[string]float64{
		"instance:relay_push_latency_seconds:p50_rate5m": 0.1,
		"instance:relay_push_latency_seconds:p99_rate5m": 0.982,
		"instance:relay_ack_latency_seconds:p50_rate5m":  1,
		"instance:relay_ack_latency_seconds:p99_rate5m":  1.98,
		"instance:relay_convergence_seconds:p99_rate5m":  2.962,
		"instance:relay_push_busy:ratio_rate5m":          0.25,
		"instance:relay_nacks:ratio_rate5m":              0.25,
	} {
		q, err := w.loader.QueryEngine().NewInstantQuery(context.Background(), w.loader.Storage(), nil, name, time.Unix(1800, 0))
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Exec(context.Background()).Vector()
		if err != nil || len(got) != 1 {
			t.Errorf("%s: %v, %v", name, got, err)
			continue
		}
		if d := got[0].F - want; d > 1e-6 || d < -1e-6 || got[0].Metric.Get("instance") != "a" || got[0].Metric.Get("job") != "relay" {
			t.Errorf("%s: %v, want %v", name, got[0], want)
		}
		q.Close()
	}
}

package relay

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/config"
)

// idle returns one of several replicas that does not run. fields are more fields of its config.
func idle(t *testing.T, fields string) *Relay {
	t.Helper()
	cfg, err := config.Parse(filepath.Join(t.TempDir(), "relay.yaml"), []byte(`node: {id: relay-0}
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
replicas: {cluster: {kubeconfig: none}}
upstreams: [{name: east, file: {path: east}}]
`+fields), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(c *config.Config) { c.FitMemory(1 << 30) },
		Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARelayWithReplicasTellsItsNameAndThatItHasNotReadTheOrders(t *testing.T) {
	r := idle(t, "")
	if all := r.manager.Replicas(); len(all) != 1 || all[0].Name != "relay-0" || !all[0].Self {
		t.Errorf("%+v", all)
	}
	if notes := strings.Join(r.notes(), "\n"); !strings.Contains(notes, "orders: the ConfigMap can not be used") {
		t.Error(notes)
	}
}

// TestMetricsAreThoseOfTheCode: docs/metrics.md has a row for each metric that the parts of a relay describe,
// and there are not too many.
func TestMetricsAreThoseOfTheCode(t *testing.T) {
	r := idle(t, "state: {dir: state}\n")
	described := make(chan *prometheus.Desc)
	go func() { defer close(described); r.metrics.Describe(described) }()
	exist, name := map[string]bool{}, regexp.MustCompile(`fqName: "(relay_\w+)"`)
	for d := range described {
		if m := name.FindStringSubmatch(d.String()); m != nil {
			exist[m[1]] = true
		}
	}
	if most := 60; len(exist) > most {
		t.Errorf("%d metrics, want at most %d: those that an alert, a rule, the dashboard or a step of a guide uses", len(exist), most)
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(relay_[a-z_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, m[1])
	}
	slices.Sort(rows)
	if d := cmp.Diff(slices.Sorted(maps.Keys(exist)), rows); d != "" {
		t.Errorf("docs/metrics.md has other metrics (-code +metrics.md):\n%s", d)
	}
}

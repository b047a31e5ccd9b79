package relay

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// withSinks returns a config whose upstream and sink have these connections.
func withSinks(t *testing.T, upstream, sinks string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		text := `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443"}}], users: [{name: u, user: {token: a}}],
contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c}`
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), fmt.Appendf(nil, `upstreams: [{name: east, kubernetes: {cluster: {%s}}}]
views: [{name: dr, clusterID: own, namespaces: {include: [shop]}}]
sinks: [%s]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
`, upstream, sinks), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestASinkThatVisiblyWritesIntoAnUpstreamIsTold(t *testing.T) {
	for name, c := range map[string]struct{ upstream, sink, want string }{
		"both in cluster":      {"inCluster: true", "inCluster: true", "upstream east reads"},
		"the same kubeconfig":  {"kubeconfig: missing", "kubeconfig: missing", "upstream east reads"},
		"the same server":      {"kubeconfig: one", "kubeconfig: two", "upstream east reads"},
		"another context":      {"kubeconfig: missing, context: a", "kubeconfig: missing, context: b", ""},
		"another way to it":    {"kubeconfig: missing", "inCluster: true", ""},
		"one that can be read": {"kubeconfig: one", "kubeconfig: missing", ""},
	} {
		cfg := withSinks(t, c.upstream, "{name: dr, view: dr, cluster: {"+c.sink+"}}")
		got := strings.Join(SinkWarnings(cfg), "\n")
		specs, err := sinksOf(cfg)
		if err != nil || !strings.Contains(got, c.want) || (got == "") != (c.want == "") || (len(specs[0].Same) > 0) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestASinkGetsWhatAClientOfItsViewWouldGet(t *testing.T) {
	specs, err := sinksOf(withSinks(t, "inCluster: true", "{name: a, view: dr, cluster: {kubeconfig: one}}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		namespace, cluster string
		want               bool
	}{"shown": {"shop", "east", true}, "of another namespace": {"pay", "east", false}, "of its own cluster": {"shop", "own", false}} {
		r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "a.b", Kind: "C"}, Namespace: c.namespace, Name: "x"}, Source: "east", Cluster: c.cluster, Body: &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Struct"}})
		if err != nil {
			t.Fatal(err)
		}
		if specs[0].Accepts(r) != c.want {
			t.Error(name)
		}
	}
}

func TestAnUpstreamThatMayHaveAResourceBlocksItsDeletion(t *testing.T) {
	r := &Relay{}
	r.config.Store(&config.Config{})
	heard := upstreams.Status{Name: "east", Type: "kubernetes", Status: intake.Status{Complete: true}}
	with := func(change func(*upstreams.Status)) upstreams.Status {
		u := heard
		change(&u)
		return u
	}
	for name, c := range map[string]struct {
		east    upstreams.Status
		of      string
		blocked string
	}{
		"heard":                        {heard, "east", ""},
		"starting":                     {with(func(u *upstreams.Status) { u.Complete = false }), "east", "not told everything"},
		"stale":                        {with(func(u *upstreams.Status) { u.Stale = true }), "east", "stale"},
		"frozen or rolled back":        {with(func(u *upstreams.Status) { u.Frozen = &intake.Frozen{} }), "east", "frozen"},
		"a file that is refused":       {with(func(u *upstreams.Status) { u.Type, u.RefusedTotal = "file", 1 }), "east", "refused"},
		"gone":                         {heard, "west", ""},
		"has another name, and starts": {with(func(u *upstreams.Status) { u.Complete = false }), "west", "east, which may have its resources"},
	} {
		if got := r.mayHave([]upstreams.Status{c.east}, c.of, mirror.Kind{}); !strings.Contains(got, c.blocked) || (got == "") != (c.blocked == "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAPlanOfSinksReadsPathsFromTheDirectoryOfTheRunningConfig: else each kubeconfig would look like another one.
func TestAPlanOfSinksReadsPathsFromTheDirectoryOfTheRunningConfig(t *testing.T) {
	const text = `upstreams: [{name: east, kubernetes: {cluster: {kubeconfig: east.kubeconfig}}}]
views: [{name: dr}]
sinks: [{name: dr, view: dr, cluster: {kubeconfig: dr.kubeconfig}}]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
`
	t.Chdir(t.TempDir())
	for _, path := range []string{"relay.yaml", filepath.Join(t.TempDir(), "relay.yaml")} {
		cfg, err := config.Parse(path, []byte(text), Sources()...)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Options{Config: cfg, Watcher: config.NewWatcher(path, Sources()...), Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar)})
		if err != nil {
			t.Fatal(err)
		}
		for next, want := range map[string]string{
			text: "[]",
			strings.Replace(text, "dr.kubeconfig", "new.kubeconfig", 1):            "[{dr [cluster.kubeconfig] 0 0 0 0 [if this is another cluster, ",
			strings.Replace(text, "sinks: [{name: dr,", "sinks: [{name: site,", 1): "[{dr [removed] 0 0 0 0 [it leaves, and site comes for the same cluster: ",
		} {
			got, err := r.preview(t.Context(), []byte(next))
			if err != nil || !strings.HasPrefix(fmt.Sprint(got.Sinks), want) {
				t.Errorf("%v, %v, want %q", got, err, want)
			}
		}
		if _, err := r.preview(t.Context(), []byte(strings.Replace(text, "view: dr", "view: few", 1))); err == nil || !strings.Contains(err.Error(), `there is no view "few"`) {
			t.Error(err)
		}
	}
}

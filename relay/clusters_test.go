package relay

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/sink"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// withClusters is a relay that finds clusters in Secrets of a hub. Nothing listens at the addresses in their
// kubeconfigs.
type withClusters struct {
	*Relay
	t    *testing.T
	dir  string
	hub  *fakekube.Server
	stop func()
}

func (w *withClusters) kubeconfig(id, token string) {
	w.t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, token)
	secret := fakekube.Object("istio-system", id, `{}`)
	secret["data"] = map[string]any{id: []byte(text)}
	w.hub.Put("/secrets", secret)
}

// parse returns a config with the clusters of the hub, and more.
func (w *withClusters) parse(fields, more string) *config.Config {
	w.t.Helper()
	text := fmt.Sprintf("downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nstate: {dir: state}\nnode: {id: a}\nclusters:\n- {name: fleet, secrets: {cluster: {kubeconfig: hub}}, allowServers: [127.0.0.0/8]%s}\n%s", fields, more)
	cfg, err := config.Parse(filepath.Join(w.dir, "relay.yaml"), []byte(text), Sources()...)
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// start runs the parts of a relay that handle upstreams.
func (w *withClusters) start(cfg *config.Config) {
	w.t.Helper()
	r, err := New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(c *config.Config) { c.FitMemory(1 << 30) },
		Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Relay = r
	ctx, cancel := context.WithCancel(context.Background())
	runs := []func(context.Context) error{r.aggregate.Run, r.manager.Run, r.keep, r.finder.Run, r.followClusters}
	ended := make(chan error, len(runs))
	for _, run := range runs {
		go func() { ended <- run(ctx) }()
	}
	w.stop = sync.OnceFunc(func() {
		cancel()
		for range runs {
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				w.t.Error(err)
			}
		}
	})
	w.t.Cleanup(w.stop)
}

// names returns the upstreams in order, with the state of those that were found.
func (w *withClusters) names() (all []string) {
	for _, u := range w.upstreams() {
		name := u.Name
		if u.Found != nil {
			name += " " + u.Found.State
		}
		all = append(all, name)
	}
	return all
}

func (w *withClusters) has(want ...string) {
	w.t.Helper()
	await.Until(w.t, fmt.Sprintf("there are %q", want), func() bool {
		return slices.Equal(w.names(), want) && len(w.config.Load().Upstreams) == len(want) // the config follows the upstreams
	}, func() any { return w.names() }, func() any { return w.finder.Problems() })
}

func newWithClusters(t *testing.T, ids ...string) *withClusters {
	clusters.Usual = clusters.Pace{Poll: 10 * time.Millisecond, Retry: 10 * time.Millisecond, RetryMost: 10 * time.Millisecond}
	w := &withClusters{t: t, dir: t.TempDir(), hub: fakekube.New()}
	w.hub.Define("", "Secret", "secrets", "v1")
	fakekube.WriteKubeconfig(t, filepath.Join(w.dir, "hub"), w.hub.Start(t), "t")
	for _, id := range ids {
		w.kubeconfig(id, "t")
	}
	return w
}

// away is a hub that answers nothing.
func away(w http.ResponseWriter, _ *http.Request) bool {
	fakekube.Fail(w, http.StatusServiceUnavailable, "ServiceUnavailable")
	return true
}

func TestFoundClustersAreUpstreamsBehindThoseOfTheFile(t *testing.T) {
	w := newWithClusters(t, "a", "b")
	const static = "upstreams: [{name: z, file: {path: .}}]\n"
	w.start(w.parse("", static))
	w.has("z", "a found", "b found")
	present := w.config.Load()
	if u := present.Upstreams[1]; u.FirstSync != config.FirstSyncOptional || u.Limits.MaxBytes != 1<<29/3 {
		t.Errorf("%+v", u)
	}
	if n := present.Upstreams[0].Limits.MaxBytes; n != 1<<29/3 {
		t.Errorf("the upstream of the file may have %d bytes", n)
	}
	before := present.Upstreams[1].Source
	w.kubeconfig("a", "other")
	w.kubeconfig("c", "t")
	w.has("z", "a found", "b found", "c found")
	if now := w.config.Load().Upstreams[1].Source; fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("a rotation has made %v of %v", now, before)
	}
	w.hub.Remove("/secrets", "istio-system/b")
	w.has("z", "a found", "c found", "b orphaned")
	if err := w.finder.Remove("fleet", "b"); err != nil {
		t.Fatal(err)
	}
	w.has("z", "a found", "c found")
}

func TestAReloadOfAConfigWithClustersIsAppliedAsAWhole(t *testing.T) {
	w := newWithClusters(t, "a", "B_1")
	w.start(w.parse("", ""))
	w.has("b-1 found", "a found")
	_, err := w.apply(t.Context(), w.parse(", upstream: {rewrite: {namespacePrefix: \"{cluster}-\"}}", "upstreams: [{name: z, file: {path: .}}]\n"))
	if err == nil || !strings.Contains(err.Error(), "clusters fleet: cluster B_1: upstream.rewrite.namespacePrefix: ") {
		t.Errorf("%v", err)
	}
	w.has("b-1 found", "a found")
	if _, err := w.apply(t.Context(), w.parse(", ignore: [B_1], upstream: {guard: {percent: 50}}", "upstreams: [{name: z, file: {path: .}}]\n")); err != nil {
		t.Fatal(err)
	}
	w.has("z", "a found")
	if got := w.config.Load().Upstreams[1].Guard.Percent; got != 50 {
		t.Errorf("the guard has %d %%", got)
	}
	// An upstream of the file takes the name of a cluster.
	if _, err := w.apply(t.Context(), w.parse("", "upstreams: [{name: a, file: {path: .}}]\n")); err != nil {
		t.Fatal(err)
	}
	w.has("a", "b-1 found")
	none := w.parse("", "upstreams: [{name: a, file: {path: .}}]\n")
	none.Clusters = nil
	if _, err := w.apply(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	w.has("a")
}

func TestARelayWithClustersAloneStartsAgainWithThoseItHad(t *testing.T) {
	w := newWithClusters(t, "a", "b")
	w.start(w.parse("", ""))
	w.has("a found", "b found")
	if err := w.manager.AwaitFirstSync(t.Context(), func() []string { return nil }); err != nil {
		t.Fatal(err) // the merge does not wait for clusters
	}
	w.stop()
	w.hub.Set(func() { w.hub.Fault = away })
	w.start(w.parse("", ""))
	if got, want := w.names(), []string{"a found", "b found"}; !slices.Equal(got, want) {
		t.Errorf("it begins with %q, want %q", got, want)
	}
	for _, u := range w.manager.Status() {
		if u.State == upstreams.StateSynced {
			t.Errorf("%+v", u)
		}
	}
}

// A relay that starts from a backup follows the same clusters, even without their hub.
func TestABackupRestoresFoundClusters(t *testing.T) {
	w := newWithClusters(t, "a", "b")
	cfg := w.parse("", "")
	w.start(cfg)
	w.has("a found", "b found")
	var archive bytes.Buffer
	if err := w.backup(&archive); err != nil {
		t.Fatal(err)
	}
	w.stop()

	restored := newWithClusters(t)
	restored.unpack(&archive)
	restored.hub.Set(func() { restored.hub.Fault = away })
	restored.start(restored.parse("", ""))
	restored.has("a found", "b found")
}

// unpack writes a backup into the directory of the state.
func (w *withClusters) unpack(archive io.Reader) {
	w.t.Helper()
	dir, t := filepath.Join(w.dir, "state"), w.t
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(archive); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, h.Name), text, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A relay that starts from a backup must not write what a person has frozen.
func TestABackupHasTheOrdersAboutSinksAndThoseOfThisReplicaAlone(t *testing.T) {
	const more = "views: [{name: dr}]\nsinks: [{name: dr, view: dr, mode: apply, cluster: {kubeconfig: site}}]\n"
	sinks := func(w *withClusters) {
		w.start(w.parse("", more))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.sinks.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		await.Until(t, "the sink has a status", func() bool { return len(w.sinks.Status("dr")) > 0 })
	}
	w := newWithClusters(t)
	sinks(w)
	if _, err := w.sinks.Order(t.Context(), "dr", sink.Order{Verb: "freeze", Reason: "INC-4711"}); err != nil {
		t.Fatal(err)
	}
	local := filepath.Join("state", "orders.json")
	if err := os.WriteFile(filepath.Join(w.dir, local), []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := w.backup(&archive); err != nil {
		t.Fatal(err)
	}
	restored := newWithClusters(t)
	restored.unpack(&archive)
	sinks(restored)
	if f := restored.sinks.Status("dr")[0].Frozen; f == nil || f.Reason != "INC-4711" {
		t.Errorf("%+v", f)
	}
	if _, err := os.Stat(filepath.Join(restored.dir, local)); err != nil {
		t.Error(err)
	}
}

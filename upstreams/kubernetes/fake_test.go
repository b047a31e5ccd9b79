package kubernetes

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/object"
	"meshrelay/upstreams/kubernetes/reflector"
)

// apiServer is an API server in this process, which sources mirror at a pace.
type apiServer struct {
	*fakekube.Server
	pace    pace
	keeper  upstreams.Keeper // of the relays that mirror it, nil for none
	section func(*Config)    // changes those of the relays, unless nil
	t       *testing.T
	http    *httptest.Server
	faulty  func(*object.Object) // what the relay\'s code does over an object
}

// newAPIServer starts an API server in memory, after others have prepared its HTTP server.
func newAPIServer(t *testing.T, prepare ...func(*httptest.Server)) *apiServer {
	s := &apiServer{Server: fakekube.New(), pace: quick, t: t}
	s.http = s.StartInMemory(t, prepare...)
	return s
}

// newSource is New for servers in memory.
func newSource(cfg config.Upstream, env upstreams.Env) *Source {
	s := New(cfg, env)
	s.pace, s.client.Dial = quick, fakekube.Dial
	return s
}

const entries = "networking.istio.io/serviceentries"

// entry creates or changes a ServiceEntry.
func (s *apiServer) entry(name, host string, more ...string) {
	namespace, name, _ := strings.Cut(name, "/")
	s.Put(entries, fakekube.Object(namespace, name, fmt.Sprintf(`{"hosts":[%q]}`, host), more...))
}

// drop ends all connections.
func (s *apiServer) drop() { s.http.CloseClientConnections() }

// kubeconfig writes a kubeconfig for the server.
func (s *apiServer) kubeconfig(token string) string {
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(s.t, path, s.http, token)
	return path
}

// world is a relay's upstream of an API server.
type world struct {
	*apiServer
	t         *testing.T
	manager   *upstreams.Manager
	aggregate *mirror.Aggregate
	source    *Source
	journal   *events.Journal
	path      string // of the kubeconfig
}

// quick is a pace for tests.
var quick = pace{
	look: 5 * time.Millisecond, discover: 20 * time.Millisecond, soon: 5 * time.Millisecond, reread: 10 * time.Millisecond,
	gone: 50 * time.Millisecond, verified: time.Millisecond, grace: 20 * time.Millisecond,
	Pace: reflector.Pace{Retry: 4 * time.Millisecond, RetryMax: 50 * time.Millisecond, Request: 4 * time.Millisecond, Ended: 7 * time.Millisecond, Forgive: time.Hour},
}

// mirrors runs an upstream of the server. settings are YAML of the section, and more of the upstream.
func (s *apiServer) mirrors(settings, more string) *world {
	s.t.Helper()
	w := s.upstream(settings, more)
	w.run(w.manager.Run, w.aggregate.Run, w.journal.Run)
	return w
}

// upstream is what mirrors runs.
func (s *apiServer) upstream(settings, more string) *world {
	s.t.Helper()
	w := &world{apiServer: s, t: s.t, aggregate: mirror.NewAggregate(), journal: events.New()}
	w.path = s.kubeconfig("t")
	cfg := w.config(settings, more)
	kind := Kind()
	kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
		if s.section != nil {
			s.section(sectionOf(u))
		}
		w.source = newSource(u, env)
		w.source.pace, w.source.converting.fault = s.pace, s.faulty
		return w.source, nil
	}
	var err error
	w.manager, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, w.aggregate, s.keeper, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	w.manager.Record(w.journal)
	return w
}

// config returns a config with that upstream. allowExec is the last one of its settings.
func (w *world) config(settings, more string) *config.Config {
	w.t.Helper()
	programs := ""
	if i := strings.Index(settings, ", allowExec: "); i >= 0 {
		settings, programs = settings[:i], settings[i:]
	}
	text := fmt.Sprintf("upstreams:\n- name: east\n  kubernetes: {cluster: {kubeconfig: %q%s}%s}\n%sdownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\nnode: {id: hub}\n", w.path, programs, settings, more)
	cfg, err := config.Parse("relay.yaml", []byte(text), &Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	return cfg
}

// reload applies another config of the upstream.
func (w *world) reload(settings, more string) {
	w.t.Helper()
	if err := w.manager.Apply(w.config(settings, more)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status() upstreams.Status { return w.manager.Status()[0] }

// events returns the events of a type, the newest first: what has happened and why.
func (w *world) events(of events.Type) (all []string) {
	for _, e := range w.journal.Read(events.Query{}).Events {
		if e.Type == of {
			all = append(all, e.Text+": "+e.Reason)
		}
	}
	slices.Reverse(all) // the journal has the oldest first
	return all
}

func (w *world) detail() *Detail {
	w.t.Helper()
	d, ok := w.status().Detail.(*Detail)
	if !ok {
		w.t.Fatalf("the status has the detail %T", w.status().Detail)
	}
	return d
}

// has returns what is served: "group/Kind namespace/name=version" where versions is true.
func (w *world) has() (all []string) {
	for _, kind := range w.aggregate.Kinds() {
		for _, r := range w.aggregate.List(kind, "") {
			all = append(all, kind.Kind+" "+r.FullName())
		}
	}
	slices.Sort(all)
	return all
}

// until waits for a condition.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	await.Until(w.t, what, ok, func() any { return fmt.Sprintf("served %q, status %+v", w.has(), w.status()) })
}

func (w *world) serves(want ...string) {
	w.t.Helper()
	slices.Sort(want)
	w.until(fmt.Sprintf("it serves %q", want), func() bool { return slices.Equal(w.has(), want) })
}

// arrives creates an entry, and waits until that is served beside all that is.
func (w *world) arrives(name string) {
	w.t.Helper()
	before := w.has()
	w.entry("shop/"+name, "b.x")
	w.serves(append(before, "ServiceEntry shop/"+name)...)
}

// synced waits until the upstream is synced, and the aggregate has merged all of it.
func (w *world) synced() {
	w.t.Helper()
	w.until("it is synced", func() bool { return w.status().State == upstreams.StateSynced })
	if err := w.aggregate.CaughtUp(await.Context(w.t)); err != nil {
		w.t.Fatalf("not merged: %v", err)
	}
}

// relist has each collection list its objects anew.
func (w *world) relist() {
	for _, k := range w.source.kinds {
		for _, c := range w.source.following(k) {
			c.relist()
		}
	}
}

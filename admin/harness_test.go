package admin

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/downstream"
	"meshrelay/downstream/subscription"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/merge"
	"meshrelay/internal/buildinfo"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/sink"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	widget       = mirror.Kind{Group: "example.com", Kind: "Widget"}
	created      = time.Date(2024, 2, 3, 4, 5, 6, 700, time.UTC)
)

func resource(t *testing.T, source string, key mirror.Key, body *anypb.Any) *mirror.Resource {
	t.Helper()
	r, err := mirror.New(mirror.Spec{Key: key, Source: source, SourceVersion: "42", CreateTime: created, Labels: map[string]string{"app": "<db>"}, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func packed(t *testing.T, msg proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(msg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func entry(t *testing.T, source, namespace, name, host string) *mirror.Resource {
	return resource(t, source, mirror.Key{Kind: serviceEntry, Namespace: namespace, Name: name},
		packed(t, &networking.ServiceEntry{Hosts: []string{host}, Resolution: networking.ServiceEntry_DNS, Ports: []*networking.ServicePort{{Number: 443, Name: "tls", Protocol: "TLS"}}}))
}

// merged returns an Aggregate over the resources. Upstreams have the order in which they first appear.
func merged(t *testing.T, resources ...*mirror.Resource) *mirror.Aggregate {
	a, _ := mergedAndRegistered(t, resources...)
	return a
}

// mergedAndRegistered returns an Aggregate as merged does, and its conflict tracker.
func mergedAndRegistered(t *testing.T, resources ...*mirror.Resource) (*mirror.Aggregate, *conflicts.Tracker) {
	t.Helper()
	var sources []mirror.Source
	stores := map[string]*mirror.Store{}
	keys := map[mirror.Key]bool{}
	for _, r := range resources {
		if stores[r.Source()] == nil {
			stores[r.Source()] = mirror.NewStore()
			sources = append(sources, mirror.Source{Name: r.Source(), Store: stores[r.Source()]})
		}
		keys[r.Key()] = true
	}
	a := mirror.NewAggregate()
	register := conflicts.Follow(a, slog.New(slog.DiscardHandler))
	owners, err := merge.OwnersByName("serve")
	if err != nil {
		t.Fatal(err)
	}
	a.SetOwners(owners)
	a.SetSources(sources)
	events := make(chan struct{}, 2*len(resources)+1)
	a.RegisterHandler(func(c mirror.Change) {
		if c.Visible() {
			events <- struct{}{}
		}
	})
	for _, r := range resources {
		stores[r.Source()].Put(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	for _, s := range stores {
		s.SetSynced()
	}
	done := make(chan struct{})
	go func() { _ = a.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	for range keys {
		<-events
	}
	return a, register
}

// fixture is a Server with something to show.
type fixture struct {
	*Server
	ready    Readiness
	sources  []upstreams.Status
	clients  []downstream.ClientStatus
	peers    []downstream.PeerStatus
	traces   map[mirror.Key][]records.Trace
	level    *slog.LevelVar
	registry *prometheus.Registry
	logged   *bytes.Buffer
	// distribution is in place of Distribution, unless it is nil.
	distribution func(mirror.Key) downstream.Distribution
}

// newFixture returns a fixture; more changes its dependencies.
func newFixture(t *testing.T, cfg Config, more ...func(*Deps)) *fixture {
	t.Helper()
	opaque := &anypb.Any{TypeUrl: "type.googleapis.com/example.Widget", Value: []byte{8, 1}}
	resources, register := mergedAndRegistered(t,
		entry(t, "east", "shop", "db", "db.example.com"),
		entry(t, "east", "shop", "cache", "cache.example.com"),
		resource(t, "east", mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, packed(t, &mesh.MeshConfig{AccessLogFile: "/dev/stdout"})),
		entry(t, "west", "shop", "db", "other.example.com"),
		entry(t, "west", "bank", "ledger", "ledger.example.com"),
		resource(t, "west", mirror.Key{Kind: widget, Namespace: "shop", Name: "w"}, opaque),
	)
	f := &fixture{level: new(slog.LevelVar), registry: prometheus.NewRegistry(), ready: Readiness{Ready: true}, logged: new(bytes.Buffer)}
	f.sources = []upstreams.Status{{Name: "east", Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true}}}
	f.peers = []downstream.PeerStatus{{Peer: "spiffe://east/ns/istio-system/sa/istiod", Identified: true, Streams: 2, Opened: 3, Requests: 70, Responses: 12, Bytes: 4096}}
	f.clients = []downstream.ClientStatus{
		{
			Connection: "sidecar~1.2.3.4~istiod-0.istio-system~istio-system.svc.cluster.local-1", NodeID: "sidecar~1.2.3.4~istiod-0.istio-system~istio-system.svc.cluster.local",
			Namespace: "istio-system", ClusterID: "c1", IstioVersion: "1.23.0", Address: "1.2.3.4:5", Protocol: "sotw", Connected: created,
			Types: []downstream.TypeStatus{
				{TypeURL: "core/v1alpha1/MeshConfig", SentNonce: "n0", SentVersion: "v0", SentAt: created, Synced: true},
				{TypeURL: "networking.istio.io/v1/ServiceEntry", SentNonce: "n1", AckedNonce: "n1", SentVersion: "v1", SentAt: created, Synced: true},
				{TypeURL: "networking.istio.io/v1/Gateway", SentNonce: "n2", AckedNonce: "n1", SentVersion: "v2", SentAt: created},
				{TypeURL: "networking.istio.io/v1/Sidecar"},
				{TypeURL: "networking.istio.io/v1/EnvoyFilter", SentNonce: "n4", SentVersion: "v4", SentAt: created, LastNACK: "no such\xff filter"},
			},
		},
		{Connection: "tool-2", NodeID: "tool", Namespace: "ops", Protocol: "delta", Connected: created, Address: "5.6.7.8:9"},
	}
	cfg.Address = "127.0.0.1:0"
	deps := Deps{
		Preview:  func(context.Context, []byte) (Preview, error) { return Preview{}, nil },
		Controls: &controls{}, Clusters: foundClusters{}, Sinks: someSinks{}, Reload: func(context.Context) error { return nil }, ReloadStatus: func() ReloadStatus { return ReloadStatus{} },
		Gatherer: f.registry, LogLevel: f.level, Build: buildinfo.Info{Version: "v1.2.3"}, Logger: slog.New(slog.NewTextHandler(f.logged, &slog.HandlerOptions{Level: f.level})),
		Ready: func() Readiness { return f.ready }, Notes: func() []string { return nil }, Remarks: func() []string { return nil },
		Memory: func() (inUse, limit uint64) { return 0, math.MaxInt64 },
		Debug: NewDebug(Views{
			Clusters:  foundClusters{}.Status,
			Resources: resources, Contests: register.KeyConflicts, HostConflicts: register.HostConflicts, Hybrids: register.Hybrids,
			LeftOut: func() []records.LeftOut {
				return []records.LeftOut{
					{Upstream: "east", Kind: "networking.istio.io/ServiceEntry", Namespace: "hidden", Name: "db", Reason: "namespace", Detail: `namespace "hidden" is excluded by "hid*"`},
					{Upstream: "west", Kind: "networking.istio.io/VirtualService", Namespace: "shop", Name: "db", Reason: "loop"},
				}
			},
			Trace:     func(key mirror.Key) []records.Trace { return f.traces[key] },
			Upstreams: func() []upstreams.Status { return f.sources },
			Replicas:  func() []orders.Replica { return nil },
			Applied:   func(mirror.Key) []sink.Applied { return nil },
		}, f),
	}
	for _, add := range more {
		add(&deps)
	}
	f.Server = New(cfg, deps)
	return f
}

func (f *fixture) Peers() []downstream.PeerStatus { return f.peers }

func (f *fixture) Clients() []downstream.ClientStatus { return f.clients }

// Shows knows a client "few", which sees what comes from west.
func (f *fixture) Shows(connection string) (string, func(*mirror.Resource) bool, bool) {
	return "", func(r *mirror.Resource) bool { return r.Source() == "west" }, connection == "few"
}

func (f *fixture) Distribution(key mirror.Key) downstream.Distribution {
	if f.distribution != nil {
		return f.distribution(key)
	}
	d := downstream.Distribution{Key: key, Clients: 1, Has: 1}
	if f.Server != nil && f.deps.Debug.views.Resources.Get(key) != nil {
		d.Version = "v1"
	}
	return d
}

func (f *fixture) Receipts(mirror.Key) []downstream.Receipt {
	return []downstream.Receipt{{Connection: "tool-2", NodeID: "tool", TypeURL: "networking.istio.io/v1/ServiceEntry", State: subscription.Acknowledged, At: created}}
}

// request is what a client sends; the zero value is a GET over loopback.
type request struct {
	method, path, host, accept, body string
	// local and remote are the ends of the connection.
	local, remote string
	// headers are pairs of names and values.
	headers []string
	// peer is the peer of a request over the socket.
	peer *peer
}

func (f *fixture) do(t *testing.T, r request) (code int, body string, header http.Header) {
	t.Helper()
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	req := httptest.NewRequest(or(r.method, http.MethodGet), r.path, strings.NewReader(r.body))
	req.Host = or(r.host, "localhost:15014")
	req.RemoteAddr = or(r.remote, "127.0.0.1:40000")
	req.Header.Set("Accept", r.accept)
	for i := 0; i+1 < len(r.headers); i += 2 {
		req.Header.Set(r.headers[i], r.headers[i+1])
	}
	local, err := net.ResolveTCPAddr("tcp", or(r.local, "127.0.0.1:15014"))
	if err != nil {
		t.Fatal(err)
	}
	req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, net.Addr(local)))
	if r.peer != nil {
		req = req.WithContext(context.WithValue(req.Context(), peerKey{}, *r.peer))
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, req)
	f.declared(t, req, w.Code)
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(b), w.Result().Header
}

// declared checks that an answer has a status, and its request parameters, that the routes declare.
func (f *fixture) declared(t *testing.T, req *http.Request, code int) {
	t.Helper()
	if code >= 400 {
		if !slices.Contains(errorCodes, code) {
			t.Errorf("%s %s is answered with %d, which is not in errorCodes", req.Method, req.URL, code)
		}
		return
	}
	mux, known := http.NewServeMux(), map[string][]string{}
	for _, r := range f.routes() {
		mux.Handle(r.pattern, r.handler)
		known[r.pattern] = r.parameters
	}
	_, pattern := mux.Handler(req)
	for p := range req.URL.Query() {
		if !slices.Contains(known[pattern], p) {
			t.Errorf("%s: the route %s declares no parameter %s", req.URL, pattern, p)
		}
	}
}

func (f *fixture) get(t *testing.T, path string) string {
	t.Helper()
	code, body, _ := f.do(t, request{path: path})
	if code != http.StatusOK {
		t.Fatalf("GET %s: %d: %s", path, code, body)
	}
	return body
}

package upstreams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/xds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	xdsMeshURL    = "core/v1alpha1/MeshConfig"
	xdsEntryURL   = "networking.istio.io/v1/ServiceEntry"
	xdsEntryBeta  = "networking.istio.io/v1beta1/ServiceEntry"
	xdsEntryAlpha = "networking.istio.io/v1alpha3/ServiceEntry"
	xdsGroupURL   = "networking.istio.io/v1/WorkloadGroup"
)

var xdsEntryKind = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

// xdsSource is an xds source and what is behind its feed.
type xdsSource struct {
	*xds.Source
	u *upstreams.Upstream
	m *upstreams.Manager
}

// newXDS makes a Manager with one upstream, whose source does not run.
func newXDS(cfg config.Upstream, node config.Node, provenance config.Provenance, log *slog.Logger) (*xdsSource, error) {
	return keptXDS(cfg, node, provenance, log, &memoryKeeper{})
}

// keptXDS is newXDS with a disk.
func keptXDS(cfg config.Upstream, node config.Node, provenance config.Provenance, log *slog.Logger, keeper upstreams.Keeper) (*xdsSource, error) {
	m, err := upstreams.NewManager(&config.Config{Upstreams: []config.Upstream{cfg}, Node: node, Provenance: provenance}, kinds(), mirror.NewAggregate(), keeper, log)
	if err != nil {
		return nil, err
	}
	m.Restore(context.Background())
	u := m.Upstreams()[0]
	return &xdsSource{u.Source().(*xds.Source), u, m}, nil
}

func (x *xdsSource) Status() upstreams.Status             { return x.m.Status()[0] }
func (x *xdsSource) Trace(key mirror.Key) []records.Trace { return x.m.Trace(key) }
func (x *xdsSource) Run(ctx context.Context) error        { return x.Source.Run(ctx, x.u) }

// kept returns what is served, as it is kept on disk.
func (x *xdsSource) kept() (out []state.Record) {
	x.u.MarkAll()
	changes, _ := x.u.TakeChanges()
	for _, c := range changes {
		if c.Record != nil {
			out = append(out, *c.Record)
		}
	}
	return out
}

// xdsScript feeds an xds source what a client would, without a network.
type xdsScript struct {
	t     *testing.T
	x     *xdsSource
	store *mirror.Store
	warns *warnings
	// relist reports whether what comes next was asked for again.
	relist bool
}

// lapse lets the grace pass in which names may turn up in another version.
func (s *xdsScript) lapse() { s.x.u.EndGraces() }

// warnings counts what is logged at warn level or above.
type warnings struct {
	slog.Handler
	n *atomic.Int32
}

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w warnings) WithGroup(string) slog.Handler            { return w }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.n.Add(1)
	}
	return nil
}

func xdsConfig(addresses ...string) (config.Upstream, config.Node) {
	return config.Upstream{
		Name: "east", ClusterID: "east-1", Generated: "drop", Services: config.Services{Mode: config.ServicesOmit}, Guard: config.Guard{Percent: 100},
		Source: &xds.Config{Addresses: addresses, Protocol: "sotw", Plaintext: true, ResyncInterval: config.Duration(5 * time.Minute)},
	}, config.Node{ID: "relay-1", Namespace: "istio-system", IP: "10.0.0.7"}
}

// sectionOf returns the section of an xds upstream.
func sectionOf(u config.Upstream) *xds.Config { return u.Source.(*xds.Config) }

func newXDSScript(t *testing.T, change ...func(*config.Upstream, *config.Node)) *xdsScript {
	t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	for _, f := range change {
		f(&cfg, &node)
	}
	s := &xdsScript{t: t, warns: &warnings{n: new(atomic.Int32)}}
	s.attach(newXDS(cfg, node, config.Provenance{}, slog.New(s.warns)))
	s.open(adsclient.SotW, false)
	// Each type is answered once, so that tests are about what comes after that.
	for _, url := range allTypes(sectionOf(cfg).Types...) {
		s.ok(s.sotw(url))
	}
	return s
}

// attach makes x the source that the script feeds.
func (s *xdsScript) attach(x *xdsSource, err error) {
	s.t.Helper()
	s.ok(err)
	s.x, s.store = x, x.u.Store()
	x.Attach(x.u)
}

// allTypes returns the types that an istiod is asked for.
func allTypes(extra ...string) (urls []string) {
	for _, info := range mirror.Kinds() {
		urls = append(urls, info.TypeURLs()...)
	}
	return append(urls, extra...)
}

// relayTypes returns the types that a relay is asked for.
func relayTypes() (urls []string) {
	for _, info := range mirror.Kinds() {
		urls = append(urls, info.TypeURLs()[0])
	}
	return urls
}

// open begins a new stream.
func (s *xdsScript) open(p adsclient.Protocol, relay bool) {
	s.x.HandleState(adsclient.State{Phase: adsclient.Streaming, Protocol: p, Relay: relay})
}

func (s *xdsScript) deliver(m proto.Message, delta bool) error {
	s.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := adsclient.Parse(mem.BufferSlice{mem.SliceBuffer(b)}, delta)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Relist = s.relist
	err = s.x.HandleResponse(resp)
	// The handler must not keep any of the response's bytes.
	for i := range b {
		b[i] = 0xff
	}
	return err
}

func (s *xdsScript) sotw(typeURL string, resources ...fakexds.Resource) error {
	s.t.Helper()
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: "1", Nonce: "n"}
	for _, r := range resources {
		resp.Resources = append(resp.Resources, r.Any)
	}
	return s.deliver(resp, false)
}

func (s *xdsScript) delta(typeURL string, removed []string, resources ...fakexds.Resource) error {
	s.t.Helper()
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n", RemovedResources: removed}
	for _, r := range resources {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: r.Any})
	}
	return s.deliver(resp, true)
}

// ok fails the test on an error.
func (s *xdsScript) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("response refused: %v", err)
	}
}

// holds demands that the store has these ServiceEntries: "name=host".
func (s *xdsScript) holds(want ...string) {
	s.t.Helper()
	got := []string{}
	for _, r := range s.store.List(xdsEntryKind, "") {
		got = append(got, r.FullName()+"="+hostOf(s.t, r))
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Fatalf("the store has %q, want %q", got, want)
	}
}

func hostOf(t *testing.T, r *mirror.Resource) string {
	t.Helper()
	se := &networking.ServiceEntry{}
	if err := r.Body().UnmarshalTo(se); err != nil {
		t.Fatal(err)
	}
	return strings.Join(se.Hosts, ",")
}

func xdsEntry(name, host string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{host}})
}

// corrupt is a resource whose name can be read and whose body can not.
func corrupt(name string) fakexds.Resource {
	r := fakexds.MCP(name, &networking.ServiceEntry{})
	body := &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry", Value: []byte{0x0a, 0xff}}
	return fakexds.Resource{Name: name, Any: rewrapped(r, body)}
}

// unreadable is an element that does not decode.
func unreadable() fakexds.Resource {
	return fakexds.Resource{Any: &anypb.Any{TypeUrl: "type.googleapis.com/istio.mcp.v1alpha1.Resource", Value: []byte{0x0a, 0xff}}}
}

// xdsRun is an XDS that runs against fake servers.
type xdsRun struct {
	t     *testing.T
	x     *xdsSource
	store *mirror.Store
}

func runXDS(t *testing.T, change func(*config.Upstream), servers ...*fakexds.Server) *xdsRun {
	t.Helper()
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.Addr)
	}
	cfg, node := xdsConfig(addresses...)
	if change != nil {
		change(&cfg)
	}
	x, err := newXDS(cfg, node, config.Provenance{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &xdsRun{t: t, x: x, store: x.u.Store()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

func (r *xdsRun) await(what string, cond func() bool) {
	r.t.Helper()
	await.Until(r.t, what, cond, func() any { return fmt.Sprintf("names %q, status %+v", r.names(), r.x.Status()) })
}

func (r *xdsRun) names() string {
	var names []string
	for _, res := range r.store.List(xdsEntryKind, "") {
		names = append(names, res.FullName())
	}
	return strings.Join(names, " ")
}

func (r *xdsRun) awaitNames(want string) {
	r.t.Helper()
	r.await("the store has "+want, func() bool { return r.names() == want })
}

func meshNamed(domain string) fakexds.Resource { return meshRooted(domain, "") }

func meshRooted(domain, root string) fakexds.Resource {
	a, err := anypb.New(&mesh.MeshConfig{TrustDomain: domain, RootNamespace: root})
	if err != nil {
		panic(err)
	}
	return fakexds.Resource{Any: a}
}

func (s *xdsScript) disconnects() {
	s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Err: errors.New("gone"), Answered: true})
}

// neverSynced starts a script of a source that has never told anything.
func neverSynced(t *testing.T, change func(*config.Upstream, *config.Node)) *xdsScript {
	t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	if change != nil {
		change(&cfg, &node)
	}
	s := &xdsScript{t: t, warns: &warnings{n: new(atomic.Int32)}}
	s.attach(newXDS(cfg, node, config.Provenance{}, slog.New(s.warns)))
	return s
}

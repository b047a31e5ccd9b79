package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	mcp "istio.io/api/mcp/v1alpha1"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
)

var entryKind = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

// waitingIstiod is an upstream and a client of a relay. Like an istiod, it opens its own port only when its config
// source has answered every type.
type waitingIstiod struct {
	name, source, address string
	answered              chan struct{}

	mu  sync.Mutex
	has []string // names of ServiceEntries
}

// start reads the config source until ctx ends.
func (i *waitingIstiod) start(ctx context.Context, t *testing.T) {
	t.Helper()
	conn := dial(t, i.source)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = i.follow(ctx, conn) // until the relay ends
		}
	})
	t.Cleanup(running.Wait)
}

func (i *waitingIstiod) follow(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	missing := map[string]bool{}
	for _, info := range mirror.Kinds() {
		url := info.TypeURLs()[0]
		missing[url] = true
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: url, Node: &corev3.Node{Id: "sidecar~10.0.0.1~istiod-" + i.name + ".istio-system~istio-system.svc.cluster.local"}}); err != nil {
			return err
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		delete(missing, resp.TypeUrl)
		if strings.HasSuffix(resp.TypeUrl, "/ServiceEntry") {
			names := []string{}
			for _, any := range resp.Resources {
				m := &mcp.Resource{}
				if err := any.UnmarshalTo(m); err != nil {
					return err
				}
				names = append(names, m.Metadata.Name)
			}
			i.mu.Lock()
			i.has = names
			i.mu.Unlock()
		}
		if len(missing) == 0 {
			select {
			case <-i.answered:
			default:
				close(i.answered)
			}
		}
	}
}

func (i *waitingIstiod) names() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.has)
}

// serve opens the istiod's own port.
func (i *waitingIstiod) serve(t *testing.T) *fakexds.Server {
	t.Helper()
	s := fakexds.Start(t, &fakexds.Server{}, i.address)
	s.Set(entryKind.TypeURL("v1"), fakexds.MCP("shop/"+i.name, versionedKinds()[entryKind]))
	return s
}

func (i *waitingIstiod) awaitAnswer(t *testing.T) {
	t.Helper()
	await.Closed(t, i.name+" is answered", i.answered)
}

// TestTwoMeshesThatAreUpstreamsAndClientsStartTogether: the istiods wait for the relay, and the relay, which has
// nothing on disk, waits for the istiods. With a state that has served, it does not wait.
func TestTwoMeshesThatAreUpstreamsAndClientsStartTogether(t *testing.T) {
	t.Parallel() // it waits
	for _, state := range []string{"", "state"} {
		t.Run("state="+state, func(t *testing.T) {
			t.Parallel()
			ports := freePorts(t, 5)
			at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
			dir := shortDir(t)
			config := func(startupTimeout string) string {
				text := fmt.Sprintf(`node: {id: hub}
admin: {address: %q, socket: %s}
upstreams:
- {name: east, xds: {addresses: [%q], plaintext: true}}
- {name: west, xds: {addresses: [%q], plaintext: true}}
views:
- {name: east, clusterID: east}
- {name: west, clusterID: west}
downstream:
  startupTimeout: %s
  listeners:
  - {address: %q, plaintext: true, view: east}
  - {address: %q, plaintext: true, view: west}
`, at(0), filepath.Join(dir, "a.sock"), at(1), at(2), startupTimeout, at(3), at(4))
				if state != "" {
					text += fmt.Sprintf("state: {dir: %s}\n", filepath.Join(dir, state))
				}
				return text
			}
			meshes := func(ctx context.Context) (all []*waitingIstiod) {
				for n, name := range []string{"east", "west"} {
					i := &waitingIstiod{name: name, address: at(1 + n), source: at(3 + n), answered: make(chan struct{})}
					i.start(ctx, t)
					all = append(all, i)
				}
				return all
			}
			relay := running{admin: at(0)}
			complete := func(all []*waitingIstiod) func() bool {
				return func() bool {
					return slices.Equal(all[0].names(), []string{"shop/west"}) && slices.Equal(all[1].names(), []string{"shop/east"})
				}
			}

			const startupTimeout = 300 * time.Millisecond
			ctx, end := context.WithCancel(t.Context())
			all := meshes(ctx)
			began := time.Now()
			stop := serveConfig(t, config(startupTimeout.String()))
			var servers []*fakexds.Server
			for _, i := range all {
				i.awaitAnswer(t)
				if waited := time.Since(began); waited < startupTimeout {
					t.Errorf("%s was served after %v, when nothing was known", i.name, waited)
				}
			}
			for _, i := range all {
				servers = append(servers, i.serve(t))
			}
			await.Until(t, "each has what the other has", complete(all))
			relay.awaitReady(t)

			// All end, and start once more.
			end()
			stop()
			for _, s := range servers {
				s.Stop()
			}
			if state == "" {
				return
			}
			ctx, end = context.WithCancel(t.Context())
			defer end()
			all = meshes(ctx)
			serveConfig(t, config("1h"))
			await.Until(t, "what is on disk is served", complete(all))
			for _, i := range all {
				i.awaitAnswer(t)
				i.serve(t)
			}
			relay.awaitReady(t)
		})
	}
}

// shortDir returns a directory whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestARingOfRelaysStartsTogether: each relay waits for the one before it. With a state that has served, each serves
// its old resources, although the source is down.
func TestARingOfRelaysStartsTogether(t *testing.T) {
	t.Parallel() // it waits
	for _, state := range []string{"", "state"} {
		t.Run("state="+state, func(t *testing.T) {
			t.Parallel()
			body := versionedKinds()[entryKind]
			source := fakexds.Start(t, &fakexds.Server{})
			source.Set(entryKind.TypeURL("v1"), fakexds.MCP("shop/a", body))
			ports := freePorts(t, 6)
			ring := make([]running, 3)
			for i := range ring {
				ring[i] = running{xds: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), admin: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])}
			}
			dir := shortDir(t)
			start := func(startupTimeout string) (stop func()) {
				var stops []func()
				for i, r := range ring {
					text := fmt.Sprintf("node: {id: relay-%d}\nadmin: {address: %q, socket: %s}\ndownstream: {startupTimeout: %s, listeners: [{address: %q, plaintext: true}]}\nupstreams:\n- {name: ring, xds: {addresses: [%q], plaintext: true}}\n",
						i, r.admin, filepath.Join(dir, fmt.Sprint(i, ".sock")), startupTimeout, r.xds, ring[(i+2)%3].xds)
					if i == 0 {
						text += fmt.Sprintf("- {name: east, xds: {addresses: [%q], plaintext: true}}\n", source.Addr)
					}
					if state != "" {
						text += fmt.Sprintf("state: {dir: %s}\n", filepath.Join(dir, fmt.Sprint(state, i)))
					}
					stops = append(stops, serveConfig(t, text))
				}
				return func() {
					for _, stop := range stops {
						stop()
					}
				}
			}
			has := func(r running) bool {
				objects, err := admin.Client{Address: r.admin}.Resources(t.Context())
				return err == nil && len(objects) == 1 && objects[0].Metadata.Name == "a"
			}
			stop := start("300ms")
			for _, r := range ring {
				await.Until(t, "it has what the source has", func() bool { return has(r) })
				r.awaitReady(t)
			}
			stop()
			if state == "" {
				return
			}
			source.Stop()
			stop = start("1h")
			defer stop()
			for _, r := range ring {
				await.Until(t, "it serves what it has on disk", func() bool {
					ready, err := admin.Client{Address: r.admin}.Ready(t.Context())
					return err == nil && ready.Ready && has(r)
				})
			}
		})
	}
}

// TestTwoRelaysOfOneNameSaySo: each would leave out all resources of the other as a loop.
func TestTwoRelaysOfOneNameSaySo(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryKind.TypeURL("v1"), fakexds.MCP("shop/a", versionedKinds()[entryKind]))
	ports := freePorts(t, 4)
	first := running{xds: fmt.Sprintf("127.0.0.1:%d", ports[0]), admin: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	second := running{xds: fmt.Sprintf("127.0.0.1:%d", ports[2]), admin: fmt.Sprintf("127.0.0.1:%d", ports[3])}
	first.run(t, "hub", fmt.Sprintf("upstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n", source.Addr))
	first.awaitReady(t)
	second.run(t, "hub", fmt.Sprintf("upstreams: [{name: first, xds: {addresses: [%q], plaintext: true}}]\n", first.xds))
	await.Until(t, "the second reports why it has nothing", func() bool {
		r, err := admin.Client{Address: second.admin}.Ready(t.Context())
		if err != nil || len(r.Reasons) != 1 {
			return false
		}
		for _, part := range []string{"upstream first: failed since", "a relay of this relay's own name, \"hub\"", "give each relay a name of its own with provenance.relay"} {
			if !strings.Contains(r.Reasons[0], part) {
				return false
			}
		}
		return true
	})
	// The first and its clients are not concerned.
	first.awaitReady(t)
}

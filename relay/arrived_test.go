package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/federation"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

const entriesOf = "networking.istio.io/serviceentries"

// arriving is a relay with the API server east and the directory west.
type arriving struct {
	*Relay
	t       *testing.T
	east    *fakekube.Server
	dir     string
	address string
}

func startArriving(t *testing.T, status, more string, west ...string) *arriving {
	a := &arriving{t: t, east: fakekube.New(), dir: t.TempDir()}
	lis := a.east.Start(t)
	kubeconfig := filepath.Join(a.dir, "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, lis, "t")
	if err := os.Mkdir(filepath.Join(a.dir, "west"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, text := range west {
		write(t, filepath.Join(a.dir, "west", fmt.Sprint(i, ".yaml")), text)
	}
	text := fmt.Sprintf(`
node: {id: hub}
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
upstreams:
- {name: west, file: {path: %q}}
- name: east
  kubernetes: {cluster: {kubeconfig: %q}%s}
  import: {namespaces: {exclude: [hidden]}}
  limits: {maxResources: 5}
%s`, filepath.Join(a.dir, "west"), kubeconfig, status, strings.ReplaceAll(more, "KUBECONFIG", kubeconfig))
	cfg, err := config.Parse(filepath.Join(a.dir, "relay.yaml"), []byte(text), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Upstreams[1].Limits.MaxResourceBytes = 2000
	if a.Relay, err = New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar),
	}); err != nil {
		t.Fatal(err)
	}
	a.conditions.pause = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{
		a.server.Run, a.aggregate.Run, a.manager.Run, a.conditions.run,
		func(ctx context.Context) error { return a.pusher.Run(ctx, a.server.Push) },
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	await.Closed(t, "the first sync", a.server.Released())
	addrs, err := a.server.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a.address = addrs[0].String()
	return a
}

// becomes waits until the condition of a ServiceEntry at the API server begins with a text.
func (a *arriving) becomes(name, text string) {
	a.t.Helper()
	await.Until(a.t, "the condition of "+name+" begins with "+text, func() bool { return strings.HasPrefix(a.condition(name), text) }, func() any { return a.condition(name) })
}

// connected waits until clients are connected.
func (a *arriving) connected(clients int) {
	a.t.Helper()
	await.Equal(a.t, "they are connected", clients, func() int { return len(a.server.Clients()) })
}

func entryKey(name string) mirror.Key {
	return mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name}
}

// resource returns an empty ServiceEntry.
func resource(t *testing.T, source, name string) *mirror.Resource {
	t.Helper()
	r, err := mirror.New(mirror.Spec{Key: entryKey(name), Source: source, Body: &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry"}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (a *arriving) client(name string, answer func() string) (leave func()) {
	a.t.Helper()
	return clientOf(a.t, a.address, name, answer)
}

// clientOf has a client of a relay subscribe to ServiceEntries. It answers each response with answer, which returns the text
// of a NACK, or "".
func clientOf(t *testing.T, address, name string, answer func() string) (leave func()) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	req := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sidecar~1.2.3.4~" + name + ".istio-system~cluster.local"}, TypeUrl: "networking.istio.io/v1/ServiceEntry"}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for stream.Send(req) == nil {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			req = &discoveryv3.DiscoveryRequest{TypeUrl: req.TypeUrl, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo}
			if text := answer(); text != "" {
				req.ErrorDetail = &status.Status{Code: 3, Message: text}
			}
		}
	}()
	leave = sync.OnceFunc(func() { cancel(); conn.Close(); <-ended })
	t.Cleanup(leave)
	return leave
}

// condition returns the condition of a ServiceEntry at the API server, as "status reason message".
func (a *arriving) condition(name string) (text string) {
	a.east.Set(func() {
		var o struct {
			Status struct{ Conditions []metav1.Condition }
		}
		b, _ := json.Marshal(a.east.Objects[entriesOf]["shop/"+name])
		_ = json.Unmarshal(b, &o)
		for _, c := range o.Status.Conditions {
			text += strings.TrimSpace(string(c.Status) + " " + c.Reason + " " + c.Message)
		}
	})
	return text
}

func (a *arriving) entry(name, host string) {
	a.east.Put(entriesOf, fakekube.Object("shop", name, fmt.Sprintf(`{"hosts":[%q]}`, host)))
}

// TestTheConditionTellsWhetherAllClientsHaveIt: pending, refused by a client, distributed, and so it stays when a client
// connects that rejects it.
func TestTheConditionTellsWhetherAllClientsHaveIt(t *testing.T) {
	a := startArriving(t, ", status: meshrelay.io/Distributed", "")
	var refuses atomic.Bool
	leave := a.client("bad", func() string {
		if refuses.Load() {
			return "unknown field\n1 of 7"
		}
		return ""
	})
	a.client("good", func() string { return "" })
	a.connected(2)
	await.Equal(t, "both have the first answer", 2, func() (synced int) {
		for _, c := range a.server.Clients() {
			if len(c.Types) > 0 && c.Types[0].Synced {
				synced++
			}
		}
		return synced
	})
	refuses.Store(true) // however many pushes the entry takes
	a.entry("a", "a.x")
	a.becomes("a", "False Rejected refused by bad.istio-system: unknown field")
	leave()
	a.becomes("a", "True Distributed all clients have it")
	a.client("late", func() string { return "no" })
	await.Equal(t, "the late one has rejected it", 1, func() int { return a.server.Distribution(entryKey("a")).Refuses })
	a.entry("b", "b.x")
	a.becomes("b", "False") // pending or refused
	if got := a.condition("a"); got != "True Distributed all clients have it" {
		t.Error(got)
	}
}

// TestNoConditionIsWrittenWhileTheUpstreamIsNotAsItIsThere: frozen, held, stale, out of contact or not read to the end.
func TestNoConditionIsWrittenWhileTheUpstreamIsNotAsItIsThere(t *testing.T) {
	good := upstreams.Status{Status: intake.Status{InContact: true, Synced: true, Complete: true}}
	if !writable(good) {
		t.Fatal("a good one")
	}
	for what, spoil := range map[string]func(*upstreams.Status){
		"out of contact": func(u *upstreams.Status) { u.InContact = false }, "from disk": func(u *upstreams.Status) { u.Complete = false },
		"held": func(u *upstreams.Status) { u.Held = &intake.Held{} }, "frozen or rolled back": func(u *upstreams.Status) { u.Frozen = &intake.Frozen{} },
		"stale": func(u *upstreams.Status) { u.Stale = true }, "not synced": func(u *upstreams.Status) { u.Synced = false },
	} {
		u := good
		if spoil(&u); writable(u) {
			t.Error(what)
		}
	}

	a := startArriving(t, ", status: meshrelay.io/Distributed", "")
	a.client("good", func() string { return "" })
	a.entry("a", "a.x")
	a.becomes("a", "True")
	if _, err := a.manager.Order(t.Context(), "east", "freeze", intake.Order{}); err != nil {
		t.Fatal(err)
	}
	c := newConditions(a.Relay)
	one := &condition{Resource: a.aggregate.Get(entryKey("a"))}
	a.east.Set(func() { delete(a.east.Objects[entriesOf]["shop/a"], "status") })
	before := a.east.Asked("PATCH")
	if !c.look(t.Context(), one) || a.east.Asked("PATCH") != before {
		t.Error("written while frozen")
	}
	if _, err := a.manager.Order(t.Context(), "east", "unfreeze", intake.Order{}); err != nil {
		t.Fatal(err)
	}
	if !c.look(t.Context(), one) || one.told.Status != "True" || !strings.HasPrefix(a.condition("a"), "True") {
		t.Errorf("%+v, %s", one.told, a.condition("a"))
	}
}

// TestWhatHasNoObjectIsAskedForOnce for each condition.
func TestWhatHasNoObjectIsAskedForOnce(t *testing.T) {
	a := startArriving(t, ", status: meshrelay.io/Distributed", "")
	a.client("good", func() string { return "" })
	path := "/serviceentries/a"
	a.east.Set(func() {
		a.east.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, path) {
				fakekube.Fail(w, http.StatusNotFound, "NotFound")
				return true
			}
			return false
		}
	})
	a.entry("a", "a.x")
	await.Until(t, "the object was asked for", func() bool { return a.east.Asked(path) > 0 })
	for _, name := range []string{"b", "c", "d"} { // many rounds
		a.entry(name, name+".x")
		a.becomes(name, "True")
	}
	if n := a.east.Asked(path); n > 2 { // pending and distributed
		t.Errorf("it was asked for %d times", n)
	}
}

// TestOneReplicaWritesConditions: that which has the Lease, and it tells of its own clients alone.
func TestOneReplicaWritesConditions(t *testing.T) {
	a := startArriving(t, ", status: meshrelay.io/Distributed", "replicas: {cluster: {kubeconfig: KUBECONFIG}, namespace: mesh}")
	a.client("good", func() string { return "" })
	a.entry("a", "a.x")
	a.becomes("a", "True OneReplica all clients of one replica have it")
	a.east.Set(func() {
		if holder := fmt.Sprint(a.east.Objects["coordination.k8s.io/leases"]["mesh/relay-orders-conditions"]["spec"]); !strings.Contains(holder, "holderIdentity:hub_") {
			t.Error(holder)
		}
	})
	other := newConditions(a.Relay)
	other.share(lease.Options{Namespace: "mesh", Name: "relay-orders-conditions", Identity: "other"})
	if due := other.round(map[string]bool{"east": true}, time.Now()); other.writes() || len(due)+len(other.all) > 0 {
		t.Errorf("a replica without the Lease has %d conditions to write", len(due)+len(other.all))
	}
}

// TestMessagesOfConditionsHaveNoNumbersThatMove.
func TestMessagesOfConditionsHaveNoNumbersThatMove(t *testing.T) {
	alone := newConditions(nil)
	refuser := []downstream.Holder{{NodeID: "sidecar~1~east-istiod-0.istio-system~x", Error: "bad"}}
	for _, row := range []struct {
		a, b downstream.Distribution
		want string
	}{
		{downstream.Distribution{Clients: 3, Has: 3}, downstream.Distribution{Clients: 8, Has: 8}, "True Distributed all clients have it"},
		{downstream.Distribution{Clients: 3, Has: 1, Lacks: 2}, downstream.Distribution{Clients: 3, Has: 2, Lacks: 1}, "False Pending not all clients have it"},
		{downstream.Distribution{Has: 1, Refuses: 1, Refusing: refuser}, downstream.Distribution{Has: 7, Lacks: 2, Refuses: 1, Refusing: refuser}, "False Rejected refused by east-istiod-0.istio-system: bad"},
	} {
		for _, d := range []downstream.Distribution{row.a, row.b} {
			if c, known := alone.of(d, ""); !known || string(c.Status)+" "+c.Reason+" "+c.Message != row.want {
				t.Errorf("%+v: %+v", d, c)
			}
		}
	}
	if _, known := alone.of(downstream.Distribution{}, ""); known {
		t.Error("no client sees it")
	}
	if _, known := alone.of(downstream.Distribution{Has: 1}, "other"); known {
		t.Error("it has changed")
	}
}

// TestARoundHasWhatWasLookedAtLeastAndChangedLast: so what no client sees, of which there may be much, delays no change.
func TestARoundHasWhatWasLookedAtLeastAndChangedLast(t *testing.T) {
	a := startArriving(t, "", "")
	c, on, now := newConditions(a.Relay), map[string]bool{"west": true}, time.Now()
	const unseen = 3 * looksMost
	store := mirror.NewStore()
	a.aggregate.SetSources([]mirror.Source{{Name: "west", Store: store}})
	put := func(name string) { store.Put(resource(t, "west", name)) }
	merged := func() {
		if err := a.aggregate.CaughtUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range unseen {
		put(fmt.Sprint("unseen-", i))
	}
	merged()
	if due := c.round(on, now); len(due) > 0 {
		t.Fatalf("%d are due in the round in which they came", len(due))
	}
	looked := map[string]int{}
	round := func() (due []*condition) {
		now = now.Add(c.pause)
		due = c.round(on, now)
		for _, one := range due {
			one.looks++
			looked[one.Key().Name]++
		}
		return due
	}
	for range unseen / looksMost {
		round()
	}
	if len(looked) != unseen {
		t.Errorf("%d are looked at", len(looked))
	}
	put("new")
	merged()
	round()
	if due := round(); len(due) != looksMost || due[0].Key().Name != "new" {
		t.Errorf("%d, first %v", len(due), due[0].Key())
	}
	for _, one := range c.all {
		one.told.Status = "True"
	}
	if due := round(); len(due) > 0 {
		t.Errorf("%d are looked at that have arrived", len(due))
	}
}

// TestConditionsAreOptIn: without kubernetes.status none is written.
func TestConditionsAreOptIn(t *testing.T) {
	a := startArriving(t, "", "")
	a.client("good", func() string { return "" })
	a.entry("a", "a.x")
	await.Equal(t, "it has arrived", 1, func() int { return a.server.Distribution(entryKey("a")).Has })
	if n := a.east.Asked("PATCH"); n > 0 || newConditions(a.Relay).round(map[string]bool{}, time.Now()) != nil {
		t.Errorf("%d were written", n)
	}
}

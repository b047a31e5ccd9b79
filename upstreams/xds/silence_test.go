package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/doctor"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

const (
	meshURL    = "core/v1alpha1/MeshConfig"
	entryURL   = "networking.istio.io/v1alpha3/ServiceEntry"
	serviceURL = "networking.istio.io/v1/VirtualService"
)

// place is a server, and a relay with a disk that reads it. Both live in a bubble of synctest.
type place struct {
	t       *testing.T
	server  *fakexds.Server
	lis     atomic.Pointer[bufconn.Listener] // nil: the server is down
	disk    disk
	m       *upstreams.Manager
	journal *events.Journal
	stop    func()
	tune    func(*Source) // unless nil, called with the source before it runs
}

// disk keeps one upstream.
type disk struct {
	source  state.Source
	saved   state.Saved
	records map[mirror.Key]state.Record
}

func (d *disk) Load(string) state.Saved {
	d.saved.Records = slices.Collect(maps.Values(d.records))
	return d.saved
}
func (d *disk) Follow(_ string, s state.Source)           { d.source = s }
func (d *disk) Unfollow(string)                           {}
func (d *disk) History(string) ([]state.Revision, error)  { return nil, nil }
func (d *disk) At(string, uint64) ([]state.Record, error) { return nil, nil }
func (d *disk) Served() bool                              { return false }
func (d *disk) MarkServed()                               {}
func (d *disk) Flush(context.Context) error {
	changes, meta := d.source.TakeChanges()
	for _, c := range changes {
		if delete(d.records, c.Key); c.Record != nil {
			d.records[c.Key] = *c.Record
		}
	}
	d.saved.Meta = meta
	return nil
}

func newPlace(t *testing.T) *place {
	p := &place{t: t, disk: disk{records: map[mirror.Key]state.Record{}}}
	p.up()
	t.Cleanup(func() { p.halt() })
	return p
}

// up starts a server with some ServiceEntries, a VirtualService and a MeshConfig.
func (p *place) up() {
	lis := bufconn.Listen(1 << 20)
	p.lis.Store(lis)
	p.server = fakexds.Start(p.t, &fakexds.Server{Listener: lis})
	p.server.Set(entryURL, entry("shop/a"), entry("shop/b"))
	p.server.Set(serviceURL, fakexds.MCP("shop/v", &networking.VirtualService{Hosts: []string{"v.example"}}))
	packed, err := anypb.New(&mesh.MeshConfig{TrustDomain: "east.example"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.server.Set(meshURL, fakexds.Resource{Any: packed})
}

// dial has a relay connect to the server in memory.
func (p *place) dial() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		lis := p.lis.Load()
		if lis == nil {
			return nil, errors.New("down")
		}
		return lis.DialContext(ctx)
	})
}

// ask asks the server as doctor does, for at most 3 s.
func (p *place) ask(u config.Upstream) doctor.Finding {
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*time.Second)
	defer cancel()
	one := p.prober(u)
	got, err := one.ask(ctx)
	return one.stream(ctx, got, err)
}

func (p *place) prober(u config.Upstream) prober {
	return prober{section: sectionOf(u), upstream: u, env: upstreams.Env{Node: node}, address: "server", dial: []grpc.DialOption{p.dial()}}
}

// node is the relay.
var node = config.Node{ID: "relay-1", Namespace: "istio-system", IP: "10.0.0.7"}

func (p *place) down() {
	p.server.Stop()
	p.lis.Store(nil)
}

func entry(name string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{name}})
}

// begin starts a relay with what is on disk.
func (p *place) begin(change func(*config.Upstream)) {
	u := config.Upstream{
		Name: "east", ClusterID: "east", Generated: "drop", Services: config.Services{Mode: config.ServicesOmit}, Guard: config.Guard{Percent: 100},
		Staleness: config.Staleness{StaleAfter: config.Duration(5 * time.Minute)},
		Source:    &Config{Addresses: []string{"server"}, Protocol: "auto", Plaintext: true, ResyncInterval: config.Duration(5 * time.Minute)},
	}
	if change != nil {
		change(&u)
	}
	var err error
	kind := Kind(p.dial())
	if p.tune != nil {
		kind.New = func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
			s := New(u, env, p.dial())
			p.tune(s)
			return s, nil
		}
	}
	p.m, err = upstreams.NewManager(&config.Config{Upstreams: []config.Upstream{u}, Node: node},
		[]upstreams.Kind{kind}, mirror.NewAggregate(), &p.disk, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	p.journal = events.New()
	p.m.Record(p.journal)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.m.Run(ctx) }()
	p.stop = func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
}

// halt ends the relay, which writes to the disk.
func (p *place) halt() {
	if p.stop == nil {
		return
	}
	p.stop()
	p.stop = nil
	if err := p.disk.Flush(context.Background()); err != nil {
		p.t.Error(err)
	}
}

func (p *place) after(d time.Duration) upstreams.Status {
	await.Settle(d)
	return p.m.Status()[0]
}

// answered waits for the first answer.
func (p *place) answered() {
	p.t.Helper()
	for range 100 {
		if st := p.after(100 * time.Millisecond); st.State == upstreams.StateSyncing && !st.LastUpdate.IsZero() {
			return
		}
	}
	p.t.Fatalf("not answered after 10 s: %+v", p.m.Status()[0])
}

// wants demands a state, the types that are not offered, and the number of resources.
func (p *place) wants(st upstreams.Status, state upstreams.State, notOffered, resources int) {
	p.t.Helper()
	n := 0
	for _, of := range st.Resources {
		n += of
	}
	if st.State != state || st.Synced != (state == upstreams.StateSynced) || len(st.NotOffered) != notOffered || n != resources {
		p.t.Fatalf("%s, synced %v, %d resources, not offered %v, silence %q; want %s, %d resources, %d not offered", st.State, st.Synced, n, st.NotOffered, st.Silence, state, resources, notOffered)
	}
}

// told returns the texts of the events about types that are not offered.
func (p *place) told() (texts []string) {
	for _, e := range p.journal.Read(events.Query{Filter: events.Filter{Types: []events.Type{events.NotOffered}}}).Events {
		texts = append(texts, e.Text)
	}
	return texts
}

func partial(u *config.Upstream) { u.Source.(*Config).Partial = true }

func only(kinds ...string) func(*config.Upstream) {
	return func(u *config.Upstream) { u.Import.Kinds = kinds }
}

// TestAServerWithoutMeshConfigIsSynced_C21, stays connected, and loses nothing by a restart of the relay.
func TestAServerWithoutMeshConfigIsSynced_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		p.server.Withhold(meshURL, true)
		p.begin(nil)
		p.answered()
		p.wants(p.after(9*time.Second), upstreams.StateSyncing, 0, 3)
		p.wants(p.after(6*time.Second), upstreams.StateSynced, 1, 3)
		streams := p.server.Streams()
		st := p.after(time.Hour)
		p.wants(st, upstreams.StateSynced, 1, 3)
		if want := "types not offered: 1, such as " + meshURL; p.server.Streams() != streams || !slices.Contains(st.Notes, want) {
			t.Errorf("%d streams more, notes %q", p.server.Streams()-streams, st.Notes)
		}
		if told := p.told(); !slices.Equal(told, []string{"types not offered: " + meshURL}) {
			t.Errorf("the journal has %q", told)
		}

		p.halt()
		p.down()
		p.begin(nil)
		if st := p.after(time.Hour); !st.Stale || st.Resources["networking.istio.io/ServiceEntry"] != 2 {
			t.Fatalf("without the server: %+v", st)
		}
		p.up()
		p.server.Withhold(meshURL, true)
		p.after(time.Minute) // the pause between attempts
		if st := p.after(15 * time.Second); st.Stale || !st.InContact {
			t.Errorf("the server is back: %+v", st)
		}
		p.wants(p.after(time.Hour), upstreams.StateSynced, 1, 3)

		p.server.End(nil)
		p.after(time.Minute)
		if told := p.told(); len(told) != 1 {
			t.Errorf("after another stream the journal has %q", told)
		}
		// What is offered later is taken.
		p.server.Withhold(meshURL, false)
		p.wants(p.after(10*time.Minute), upstreams.StateSynced, 0, 4)
		if told := p.told(); len(told) != 2 || told[1] != "types not offered: none" {
			t.Errorf("the journal has %q", told)
		}
	})
}

func TestAServerOfServiceEntriesAloneIsSyncedIfItIsPartial_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		p.server.Offer(entryURL)
		p.begin(partial)
		p.answered()
		lacks := len(askedFor(false, nil)) - 1
		p.wants(p.after(15*time.Second), upstreams.StateSynced, lacks, 2)
		streams := p.server.Streams()
		p.wants(p.after(time.Hour), upstreams.StateSynced, lacks, 2)
		if n := p.server.Streams(); n != streams {
			t.Errorf("%d streams more in an hour", n-streams)
		}
		p.halt()
		p.down()
		p.begin(partial)
		p.after(time.Hour)
		p.up()
		p.server.Offer(entryURL)
		p.after(time.Minute)
		p.wants(p.after(15*time.Second), upstreams.StateSynced, lacks, 2)
	})
}

// TestAServerThatIsSilentAboutKindsStaysSyncing_C21, and the status tells what to do.
func TestAServerThatIsSilentAboutKindsStaysSyncing_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		p.server.Offer(entryURL, serviceURL)
		p.begin(nil)
		p.answered()
		st := p.after(15 * time.Second)
		p.wants(st, upstreams.StateSyncing, 1, 3)
		kinds := len(mirror.Kinds()) - 1 // without MeshConfig
		if want := fmt.Sprintf("answers 2 kinds and is silent about %d, such as GatewayClass: %s", kinds-2, ifSilent); st.Silence != want {
			t.Errorf("%q, want %q", st.Silence, want)
		}
		await.Pass(2 * time.Hour)
		if st := p.after(0); st.Synced || p.server.Streams() > 20 {
			t.Errorf("synced %v, %d streams", st.Synced, p.server.Streams())
		}
		p.halt()
		p.server.Offer(entryURL, "networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1beta1/ServiceEntry")
		p.begin(only("se"))
		p.after(15 * time.Second) // a server without MeshConfig tells late that it is no relay
		p.wants(p.after(15*time.Second), upstreams.StateSynced, 1, 2)
		var kept []string
		for _, l := range p.m.LeftOut() {
			kept = append(kept, l.Kind)
			if l.Reason != "kind" || l.Name != "" || l.Detail != "the kind is not asked for: import.kinds does not have it" {
				t.Errorf("left out: %+v", l)
			}
		}
		if len(kept) != kinds-1 || slices.Contains(kept, "networking.istio.io/ServiceEntry") || slices.Contains(kept, "core/MeshConfig") {
			t.Errorf("not asked for: %q", kept)
		}
	})
}

// TestAnIstiodMayPauseBetweenTwoKinds_C21: it has a second kind, and reads that for a minute.
func TestAnIstiodMayPauseBetweenTwoKinds_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		for pause := range 3 {
			p.server.Withhold(serviceURL, true)
			p.begin(nil)
			p.answered()
			for range 60 {
				if st := p.after(time.Second); st.Synced || len(st.NotOffered) > 0 {
					t.Fatalf("start %d: synced %v, not offered %v", pause, st.Synced, st.NotOffered)
				}
			}
			p.server.Withhold(serviceURL, false)
			p.server.Push(serviceURL)
			p.wants(p.after(2*time.Minute), upstreams.StateSynced, 0, 4)
			p.halt()
			p.disk.records = map[mirror.Key]state.Record{}
			p.disk.saved = state.Saved{}
		}
	})
}

// TestDoctorTellsWhichTypesAreNotOffered, and of those that are awaited what to do.
func TestDoctorTellsWhichTypesAreNotOffered(t *testing.T) {
	for name, tc := range map[string]struct {
		offers []string
		change func(*config.Upstream)
		level  doctor.Level
		text   string
	}{
		"MeshConfig":  {askedFor(false, nil)[1:], nil, doctor.OK, "types in time, with 0 resources: no answer to " + meshURL + ", which counts as not offered"},
		"partial":     {[]string{entryURL}, partial, doctor.OK, "answers 1 of"},
		"not partial": {[]string{entryURL}, nil, doctor.Warning, fmt.Sprintf("answers 1 kinds and is silent about %d, such as MeshConfig", len(mirror.Kinds())-1)},
		"one kind":    {[]string{meshURL, entryURL}, only("gateways.networking.istio.io"), doctor.Warning, "answers 1 kinds and is silent about 1, such as Gateway"},
		"nothing":     {[]string{"none"}, partial, doctor.Failed, "answers 0 of"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := registryPlace(t)
				fakexds.Start(t, &fakexds.Server{Listener: p.lis.Load()}).Offer(tc.offers...)
				u := config.Upstream{Name: "east", Services: config.Services{Mode: config.ServicesOmit}, Source: &Config{Plaintext: true}}
				u.Limits.MaxResponseBytes = 1 << 20
				if tc.change != nil {
					tc.change(&u)
				}
				last := p.ask(u)
				if last.Level != tc.level || !strings.Contains(last.What, tc.text) {
					t.Errorf("%+v", last)
				}
				if cures := strings.Contains(last.Fix, ifSilent); cures != (tc.level == doctor.Warning) {
					t.Errorf("fix %q", last.Fix)
				}
			})
		})
	}
}

// TestDoctorTellsOfAKindOfWhichAllIsLeftOut, as from servers that name their own as istiods name what they generate.
func TestDoctorTellsOfAKindOfWhichAllIsLeftOut(t *testing.T) {
	for name, test := range map[string]struct {
		names, generated string
		found            bool
	}{
		"all":                 {"web/istio-autogenerated-k8s-ingress-a web/istio-autogenerated-k8s-ingress-b", "drop", true},
		"all, which are kept": {"web/istio-autogenerated-k8s-ingress-a", "keep", false},
		"one of two":          {"web/istio-autogenerated-k8s-ingress-a web/b", "drop", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := registryPlace(t)
				server := fakexds.Start(t, &fakexds.Server{Listener: p.lis.Load()})
				var all []fakexds.Resource
				for _, n := range strings.Fields(test.names) {
					all = append(all, fakexds.MCP(n, &networking.VirtualService{Hosts: []string{"v.example"}}))
				}
				server.Set(serviceURL, all...)
				u := config.Upstream{Name: "east", Generated: test.generated, Services: config.Services{Mode: config.ServicesOmit}, Source: &Config{Plaintext: true}}
				u.Limits.MaxResponseBytes = 1 << 20
				one := p.prober(u)
				got, err := one.ask(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				found := one.leftOut(got)
				if len(found) > 0 != test.found || test.found && !strings.HasSuffix(found[0].What, "of networking.istio.io/VirtualService") {
					t.Errorf("%+v", found)
				}
			})
		})
	}
}

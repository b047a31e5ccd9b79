package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"meshrelay/config"
	"meshrelay/decisions"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/testca"
	"meshrelay/peers"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

const replicaIdentity = "spiffe://cluster.local/ns/istio-system/sa/relay"

// site are the replicas of one relay. Each has an upstream east, of a directory of its own.
type site struct {
	t        *testing.T
	ca       *testca.CA
	mu       sync.Mutex
	at       []netip.AddrPort
	diskless bool   // replicas have no state.dir
	store    string // replicas.kubernetes
	sockets  string // a directory, empty for none
	// before is called with each replica before it runs.
	before func(*Relay)
}

func newSite(t *testing.T) *site { return &site{t: t, ca: testca.New(t)} }

func (s *site) lookup(context.Context) ([]netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.at), nil
}

// join adds an address to the service.
func (s *site) join(at string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, netip.MustParseAddrPort(at))
}

// member is one replica.
type member struct {
	*Relay
	t      *testing.T
	source string            // the directory of its upstream
	hosts  map[string]string // of its resources, by name; all are in one file
	dir    string
	stop   func()
	socket string
}

// freeAddress returns an address on which nobody listens, and each only once. It is below the range from which the system
// assigns ports, so that nobody gets it by chance before it is used.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(8000))
		if _, taken := given.LoadOrStore(address, true); taken {
			continue
		}
		lis, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		lis.Close()
		return address
	}
	t.Fatal("no port is free")
	return ""
}

// given are the addresses that freeAddress has returned, or tried.
var given sync.Map

// start runs a replica whose upstream has some resources. fields are more fields of the upstream.
func (s *site) start(name, fields string, resources ...string) *member {
	s.t.Helper()
	m := &member{t: s.t, dir: s.t.TempDir(), hosts: map[string]string{}}
	m.source = filepath.Join(m.dir, "east")
	if err := os.Mkdir(m.source, 0o700); err != nil {
		s.t.Fatal(err)
	}
	for _, one := range resources {
		m.hosts[one] = one + ".example"
	}
	m.save()
	files, listen := s.ca.Issue(s.t, m.dir, replicaIdentity, time.Now().Add(time.Hour)), freeAddress(s.t)
	state := "dir: state, flushInterval: 10ms"
	if s.diskless {
		state = ""
	}
	admin := ""
	if s.sockets != "" {
		m.socket = filepath.Join(s.sockets, name)
		admin = ", socket: " + m.socket
	}
	text := fmt.Sprintf(`node: {id: %s}
provenance: {relay: relay}
admin: {address: "127.0.0.1:0"%s}
state: {%s}
downstream: {startupTimeout: 1h, listeners: [{address: "127.0.0.1:0", plaintext: true}]}
replicas: {%speers: {service: "relay-peers:15016", listen: %q, certFile: %s, keyFile: %s, caFile: %s}}
upstreams: [{name: east, file: {path: east}%s}]
`, name, admin, state, s.store, listen, files.Cert, files.Key, files.Roots, fields)
	path := filepath.Join(m.dir, "relay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	watcher := config.NewWatcher(path, Sources()...)
	cfg, err := watcher.Load()
	if err != nil {
		s.t.Fatal(err)
	}
	complete := func(c *config.Config) { c.FitMemory(1 << 30) }
	complete(cfg)
	if m.Relay, err = New(Options{
		Config: cfg, Watcher: watcher, Complete: complete, Build: buildinfo.Info{Version: "1"},
		Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar), Lookup: s.lookup,
	}); err != nil {
		s.t.Fatal(err)
	}
	if s.before != nil {
		s.before(m.Relay)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(m.stop)
	s.join(listen)
	return m
}

func (m *member) write(name, host string) {
	m.t.Helper()
	m.hosts[name] = host
	m.save()
}

// remove removes resources at once: a guard that sees some of them go before the others may let those go.
func (m *member) remove(names ...string) {
	m.t.Helper()
	for _, name := range names {
		delete(m.hosts, name)
	}
	m.save()
}

// save replaces the file of the resources, or removes it if there are none.
func (m *member) save() {
	m.t.Helper()
	var text strings.Builder
	for name, host := range m.hosts {
		fmt.Fprintf(&text, "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop}\nspec: {hosts: [%s]}\n", name, host)
	}
	path, next := filepath.Join(m.source, "all.yaml"), filepath.Join(m.dir, "next.yaml")
	err := os.WriteFile(next, []byte(text.String()), 0o600)
	switch {
	case err != nil:
	case len(m.hosts) > 0:
		err = os.Rename(next, path)
	default:
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// east returns the status of the upstream.
func (m *member) east() (st peers.Upstream) {
	own := m.replicas.own()
	return *own.Of("east")
}

// has waits until the upstream has a number of resources.
func (m *member) has(resources int) {
	m.t.Helper()
	await.Equal(m.t, "it has them", resources, func() int { return m.east().Resources })
}

// holds waits until the guard holds a number of deletions.
func (m *member) holds(deletions int) {
	m.t.Helper()
	await.Equal(m.t, "the guard holds", deletions, func() int { return m.east().Held })
}

// reaches waits until it gets answers of a number of replicas.
func (m *member) reaches(others int) {
	m.t.Helper()
	await.Equal(m.t, "they answer", others, func() int { answers, _ := m.replicas.set.Statuses(m.t.Context()); return len(answers) })
}

// names returns the names of n resources.
func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("r%03d", i))
	}
	return all
}

func (m *member) serves() {
	m.t.Helper()
	await.Closed(m.t, "it serves clients", m.server.Released())
}

func TestAReplicaWithoutADiskBeginsWithWhatAnotherServesAndTheGuardJudgesWhatIsGone(t *testing.T) {
	s := newSite(t)
	first := s.start("relay-0", "", names(100)...)
	first.serves()
	first.has(100)

	next := s.start("relay-1", "", names(50)...) // half of it is gone meanwhile
	next.serves()
	next.holds(50)
	if got := next.east(); got.Resources != 100 || got.Content != first.east().Content {
		t.Errorf("it has %+v, and the other one %+v", got, first.east())
	}
	if err := next.keeper.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if saved := next.keeper.Load("east"); len(saved.Records) != 100 || !saved.Meta.Synced {
		t.Errorf("on the disk are %d resources, %+v", len(saved.Records), saved.Meta)
	}
}

func TestAReplicaWhoseUpstreamIsAwayServesWhatAnotherServes(t *testing.T) {
	s := newSite(t)
	first := s.start("relay-0", "", names(3)...)
	first.serves()
	for _, s.diskless = range []bool{false, true} {
		next := s.start("relay-1", ", firstSync: wait")
		if err := os.RemoveAll(next.source); err != nil {
			t.Fatal(err)
		}
		next.serves()
		if got := next.east(); got.Resources != 3 {
			t.Errorf("without state.dir %v: %+v", s.diskless, got)
		}
		next.stop()
	}
}

func TestAReplicaThatHoldsItsClientsHasNothingForOthers(t *testing.T) {
	s := newSite(t)
	// It has east, and holds its clients for west, which never syncs.
	waits := s.start("relay-0", "}, {name: west, firstSync: wait, file: {path: nowhere}", names(3)...)
	await.Until(t, "east is read", func() bool { u := waits.east(); return u.InContact && u.Resources == 3 }, func() any { return waits.east() })
	for _, name := range []string{"east", "west", "nobody"} {
		if err := waits.writeSaved(t.Context(), url.Values{"upstream": {name}}, io.Discard); !errors.Is(err, peers.ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := waits.manager.Order(t.Context(), "west", "serve-without", intake.Order{}); err != nil {
		t.Fatal(err)
	}
	waits.serves()
	if err := waits.writeSaved(t.Context(), url.Values{"upstream": {"east"}}, io.Discard); err != nil {
		t.Errorf("when it serves its clients: %v", err)
	}
	c := candidates{byPeer: map[string]peers.Status{"a": {Upstreams: []peers.Upstream{{Name: "east", Resources: 3}}}}}
	if found := c.with("east"); len(found) != 0 {
		t.Errorf("it is asked: %q", found)
	}
}

// TestReplicasInContactAreAskedFirst, then those that were so last, each by its own clock.
func TestReplicasInContactAreAskedFirst(t *testing.T) {
	has := func(resources int, inContact bool, minute int) peers.Status {
		return peers.Status{Serving: true, Time: time.Unix(600, 0), Upstreams: []peers.Upstream{{Name: "east", Resources: resources, InContact: inContact, LastContact: time.Unix(60*int64(minute), 0)}}}
	}
	c := candidates{byPeer: map[string]peers.Status{"old": has(9, false, 1), "newer": has(5, false, 2), "less": has(3, true, 0), "more": has(4, true, 0), "nothing": has(0, true, 0)}}
	fast := has(7, false, 6)
	fast.Time = fast.Time.Add(5 * time.Minute)
	fast.Upstreams[0].LastContact = time.Unix(330, 0) // its clock is 5 minutes ahead, so this is older than "old"
	c.byPeer["fast"] = fast
	if got := strings.Join(c.with("east"), " "); got != "more less newer old fast" {
		t.Error(got)
	}
}

// hostile runs a replica that claims to have the most, and whose content is another.
func (s *site) hostile(content peers.Document) {
	s.t.Helper()
	files, lis := s.ca.Issue(s.t, s.t.TempDir(), replicaIdentity, time.Now().Add(time.Hour)), listenOnLoopback(s.t)
	creds, err := peers.NewCredentials(files.Cert, files.Key, files.Roots, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	claims := peers.Status{Process: "hostile" + lis.Addr().String(), Serving: true, Time: time.Now(), Upstreams: []peers.Upstream{{Name: "east", InContact: true, Resources: 1 << 40, Held: 1}}}
	server := peers.NewServer("", creds, claims.Process, map[string]peers.Document{
		"status": func(_ context.Context, _ url.Values, w io.Writer) error { return json.NewEncoder(w).Encode(claims) },
		"state":  content, "held": content,
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.join(lis.Addr().String())
}

func listenOnLoopback(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

func TestReplicasTellWhichServesAnotherContent(t *testing.T) {
	s := newSite(t)
	a, b := s.start("relay-0", "", names(3)...), s.start("relay-1", "", names(3)...)
	a.serves()
	b.serves()
	b.write("more", "more.example")
	b.has(4)
	a.replicas.poll(t.Context())
	all := a.replicas.all()
	if len(all) != 2 || all[0].Status.Node != "relay-0" || all[1].Status.Node != "relay-1" || all[1].Status.Config == "" || all[1].Status.Version != "1" {
		t.Fatalf("%+v", all)
	}
	if d := all[1].Differences; len(d) != 1 || d[0].Upstream != "east" || d[0].Here != 3 || d[0].There != 4 {
		t.Errorf("%+v", d)
	}
	a.write("more", "more.example")
	await.Equal(t, "they have the same", b.east().Content, func() string { return a.east().Content })
	a.replicas.poll(t.Context())
	if d := a.replicas.all()[1].Differences; len(d) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestADecisionIsAppliedWhereItCanBeReached(t *testing.T) {
	s := newSite(t)
	var mu sync.Mutex
	folded := uint64(4)
	s.before = func(r *Relay) {
		r.replicas.decided = func() *upstreams.ReplicasStatus {
			if r.config.Load().Node.ID == "relay-0" {
				return &upstreams.ReplicasStatus{Sequence: 9}
			}
			mu.Lock()
			defer mu.Unlock()
			folded++ // with each question
			return &upstreams.ReplicasStatus{Sequence: folded}
		}
	}
	a, b := s.start("relay-0", "", "a"), s.start("relay-1", "", "a")
	a.serves()
	b.serves()
	a.reaches(1)
	gone := freeAddress(t)
	s.join(gone)
	if did, of, unreachable := a.replicas.Applied(t.Context(), "a", 9); did != 1 || of != 2 || !slices.Equal(unreachable, []string{gone}) {
		t.Errorf("%d of %d, without %q", did, of, unreachable)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if did, _, _ := a.replicas.Applied(ctx, "a", 1<<40); did != 0 {
		t.Errorf("%d have a decision that nobody has made", did)
	}
}

func TestHeldResourcesComeFromTheReplicaThatHoldsThem(t *testing.T) {
	s := newSite(t)
	a, b := s.start("relay-0", "", names(20)...), s.start("relay-1", "", names(20)...)
	a.serves()
	b.serves()
	b.has(20)
	b.remove(names(15)...)
	b.holds(15)
	got, begun := a.replicas.Held(t.Context(), &decisions.Record{Upstream: "east", Replica: "relay-1"}, 0)
	if len(got) != 15 || begun != 15 {
		t.Fatalf("%d resources, %d of relay-1", len(got), begun)
	}
	for _, r := range got {
		if !a.aggregate.Get(r.Key()).Equal(r) {
			t.Errorf("%s is another than here", r.Key())
		}
	}
	s.hostile(func(_ context.Context, _ url.Values, w io.Writer) error {
		_, err := io.WriteString(w, "garbage")
		return err
	})
	if got, begun := a.replicas.Held(t.Context(), &decisions.Record{Upstream: "east", Replica: "relay-1"}, 0); len(got) != 15 || begun != 15 {
		t.Errorf("with one that holds rubbish: %d resources", len(got))
	}
	if got, _ := b.replicas.Held(t.Context(), &decisions.Record{Upstream: "east"}, 0); len(got) != 0 {
		t.Errorf("no other holds anything, and it gets %d resources", len(got))
	}
}

func TestTheContentOfAFreezeComesFromAReplicaThatServesIt(t *testing.T) {
	s := newSite(t)
	a, b := s.start("relay-0", "", names(20)...), s.start("relay-1", "", names(15)...)
	a.serves()
	b.serves()
	a.has(20)
	b.has(15)
	s.hostile(func(_ context.Context, _ url.Values, w io.Writer) error {
		_, err := io.WriteString(w, "garbage")
		return err
	})
	saved, err := a.manager.Saved("east")
	if err != nil {
		t.Fatal(err)
	}
	want := &decisions.Record{Upstream: "east", Replica: "relay-0", Content: upstreams.ContentOf(saved.Records)}
	if got := b.replicas.Content(t.Context(), want); len(got) != 20 || upstreams.ContentOf(got) != want.Content {
		t.Errorf("%d resources", len(got))
	}
	if got := a.replicas.Content(t.Context(), want); got != nil {
		t.Errorf("no other has it, and it gets %d resources", len(got))
	}
}

// other is a replica that is made of its documents.
type other map[string]peers.Document

// telling returns a replica whose status has a number of resources of east, all held, and a copy of some for each who asks.
func telling(t *testing.T, claimed, given int) other {
	t.Helper()
	saved := state.Saved{Meta: state.Meta{Synced: true}}
	for i := range given {
		saved.Records = append(saved.Records, state.Record{Resource: resource(t, "east", names(given)[i])})
	}
	give := func(_ context.Context, _ url.Values, w io.Writer) error { return local.WriteCopy(w, "east", saved) }
	return other{"state": give, "held": give, "status": func(_ context.Context, _ url.Values, w io.Writer) error {
		return json.NewEncoder(w).Encode(peers.Status{Serving: true, Time: time.Now(), Upstreams: []peers.Upstream{{Name: "east", InContact: true, Resources: claimed, Held: claimed}}})
	}}
}

func hangs(ctx context.Context, _ url.Values, _ io.Writer) error { <-ctx.Done(); return ctx.Err() }

// idle returns one of several replicas that does not run. fields are more fields of its config.
func idle(t *testing.T, fields string, lookup peers.Lookup) *Relay {
	t.Helper()
	dir := t.TempDir()
	files := testca.New(t).Issue(t, dir, replicaIdentity, time.Now().Add(time.Hour))
	text := fmt.Sprintf(`downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
replicas: {peers: {service: "relay-peers:15016", listen: "127.0.0.1:15016", certFile: %s, keyFile: %s, caFile: %s}}
upstreams: [{name: east, file: {path: east}, limits: {maxBytes: 65536}}]
%s`, files.Cert, files.Key, files.Roots, fields)
	cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(text), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(c *config.Config) { c.FitMemory(1 << 30) },
		Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar), Lookup: lookup,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// asking returns the replicas of an idle relay. All is in a bubble: it has connections in memory to the others.
func asking(t *testing.T, others ...other) *replicas {
	t.Helper()
	s := &site{t: t}
	r := idle(t, "", s.lookup)
	at := map[string]*bufconn.Listener{}
	for i, documents := range others {
		address, lis := fmt.Sprintf("10.0.0.%d:15016", i+1), bufconn.Listen(1<<16)
		at[address] = lis
		s.join(address)
		server := peers.NewServer("", r.replicas.creds, address, documents, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- server.Serve(ctx, lis) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	r.replicas.set.DialWith(func(ctx context.Context, _, address string) (net.Conn, error) { return at[address].DialContext(ctx) })
	return r.replicas
}

// TestABrokenAnswerIsSkippedForThatOfAnotherReplica: rubbish, one without an end, and one that does not come.
func TestABrokenAnswerIsSkippedForThatOfAnotherReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var others []other
		for _, broken := range []peers.Document{
			func(_ context.Context, _ url.Values, w io.Writer) error {
				_, err := io.WriteString(w, strings.Repeat("garbage", 1000))
				return err
			},
			func(ctx context.Context, _ url.Values, w io.Writer) error {
				for ctx.Err() == nil {
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						return err
					}
				}
				return ctx.Err()
			},
			hangs,
		} {
			one := telling(t, 1<<40, 0)
			one["state"] = broken
			others = append(others, one)
		}
		x := asking(t, append(others, telling(t, 3, 3))...)
		if saved := x.former(t.Context(), x.r.config.Load().Upstreams[0]); len(saved.Records) != 3 || !saved.Meta.Synced {
			t.Errorf("%+v", saved)
		}
	})
}

// TestAReplicaThatHangsDoesNotHideThatOthersHaveApplied a decision that they read a second after it was made.
func TestAReplicaThatHangsDoesNotHideThatOthersHaveApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applies := time.Now().Add(time.Second)
		x := asking(t, other{"status": hangs}, other{"status": func(_ context.Context, _ url.Values, w io.Writer) error {
			status := peers.Status{}
			if time.Now().After(applies) {
				status.Decisions = 9
			}
			return json.NewEncoder(w).Encode(status)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // as an order
		defer cancel()
		if did, of, unreachable := x.Applied(ctx, "east", 9); did != 1 || of != 2 || len(unreachable) != 1 {
			t.Errorf("%d of %d, without %q", did, of, unreachable)
		}
	})
}

func TestAReplicaThatGivesNoStatusDoesNotKeepTheOthersFromGivingWhatTheyHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := asking(t, other{"status": hangs}, telling(t, 15, 15))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // as long as a question of the upstreams
		defer cancel()
		if got, _ := x.Held(ctx, &decisions.Record{Upstream: "east"}, 0); len(got) != 15 {
			t.Errorf("%d resources", len(got))
		}
	})
}

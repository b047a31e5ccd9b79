package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/anypb"
	networkingv1 "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/memory"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// manyClients are clients of a server that does not exist.
type manyClients []downstream.ClientStatus

func (m manyClients) Clients() []downstream.ClientStatus { return m }

func (m manyClients) Peers() []downstream.PeerStatus { return nil }

func (m manyClients) Distribution(key mirror.Key) downstream.Distribution {
	return downstream.Distribution{Key: key}
}

func (m manyClients) Receipts(mirror.Key) []downstream.Receipt { return nil }

func (m manyClients) Shows(string) (string, func(*mirror.Resource) bool, bool) {
	return "", nil, false
}

// manyHeld has many held deletions and a long history.
type manyHeld struct{ controlled }

func (m *manyHeld) Held(string) ([]intake.HeldUpstream, error) {
	held := intake.HeldUpstream{Upstream: "east", Held: intake.Held{ID: "7f3a91c2", Since: time.Now(), Clock: intake.ClockNone, Reason: "40000 of 50000 resources at once", Removals: 40_000, Of: 50_000}}
	for i := range 40_000 {
		held.Deletions = append(held.Deletions, intake.HeldDeletion{Kind: "networking.istio.io/ServiceEntry", Namespace: "namespace-of-a-team", Name: fmt.Sprintf("service-entry-%06d", i), Version: "v", Since: time.Now()})
	}
	return []intake.HeldUpstream{held}, nil
}

func (m *manyHeld) History(string) (all []state.Revision, err error) {
	for i := range 2000 {
		all = append(all, state.Revision{ID: uint64(i + 1), Time: time.Now(), Changed: 40_000, Keys: []string{"~networking.istio.io/ServiceEntry namespace-of-a-team/service-entry-000001"}})
	}
	return all, nil
}

// Diff returns as many differences as a relay sends.
func (m *manyHeld) Diff(_ string, revision uint64) (d upstreams.Differences, err error) {
	d = upstreams.Differences{Revision: state.Revision{ID: revision}, More: 500}
	for i := range 500 {
		body, err := anypb.New(&networkingv1.ServiceEntry{Hosts: []string{strings.Repeat("a", 600) + ".example"}})
		if err != nil {
			return d, err
		}
		r, err := mirror.New(mirror.Spec{
			Key:  mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "namespace-of-a-team", Name: fmt.Sprintf("service-entry-%06d", i)},
			Body: body,
		})
		if err != nil {
			return d, err
		}
		d.Resources = append(d.Resources, upstreams.Difference{After: r})
	}
	return d, nil
}

// TestACommandPrints100KBOrTellsWhatItLeftOut uses a relay with 10,000 contested keys and 1,000 clients, and a server
// with 20,000 resources. With -v they are 100,000, and it prints the time and CPU of each command, including the
// servers. They depend on the machine; a command may take a second.
func TestACommandPrints100KBOrTellsWhatItLeftOut(t *testing.T) {
	resources := 20_000
	if testing.Verbose() {
		resources = 100_000
	}
	var contested []conflicts.KeyConflict
	for i := range 10_000 {
		contested = append(contested, conflicts.KeyConflict{
			Key:    mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "namespace-of-a-team", Name: fmt.Sprintf("service-entry-%06d", i)},
			Winner: "east", Losers: []string{"west", "north"}, Reason: "first in the order of the upstreams", Since: time.Now(),
		})
	}
	mixed := make([]conflicts.Hybrid, 1000)
	for i := range mixed {
		mixed[i] = conflicts.Hybrid{Host: fmt.Sprintf("service-%06d.example", i), Parts: []conflicts.Part{{Key: contested[i].Key, Source: "east"}, {Key: contested[i].Key, Source: "west"}}}
	}
	refused := make([]records.LeftOut, 100)
	for i := range refused {
		refused[i] = records.LeftOut{Upstream: "east", Kind: "networking.istio.io/ServiceEntry", Namespace: "namespace-of-a-team", Name: fmt.Sprintf("service-entry-%06d", i), Reason: "hosts", Detail: "it claims a host that hosts.include does not cover"}
	}
	var clients manyClients
	for i := range 1000 {
		c := downstream.ClientStatus{NodeID: fmt.Sprintf("waypoint~10.0.0.1~istiod-%04d.istio-system~x", i), Connection: fmt.Sprint(i), ClusterID: "cluster", Address: "10.0.0.1:4711", Protocol: "delta", Connected: time.Now()}
		for k := range 24 {
			c.Types = append(c.Types, downstream.TypeStatus{TypeURL: fmt.Sprintf("networking.istio.io/v1/Kind%d", k), SentAt: time.Now()})
		}
		clients = append(clients, c)
	}
	sources := func() []upstreams.Status {
		return []upstreams.Status{{Name: "east", State: upstreams.StateSynced, Status: intake.Status{Synced: true}, Resources: map[string]int{"networking.istio.io/ServiceEntry": 100_000}}}
	}
	journal := events.New()
	for i := range 10_000 {
		r := &events.Resources{}
		r.Note(events.Modification, contested[i].Key)
		journal.Record(events.Event{Type: events.Changed, Upstream: fmt.Sprint("upstream-", i), By: events.ByUpstream, Resources: r, Reason: strings.Repeat("why ", 50)})
	}
	debug := admin.NewDebug(admin.Views{
		Upstreams: sources, Contests: func(...mirror.Kind) []conflicts.KeyConflict { return contested },
		HostConflicts: func() []conflicts.HostConflict { return nil }, Hybrids: func() []conflicts.Hybrid { return mixed }, Events: journal,
		LeftOut:   func() []records.LeftOut { return refused },
		Resources: mirror.NewAggregate(), Replicas: func() []orders.Replica { return nil },
	}, clients)
	dir, err := os.MkdirTemp("", "much") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	server := admin.New(admin.Config{Address: "127.0.0.1:0", Socket: filepath.Join(dir, "s")}, admin.Deps{
		Gatherer: prometheus.NewRegistry(), Ready: func() admin.Readiness { return admin.Readiness{Ready: true} },
		Notes: noNotes, Remarks: noNotes, Memory: memory.InUse,
		Debug: debug, LogLevel: new(slog.LevelVar), Logger: slog.New(slog.DiscardHandler), Controls: &manyHeld{},
		ReloadStatus: func() admin.ReloadStatus { return admin.ReloadStatus{} },
	})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	awaitSocket(t, lis.Addr().String(), filepath.Join(dir, "s"))
	s := fakexds.Start(t, &fakexds.Server{})
	var entries []fakexds.Resource
	for i := range resources {
		entries = append(entries, fakexds.MCP(fmt.Sprintf("namespace-of-a-team/service-entry-%06d", i), &networkingv1.ServiceEntry{Hosts: []string{"a.example"}}))
	}
	s.Set("networking.istio.io/v1/ServiceEntry", entries...)
	at := []string{"--admin", lis.Addr().String()}
	for name, tc := range map[string]struct {
		args []string
		left int // rows that are left out; 0: it has no rows, or not too many
	}{
		"status":    {append([]string{"status"}, at...), 0},
		"upstreams": {append([]string{"upstreams"}, at...), 0},
		"clients":   {append([]string{"clients"}, at...), 600},
		"client":    {append([]string{"client", "istiod-0999.istio-system"}, at...), 0},
		"conflicts": {append([]string{"conflicts"}, at...), 10_500},
		"held":      {append([]string{"upstreams", "--held"}, at...), 39_600},
		"history":   {append([]string{"history", "east"}, at...), 1600},
		"changes":   {append([]string{"history", "east", "7", "--diff"}, at...), 0},
		"events":    {append([]string{"events"}, at...), 0},
		"get":       {[]string{"get", "se", "-A", "--server", s.Addr}, resources - 400},
		"diff":      {[]string{"diff", s.Addr, t.TempDir(), "--kinds", "se"}, resources - 400},
	} {
		var out, errs bytes.Buffer
		began, cpu := time.Now(), cpuTime(t)
		code := execute(tc.args, &out, &errs)
		t.Logf("%-10s %6d bytes %5d ms %5d ms of CPU", name, out.Len(), time.Since(began).Milliseconds(), (cpuTime(t) - cpu).Milliseconds())
		if want := map[bool]int{true: 1}[name == "diff"]; code != want {
			t.Errorf("%s: exit code %d: %s", name, code, errs.String())
		}
		if out.Len() > 100_000 || out.Len() < 100 {
			t.Errorf("%s prints %d bytes", name, out.Len())
		}
		told := strings.Contains(errs.String(), fmt.Sprintf("left out: %d more rows", tc.left))
		if told != (tc.left > 0) {
			t.Errorf("%s leaves out %d rows, and tells: %q", name, tc.left, errs.String())
		}
	}
	var out, errs bytes.Buffer // for programs, nothing is left out
	if code := execute([]string{"get", "se", "-A", "-o", "name", "--server", s.Addr}, &out, &errs); code != 0 {
		t.Fatal(errs.String())
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n != resources {
		t.Errorf("%d names", n)
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func noNotes() []string { return nil }

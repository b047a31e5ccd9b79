package ui

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/downstream/subscription"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// large has 100,000 resources, 10,000 contested keys, 1,000 clients of 24 types, 300 upstreams, and a
// hold of 40,000 deletions.
func large(t testing.TB) *fixture {
	f := newFixture(t, 100_000)
	long := strings.Repeat("connection refused ", 100)
	for i := range 1000 {
		c := downstream.ClientStatus{Connection: fmt.Sprint("client-", i), NodeID: fmt.Sprintf("sidecar~10.0.0.1~istiod-%d.istio-system~istio-system.svc.cluster.local", i), ClusterID: fmt.Sprint("cluster-", i%50), Protocol: "delta", Address: "10.0.0.1:5", Connected: testNow}
		for k := range 24 {
			c.Types = append(c.Types, downstream.TypeStatus{TypeURL: fmt.Sprintf("networking.istio.io/v1/Kind%d", k), SentVersion: strings.Repeat("v", 40), SentAt: testNow, AckedAt: testNow, Synced: i%10 != 0, LastNACK: long[:min(len(long), i%2*900)]})
		}
		f.clients = append(f.clients, c)
		f.explained.Clients = append(f.explained.Clients, downstream.Receipt{Connection: c.Connection, NodeID: c.NodeID, TypeURL: "networking.istio.io/v1/ServiceEntry", State: subscription.Acknowledged, At: testNow})
	}
	hold := intake.Held{ID: "4kq3vx2a", Since: testNow, Clock: intake.ClockRunning, Until: testNow.Add(time.Minute), Removals: 40_000, Of: 50_000, Reason: "40000 of 50000 resources at once"}
	f.ups[0].Held, f.ups[0].LastError, f.ups[0].RefusedTotal = &hold, long, 5000
	f.held = []intake.HeldUpstream{{Upstream: "east", Held: hold}}
	for i := range 100_000 {
		key := mirror.Key{Kind: serviceEntry, Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
		if i < 40_000 {
			f.held[0].Deletions = append(f.held[0].Deletions, intake.HeldDeletion{Kind: key.Kind.String(), Namespace: key.Namespace, Name: key.Name, Version: "v", Since: testNow})
		}
		if i < 10_000 {
			f.contests = append(f.contests, conflicts.KeyConflict{Key: key, Winner: "east", Losers: []string{"west"}, Outcome: conflicts.Shadowed, Reason: "first in order", Since: testNow})
			f.hosts = append(f.hosts, conflicts.HostConflict{Kind: serviceEntry, Host: fmt.Sprint("host-", i), Since: testNow, Claims: []conflicts.Claim{{Namespace: "a", Name: "b", Source: "east"}, {Namespace: "c", Name: "d", Source: "west"}}})
		}
		if i < 100 {
			f.ups[0].Refused = append(f.ups[0].Refused, records.Refusal{Resource: key.String(), Reason: long})
			f.ready.Reasons = append(f.ready.Reasons, "upstream east: "+long)
		}
		if i < 300 {
			f.ups = append(f.ups, upstreams.Status{Name: fmt.Sprintf("upstream-%d", i), Type: "xds", State: upstreams.StateDisconnected, LastError: long, Address: "10.0.0.1:15010"})
		}
		if i < 1000 {
			f.journal = append(f.journal, events.Event{Seq: uint64(i + 1), Time: testNow.Add(time.Duration(i) * time.Second), Type: events.Changed, Upstream: fmt.Sprint("upstream-", i%40), Text: long, Reason: long, Resources: &events.Resources{Changed: 3, Names: []events.Name{{Mark: events.Modification, Key: key}}}})
			f.revisions = append(f.revisions, state.Revision{ID: uint64(i), Time: testNow, Keys: []string{"~" + key.String()}})
		}
	}
	part := clusters.Status{Name: "fleet", From: "secrets in istio-system", Error: long, RefusedTotal: 900}
	for i := range 900 {
		part.Clusters = append(part.Clusters, clusters.ClusterStatus{Cluster: registry.Cluster{ID: fmt.Sprint("cluster-", i), Name: fmt.Sprint("cluster-", i), Origin: "secret istio-system/" + long[:40], State: []registry.State{registry.Found, registry.Orphaned, registry.Held}[i%3], Since: testNow, Problem: long}, RemoveAt: testNow.Add(time.Hour)})
		part.Refused = append(part.Refused, registry.Refused{ID: fmt.Sprint("bad-", i), Origin: long, Reason: long})
	}
	f.clusters = []clusters.Status{part}
	f.ups[0].LeftOut = map[string]int{"rule": 10_000}
	f.explained.HostConflicts = f.hosts[:2000]
	spec := `{"note":"` + strings.Repeat("x", 500_000) + `"}`
	f.explained.Served = &kube.Object{APIVersion: "networking.istio.io/v1", Kind: "ServiceEntry", Spec: []byte(spec)}
	for i := range 20 {
		f.explained.Sources = append(f.explained.Sources, admin.SourceCopy{Upstream: fmt.Sprint("upstream-", i), Outcome: admin.Shadowed, Detail: long, From: &kube.Object{APIVersion: "networking.istio.io/v1", Kind: "ServiceEntry", Spec: []byte(strings.Replace(spec, "x", fmt.Sprint(i), 1))}})
	}
	for i := range maxRows + 1 {
		s := services.Service{Host: fmt.Sprintf("db-%d.%s.svc.cluster.local", i, long[:200]), All: 2}
		for k := range 1000 {
			s.Ports = append(s.Ports, services.Port{Number: uint32(k), Name: fmt.Sprint("port-", k)})
			s.Clusters = append(s.Clusters, fmt.Sprint("cluster-", k))
			if i == 0 {
				key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: fmt.Sprint("db-", k)}
				s.Addresses = append(s.Addresses, "10.0.0.1")
				s.Entries = append(s.Entries, services.Entry{Key: key, Upstream: "east", Cluster: "c-east", Resolution: "STATIC", ExportTo: []string{long}})
				s.Endpoints = append(s.Endpoints, services.Endpoint{Address: "10.0.0.1", Cluster: "c-east", Locality: "r/z/s", Account: "spiffe://cluster.local/ns/shop/sa/db", From: key, Upstream: "east"})
			}
		}
		f.services.Services = append(f.services.Services[:min(i, len(f.services.Services))], s)
	}
	return f
}

// TestPagesOfALargeRelayAreSmall gates bytes, look-ups and allocations. It prints the CPU time, which
// depends on the machine; a page has 150 ms.
func TestPagesOfALargeRelayAreSmall(t *testing.T) {
	const maxBytes, maxLookups, maxAllocations = 100 << 10, 2 * maxRows, 130_000
	f := large(t)
	for _, path := range paths() {
		f.lookups = 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := cpuTime(t)
		code, body, _ := f.get(t, path)
		took := cpuTime(t) - began
		runtime.ReadMemStats(&after)
		if code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
		if len(body) > maxBytes {
			t.Errorf("%s: %d bytes", path, len(body))
		}
		if f.lookups > maxLookups {
			t.Errorf("%s: %d look-ups", path, f.lookups)
		}
		allocations := after.Mallocs - before.Mallocs
		if allocations > maxAllocations {
			t.Errorf("%s: %d allocations", path, allocations)
		}
		t.Logf("%-45s %6d bytes %4d look-ups %7d allocations %v of CPU", path, len(body), f.lookups, allocations, took.Round(time.Millisecond))
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

// TestCursorsShowEachResourceOnce follows the links through all pages of a search.
func TestCursorsShowEachResourceOnce(t *testing.T) {
	f := newFixture(t, 1050)
	seen, path := map[string]bool{}, "/resources?q=service"
	for pages := 0; path != ""; pages++ {
		if pages > 20 {
			t.Fatal("the pages do not end")
		}
		_, body, _ := f.get(t, path)
		for _, row := range strings.Split(body, `<th scope="row">`)[1:] {
			name, _, _ := strings.Cut(row, "</th>")
			if seen[name] {
				t.Errorf("%s is on two pages", name)
			}
			seen[name] = true
		}
		path = ""
		if _, rest, more := strings.Cut(body, `class="next" href="/ui`); more {
			path, _, _ = strings.Cut(rest, `"`)
			path = strings.ReplaceAll(path, "&amp;", "&")
		}
	}
	if len(seen) != 1050 {
		t.Errorf("%d of 1050 resources", len(seen))
	}
}

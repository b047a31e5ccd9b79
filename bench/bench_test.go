package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/bench/internal/wire"
)

func testBinaries(t *testing.T) binaries {
	t.Helper()
	abs := func(path string) string {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			t.Fatalf("%v; `make test` builds it", err)
		}
		return path
	}
	return binaries{
		relay: abs("../bin/relay"), floor: abs("bin/floor"), linear: abs("bin/linear"), watch: abs("bin/watch"), apply: abs("bin/apply"),
		apiserver: abs("../e2e/bin/kube-apiserver"), etcd: abs("../e2e/bin/etcd"),
	}
}

// aMoment is how long contenders rest here: how much memory they have then is not looked at.
const aMoment = 500 * time.Millisecond

// TestContendersServeWhatIsRight runs small forms of the scenarios. What is measured is
// not looked at, but for what may never differ.
func TestContendersServeWhatIsRight(t *testing.T) {
	all := contenders(testBinaries(t))
	for _, s := range []scenario{
		{Name: "sotw", Configs: 200, Upstreams: 3, Clients: 4, Changes: 3, Burst: 200},
		{Name: "delta", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Changes: 3, Burst: 200, Restart: true},
		{Name: "delta-istiods", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, SotWUpstreams: true, Changes: 3, Burst: 200, Only: []string{"relay"}},
		{Name: "federation", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Changes: 3, Burst: 200, Federated: true, Restart: true, Only: withAndWithout},
		{Name: "federation-istiods", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, SotWUpstreams: true, Changes: 3, Burst: 200, Federated: true, Only: withAndWithout},
		{Name: "federation-sotw", Configs: 200, Upstreams: 3, Clients: 4, Changes: 3, Burst: 200, Federated: true, Only: withAndWithout},
		{Name: "rates", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Lasting: time.Second, Gaps: []time.Duration{20 * time.Millisecond, 5 * time.Millisecond}, Only: []string{"floor", "relay"}},
		{Name: "rates-sotw", Configs: 200, Upstreams: 3, Clients: 4, Lasting: time.Second, Gaps: []time.Duration{50 * time.Millisecond}, Only: []string{"floor", "relay"}},
		{Name: "registry", Configs: 200, Upstreams: 1, Clients: 4, Delta: true, SotWUpstreams: true, Instances: 10, Together: 10, Lasting: time.Second, Gaps: []time.Duration{100 * time.Millisecond}, Only: []string{"relay"}},
		{Name: "start", Configs: 200, Upstreams: 5, Clients: 4, Delta: true, SotWUpstreams: true, Settle: true, Changes: 3, Lasting: time.Second, Gaps: []time.Duration{20 * time.Millisecond}},
		{Name: "elsewhere", Configs: 200, Upstreams: 3, Clients: 4, Elsewhere: true, Changes: 3, Burst: 200, Only: []string{"floor", "relay"}},
		{Name: "disk", Configs: 200, Upstreams: 3, Clients: 1, Delta: true, Starts: 2, Only: []string{"relay"}},
		{Name: "stall", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Stall: 2 * time.Second, Rate: 200, Only: []string{"relay"}},
	} {
		s.Rest = aMoment
		for _, c := range all {
			if c.name == "istiod" || !s.isFor(c) {
				continue
			}
			t.Run(s.Name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				r := measure(s, c, 1, "", nil)
				if r.Error != "" {
					t.Fatal(r.Error)
				}
				t.Log(r.line())
				if s.Stall > 0 {
					return
				}
				if s.Starts > 0 {
					if d := r.Disk; d == nil || d.Starts != s.Starts || d.MinMS <= 0 || d.MedianMS < d.MinMS || d.MaxMS < d.MedianMS || d.CPUMS <= 0 || d.ClientCPUMS <= 0 || d.StateMiB <= 0 || d.PeakMiB <= 0 || d.Messages < 1 {
						t.Errorf("figures are missing: %+v", d)
					}
					return
				}
				if len(s.Gaps) > 0 && c.slow == 0 {
					checkRates(t, s, r)
				}
				if s.Changes == 0 {
					return
				}
				if r.SyncLastMS <= 0 || r.SyncOwnCPUMS <= 0 || r.SyncMessages < 1 || r.LargestBytes*r.SyncMessages < r.SyncBytes || r.OwnPerChangeMS <= 0 || r.Seconds <= 0 {
					t.Errorf("figures of the first sync are missing: %+v", r)
				}
				if r.SyncLastMS <= 0 || r.CPUPerChangeMS <= 0 || r.RSSMiB <= 0 || r.PeakMiB < r.RSSMiB/2 || r.MedianMS <= 0 || r.MaxMS < r.MedianMS {
					t.Errorf("figures are missing: %+v", r)
				}
				served := float64(r.ResourceBytes)
				if c.product {
					served += provenanceBytes
				}
				if c.rules {
					served += unitedBytes
				}
				if s.Delta && c.product && r.BytesPerChange > 1.4*served {
					t.Errorf("a change costs a client %.0f bytes, and a resource has %.0f", r.BytesPerChange, served)
				}
				if r.Restarted && r.ResumeBytes > 1.4*restartChanges*served {
					t.Errorf("resuming costs a client %.0f bytes, and %d resources of %.0f bytes changed", r.ResumeBytes, restartChanges, served)
				}
			})
		}
	}
}

// TestContendersReadAnAPIServer runs a small form of the scenarios with API servers.
func TestContendersReadAnAPIServer(t *testing.T) {
	t.Parallel()
	bin := testBinaries(t)
	fleet := &clusters{binaries: bin}
	t.Cleanup(fleet.close)
	s := scenario{Name: "kubernetes", Kubernetes: true, Configs: 200, Clients: 4, Delta: true, Changes: 3, Rate: 50, Lasting: 2 * time.Second, Relist: true, Rest: aMoment}
	for _, c := range contenders(bin) {
		if c.name == "istiod" || !s.isFor(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := measure(s, c, 1, "", fleet)
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			k := r.Kubernetes
			if k == nil || k.ListMS <= 0 || k.ListCPUMS <= 0 || k.ServerCPUMS <= 0 || k.ObjectBytes < 3000 {
				t.Fatalf("figures are missing: %+v", k)
			}
			if c.mute {
				return
			}
			if !k.Relisted || k.RelistCPUMS <= 0 || k.Statuses == 0 || r.Changes == 0 || r.RSSMiB <= 0 {
				t.Errorf("figures are missing: %+v %+v", k, r)
			}
			if c.product && (k.StatusPushes != 0 || k.RelistPushes != 1) {
				t.Errorf("%.0f pushes of statuses, and %.0f of a list of the same with one change", k.StatusPushes, k.RelistPushes)
			}
		})
	}
}

// TestContendersReadTheServicesOfAnAPIServer runs a small form of the scenario with Services.
func TestContendersReadTheServicesOfAnAPIServer(t *testing.T) {
	t.Parallel()
	bin := testBinaries(t)
	fleet := &clusters{binaries: bin}
	t.Cleanup(fleet.close)
	s := scenario{
		Name: "services", Kubernetes: true, Pods: 3, Configs: 40, Clients: 4, Delta: true, Settle: true, Rest: aMoment,
		Lasting: 2 * time.Second, Gaps: []time.Duration{10 * time.Millisecond}, Rate: 50, Only: []string{"relay", "relay-omit", "watch"},
	}
	for _, c := range contenders(bin) {
		if !s.isFor(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := measure(s, c, 1, "", fleet)
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			k := r.Kubernetes
			if k == nil || k.ListMS <= 0 || k.ListCPUMS <= 0 || k.ServerCPUMS <= 0 {
				t.Fatalf("figures are missing: %+v", k)
			}
			if c.mute {
				return
			}
			if r.RSSMiB <= 0 || c.omits != (r.SyncBytes < 10_000) {
				t.Errorf("figures are missing, or it serves what it is not to: %+v", r)
			}
			if c.omits {
				return
			}
			checkRates(t, s, r)
			if k.Statuses == 0 || k.StatusAllocs <= 0 || k.StatusPushes != 0 {
				t.Errorf("statuses: %+v", k)
			}
		})
	}
}

// TestContendersWriteIntoACluster runs a small form of the scenario with a sink.
func TestContendersWriteIntoACluster(t *testing.T) {
	t.Parallel()
	bin := testBinaries(t)
	s := scenario{Name: "sink", Sink: true, Configs: 60, Upstreams: 3, Clients: 1, Delta: true, Changes: 3, Only: []string{"relay", "apply"}}
	for _, c := range contenders(bin) {
		if !s.isFor(c) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := measure(s, c, 1, "", &clusters{binaries: bin})
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			k := r.Sink
			if k == nil || k.WriteMS <= 0 || !c.mute && k.CPUMS <= 0 {
				t.Fatalf("figures are missing: %+v", k)
			}
			if !c.mute && (!k.Restarted || k.RestartWrites != 0 || k.RestartLists > 3 || k.ChangeWrites != 1) {
				t.Errorf("%+v", k)
			}
		})
	}
}

// Two states of a Service must not look the same: a client that has the older would seem to have both.
func TestNoStateOfAServiceComesTwice(t *testing.T) {
	seen := map[uint64]int{}
	for seq := range 200 {
		hash := makePods(7, seq, 10).hash
		if before, has := seen[hash]; has {
			t.Fatalf("changes %d and %d come to the same", before, seq)
		}
		seen[hash] = seq
	}
}

// checkRates looks whether every change was timed, to every client, at every rate.
func checkRates(t *testing.T, s scenario, r result) {
	if len(r.Rates) != len(s.Gaps) {
		t.Fatalf("%d rates of %d: %+v", len(r.Rates), len(s.Gaps), r.Rates)
	}
	for i, rate := range r.Rates {
		if rate.GapMS != ms(s.Gaps[i]) || rate.Changes != int(s.Lasting/s.Gaps[i])*max(1, s.Together) || rate.MedianMS <= 0 || rate.P99MS < rate.MedianMS || rate.MaxMS < rate.P99MS ||
			rate.Cores <= 0 || rate.OwnCores <= 0 || rate.Messages <= 0 || rate.RSSMiB <= 0 {
			t.Errorf("figures are missing: %+v", rate)
		}
		if rate.Timed != rate.Changes*s.Clients {
			t.Errorf("%d changes were timed, of %d to %d clients", rate.Timed, rate.Changes, s.Clients)
		}
	}
}

// Additions of the relay to a resource: annotations, and the work of rules.
const (
	provenanceBytes = 140
	unitedBytes     = 80
)

func TestCheckFindsWhatIsWrong(t *testing.T) {
	w, err := newWorld(scenario{Configs: 10, Upstreams: 2}, contender{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	held := make([]uint64, 10)
	for i := range held {
		held[i] = w.items[i].hash
	}
	if err := w.check(held); err != nil {
		t.Fatal(err)
	}
	w.change(3)
	if err := w.check(held); err == nil || !strings.Contains(err.Error(), itemName(3)+" has other content") {
		t.Errorf("an old resource: %v", err)
	}
	held[3] = w.items[3].hash
	held[7] = 0
	if err := w.check(held); err == nil || !strings.Contains(err.Error(), itemName(7)+" is missing") {
		t.Errorf("a missing resource: %v", err)
	}
}

func TestCheckFindsWhatRulesShouldHaveLeftOut(t *testing.T) {
	s := scenario{Configs: 100, Upstreams: 2, Federated: true}
	for _, rules := range []bool{false, true} {
		w, err := newWorld(s, contender{rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.close)
		held := make([]uint64, s.Configs)
		for i := range held {
			held[i] = contentHash(partsOf(w.items[i].element))
		}
		err = w.check(held)
		if !rules && (err != nil || w.visible != 100) {
			t.Errorf("without rules: %d are visible, %v", w.visible, err)
		}
		if rules && (err == nil || !strings.Contains(err.Error(), "100 of 100 resources are wrong") || w.visible != 97) {
			t.Errorf("with rules: %d are visible, %v", w.visible, err)
		}
		copy(held, make([]uint64, 97))
		if err := w.check(held); rules && !strings.Contains(err.Error(), "fed-team-00/service-000000 is missing") {
			t.Errorf("what is missing: %v", err)
		}
		for i := range held[:97] {
			held[i] = w.items[i].hash
		}
		if err := w.check(held); rules && (err == nil || !strings.Contains(err.Error(), "team-private/service-000097 should not be served")) {
			t.Errorf("what is left out: %v", err)
		}
	}
}

// The truth under rules, once as text: it is worked out from the parts of a resource, and so
// may be wrong without anything that shows.
func TestTruthUnderRules(t *testing.T) {
	w, err := newWorld(scenario{Configs: 100, Upstreams: 2, Federated: true}, contender{rules: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	hash := func(endpoints ...string) uint64 {
		seq := fmt.Sprint(len(endpoints) - 3) // united, one more after the first change
		md := &mcp.Metadata{}
		if err := prototext.Unmarshal([]byte(`name: "fed-team-02/service-000042" create_time: {seconds: 1700000042}
			labels: {key: "team" value: "team-02"} labels: {key: "app" value: "service-000042"}
			annotations: {key: "bench.example/owner" value: "nobody"}
			annotations: {key: "bench.example/change" value: "`+map[string]string{"0": "-", "1": "~"}[seq]+`000042:0000000`+seq+`"}
			annotations: {key: "meshrelay.io/from" value: "anything"}`), md); err != nil {
			t.Fatal(err)
		}
		body := &networking.ServiceEntry{}
		if err := prototext.Unmarshal([]byte(`hosts: "service-000042.team-02.mesh.example" hosts: "service-000042.fed-team-02.svc.cluster.local"
			ports: {number: 443 name: "https" protocol: "HTTPS"} location: MESH_INTERNAL resolution: STATIC
			export_to: "." export_to: "fed-shared" `+strings.Join(endpoints, " ")), body); err != nil {
			t.Fatal(err)
		}
		_, hash, err := encode(md, body)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	own, other := func(address string) string {
		return `endpoints: {address: "` + address + `" locality: "region-1/zone-a" service_account: "default"}`
	}, `endpoints: {address: "10.201.0.42" locality: "region-2/zone-a"}`
	if got := w.items[42].hash; got != hash(own("10.0.0.168"), `endpoints: {address: "10.200.0.0"}`, other) {
		t.Error("at first, when the copies have an endpoint in common")
	}
	w.change(42)
	if got := w.items[42].hash; got != hash(own("10.0.0.169"), `endpoints: {address: "10.200.0.1"}`, other, `endpoints: {address: "10.200.0.0"}`) {
		t.Error("after a change")
	}
}

func TestContentIsAllButWhatTheRelaySaysOfItself(t *testing.T) {
	entry := func(num protowire.Number, key, value string) []byte {
		e := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key)
		e = protowire.AppendString(protowire.AppendTag(e, 2, protowire.BytesType), value)
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), e)
	}
	const labels, annotations = 4, 5
	name := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "a/b")
	hash := func(parts ...[]byte) uint64 { return contentHash(slices.Concat(parts...), []byte("body")) }
	a, b, l, m := entry(annotations, "a", "1"), entry(annotations, "b", "2"), entry(labels, "l", "1"), entry(labels, "m", "2")
	want := hash(name, l, m, a, b)
	if hash(a, m, entry(annotations, "meshrelay.io/from", "east(c)@7 via x,y"), b, name, l) != want {
		t.Error("another order, or provenance, is other content")
	}
	for what, other := range map[string]uint64{
		"a label less":                     hash(name, l, a, b),
		"another label":                    hash(name, l, entry(labels, "m", "3"), a, b),
		"an annotation less":               hash(name, l, m, b),
		"an annotation more":               hash(name, l, m, a, b, entry(annotations, "meshrelay.io/other", "1")),
		"an annotation that comes twice":   hash(name, l, m, a, b, b),
		"values that are exchanged":        hash(name, entry(labels, "l", "2"), entry(labels, "m", "1"), a, b),
		"a label instead of an annotation": hash(name, l, m, entry(labels, "a", "1"), b),
		"provenance as a label":            hash(name, l, m, a, b, entry(labels, "meshrelay.io/from", "east")),
		"another body":                     contentHash(slices.Concat(name, l, m, a, b), []byte("other")),
		"a time of creation":               hash(name, l, m, a, b, protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{8, 1})),
	} {
		if other == want {
			t.Errorf("%s is not noticed", what)
		}
	}
}

func partsOf(element []byte) (metadata, body []byte) {
	resource := wire.Field(element, 2)
	return wire.Field(resource, 1), wire.Field(wire.Field(resource, 2), 2)
}

func TestMarkersAreFoundWhereverTheyLie(t *testing.T) {
	it, err := makeItem(42, 7)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range it.element {
		for _, more := range []int{0, 1, 5} { // in up to three buffers
			end := min(cut+more, len(it.element))
			data := mem.BufferSlice{mem.SliceBuffer(it.element[:cut]), mem.SliceBuffer(it.element[cut:end]), mem.SliceBuffer(it.element[end:])}
			var found [][2]int
			eachMarker(data, func(index, seq int) { found = append(found, [2]int{index, seq}) })
			if len(found) != 1 || found[0] != [2]int{42, 7} {
				t.Fatalf("cut at %d and %d: found %v", cut, end, found)
			}
		}
	}
	unchanged, err := makeItem(42, 0)
	if err != nil {
		t.Fatal(err)
	}
	eachMarker(mem.BufferSlice{mem.SliceBuffer(unchanged.element)}, func(int, int) { t.Error("a resource that has not changed has a marker") })
}

func TestMediansAreOfTheRunsThatWorked(t *testing.T) {
	r := &report{Results: []result{
		{Scenario: "s", Contender: "c", CPUPerChangeMS: 1}, {Scenario: "s", Contender: "c", Error: "broken", CPUPerChangeMS: 100},
		{Scenario: "s", Contender: "c", CPUPerChangeMS: 5}, {Scenario: "s", Contender: "c", CPUPerChangeMS: 3},
		{Scenario: "s", Contender: "d", Error: "broken"},
	}}
	m := r.medians()
	if len(m) != 2 || m[0].CPUPerChangeMS != 3 || m[0].Run != 3 || m[0].Error != "" || m[1].Error != "broken" {
		t.Errorf("medians %+v", m)
	}
	dir := t.TempDir()
	r.Results = append(r.Results, result{Scenario: "sotw-1k-20", Contender: "relay", CPUPerChangeMS: 2, MedianMS: 1},
		result{Scenario: "rates-delta-10k-20", Contender: "relay", Rates: []rateResult{{GapMS: 5, MedianMS: 1}, {GapMS: 3, P99MS: 8}}},
		result{Scenario: "rates-delta-10k-20", Contender: "relay", Rates: []rateResult{{GapMS: 5, MedianMS: 2}, {GapMS: 3, P99MS: 9}}},
		result{Scenario: "federation-10k-20-relays", Contender: "relay", CPUPerChangeMS: 2},
		result{Scenario: "federation-10k-20-relays", Contender: "relay-rules", CPUPerChangeMS: 5})
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := readReport(filepath.Join(dir, "results.json"))
	if err != nil || len(again.Results) != len(r.Results) {
		t.Errorf("read back: %v, %v", again, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "results.md"))
	if text := string(b); err != nil || !strings.Contains(text, "| 2.00 ms / 5.00 ms | 2.50 |") ||
		!strings.Contains(text, "| 5 ms | 1.50 ms / 0.00 ms / 0.00 ms |") || !strings.Contains(text, "| 3 ms | 0.00 ms / 8.50 ms / 0.00 ms |") {
		t.Errorf("%v, or the cost of rules, or a rate, is missing:\n%s", err, b)
	}
}

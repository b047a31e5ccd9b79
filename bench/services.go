package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/bench/internal/wire"
)

// serviceInputs are the paths of the inputs of services. There are no WorkloadEntries.
var serviceInputs = []string{"/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/pods", "/api/v1/nodes"}

func syntheticName(index int) string {
	return fmt.Sprintf("team-%02d/synthetic-service-%06d", index%namespaces, index)
}

// podState is what a relay has to tell of a pod.
type podState struct {
	version    string // a label
	generation int    // how often the address has changed
	ready      bool
}

// podsAfter returns the pods of a Service after some changes. These take turns: a pod gets another label, one is no
// longer ready, and that is ready again with another address. No state comes twice.
func podsAfter(seq, pods int) []podState {
	all := make([]podState, pods)
	for n := range all {
		all[n] = podState{version: "v0", ready: true}
	}
	for s := 1; s <= seq; s++ {
		switch p := &all[changedBy(s, pods)]; s % 3 {
		case 1:
			p.version = fmt.Sprintf("v%d", s)
		case 2:
			p.ready = false
		case 0:
			p.ready = true
			p.generation++
		}
	}
	return all
}

// changedBy returns the pod that the seq-th change of a Service is of.
func changedBy(seq, pods int) int { return (seq - 1) / 3 % pods }

func podAddress(index, n, pods, generation int) string {
	id := index*pods + n
	return fmt.Sprintf("10.%d.%d.%d", 128+id>>16+generation*8&127, id>>8&255, id&255)
}

func zoneOf(n int) string      { return fmt.Sprintf("zone-%d", nodeOf(n)%3) }
func accountOf(i int) string   { return fmt.Sprintf("account-%06d", i) }
func nodeOf(n int) int         { return n * 7 % nodes }
func podName(i, n int) string  { return fmt.Sprintf("%s-7d9c8b6f5d-%05d", itemShort(i), n) }
func nodeName(n int) string    { return fmt.Sprintf("node-%02d.example.com", n) }
func uid(kind, n int) string   { return fmt.Sprintf("00000000-%04d-4000-8000-%012d", kind, n) }
func namespaceOf(i int) string { return fmt.Sprintf("team-%02d", i%namespaces) }

// makePods makes the Service of a cluster. Its hash is of what clients must hold.
func makePods(index, seq, pods int) item {
	var lines []string
	for n, p := range podsAfter(seq, pods) {
		if p.ready {
			lines = append(lines, endpointLine(podAddress(index, n, pods, p.generation), "region-1/"+zoneOf(n), accountOf(index), p.version))
		}
	}
	return item{seq: seq, hash: linesHash(fmt.Sprintf("%s.%s.svc.cluster.local", itemShort(index), namespaceOf(index)), lines)}
}

func endpointLine(address, locality, account, version string) string {
	return strings.Join([]string{address, locality, account, version}, " ")
}

func linesHash(host string, lines []string) uint64 {
	slices.Sort(lines)
	return xxh3.HashString(host+"\n"+strings.Join(lines, "\n")) | 1
}

// podsHash is the hash of makePods, of a served ServiceEntry.
func podsHash(body []byte) uint64 {
	e := &networking.ServiceEntry{}
	if err := proto.Unmarshal(body, e); err != nil || len(e.Hosts) != 1 || len(e.Ports) != 1 || e.WorkloadSelector != nil {
		return 1
	}
	var lines []string
	for _, w := range e.Endpoints {
		if w.Ports["http"] != 8080 {
			return 1
		}
		lines = append(lines, endpointLine(w.Address, w.Locality, w.ServiceAccount, w.Labels["version"]))
	}
	return linesHash(e.Hosts[0], lines)
}

// eachState finds the Services of a message that have changed since the world began.
func (w *world) eachState(data mem.BufferSlice, f func(index, seq int)) {
	w.mu.RLock()
	changes := len(w.states)
	w.mu.RUnlock()
	if changes == 0 {
		return // the first sync need not be looked into
	}
	_ = wire.Walk(data, func(num protowire.Number, n int, r *wire.Reader) bool {
		if num != wire.FieldResources {
			return r.Skip(n)
		}
		b, ok := r.Take(n)
		hash := podsHash(wire.Field(wire.Field(wire.Field(wire.Field(b, 2), 2), 2), 2))
		w.mu.RLock()
		state, known := w.states[hash]
		w.mu.RUnlock()
		if known {
			f(state[0], state[1])
		}
		return ok
	})
}

// fillServices makes Services of so many pods. Nobody watches but the server itself, and it is asked for Services only,
// to which it gives addresses: the rest is written where it keeps that.
func (c *cluster) fillServices(n, pods int) error {
	puts := make([]put, 0, nodes)
	for i := range nodes {
		puts = append(puts, put{"/registry/minions/" + nodeName(i), nodeObject(i)})
	}
	if err := c.storeAll(puts); err != nil {
		return err
	}
	return inParallel(n, func(i int) error {
		_, err := c.ask(http.MethodPost, "/api/v1/namespaces/"+namespaceOf(i)+"/services", "application/json", serviceObject(i))
		if err != nil {
			return err
		}
		state := podsAfter(0, pods)
		puts := []put{slicePut(i, state)}
		for n := range pods {
			puts = append(puts, podPut(i, n, pods, state[n], 0))
		}
		return c.storeAll(puts)
	})
}

// writePods writes what the seq-th change of a Service changes.
func (c *cluster) writePods(index, seq, pods int) error {
	state, n := podsAfter(seq, pods), changedBy(seq, pods)
	pod, slice := podPut(index, n, pods, state[n], 0), slicePut(index, state)
	switch seq % 3 {
	case 1:
		return c.storeAll([]put{pod})
	case 2:
		return c.storeAll([]put{slice})
	}
	return c.storeAll([]put{pod, slice})
}

// writePodStatus writes a pod whose status tells of another restart, and is otherwise as it was.
func (w *world) writePodStatus(index, restarts int) error {
	w.mu.RLock()
	seq := w.items[index].seq
	w.mu.RUnlock()
	n := restarts % w.pods
	return w.cluster.storeAll([]put{podPut(index, n, w.pods, podsAfter(seq, w.pods)[n], restarts)})
}

// put is an object where an API server keeps it.
type put struct {
	key   string
	value []byte
}

// storeAll writes objects at once, where the API server keeps them. It must not be asked to change them afterwards.
func (c *cluster) storeAll(puts []put) error {
	type request struct {
		RequestPut map[string][]byte `json:"requestPut"`
	}
	var all []request
	for _, p := range puts {
		all = append(all, request{map[string][]byte{"key": []byte(p.key), "value": p.value}})
	}
	body, err := json.Marshal(map[string]any{"success": all})
	if err != nil {
		return err
	}
	return c.storeText("txn", body, nil)
}

// listedServices notes what it took until the clients held all Services, and the API server before that.
func (b *bench) listedServices(server time.Duration) {
	rss, peak := b.process.memory()
	b.result.Kubernetes = &kubernetesResult{
		Lists: 1, ListMS: b.result.SyncLastMS, ListCPUMS: b.result.SyncCPUMS, ServerCPUMS: ms(b.world.cluster.server.cpu() - server),
		ListedRSSMiB: mib(rss), ListedPeakMiB: mib(peak),
	}
}

// allocations returns how many the relay has made.
func (b *bench) allocations() (n float64) {
	resp, err := http.Get("http://" + b.admin + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, is := strings.CutPrefix(lines.Text(), "go_memstats_mallocs_total "); is {
			n, _ = strconv.ParseFloat(text, 64) // no number: it has no such metric
		}
	}
	return n
}

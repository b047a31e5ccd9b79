package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
)

// kubernetesResult is what reading an API server costs.
type kubernetesResult struct {
	ObjectBytes float64 `json:"objectBytes"` // of an object, as the server sends it
	// From the start of the process until it has all objects, in the mean of some starts. No client is
	// connected.
	Lists         int     `json:"lists"`
	ListMS        float64 `json:"listMs"`
	ListCPUMS     float64 `json:"listCpuMs"`
	ServerCPUMS   float64 `json:"serverCpuMs"` // of the API server meanwhile
	Statuses      int     `json:"statuses,omitempty"`
	StatusRate    float64 `json:"statusRate,omitempty"` // writes a second
	StatusCores   float64 `json:"statusCores,omitempty"`
	StatusPushes  float64 `json:"statusPushes"`           // messages to a client meanwhile
	StatusAllocs  float64 `json:"statusAllocs,omitempty"` // allocations of the contender for each, of services
	Relisted      bool    `json:"relisted,omitempty"`
	RelistCPUMS   float64 `json:"relistCpuMs,omitempty"`
	RelistPushes  float64 `json:"relistPushes,omitempty"` // messages to a client meanwhile; one is due
	RelistRSSMiB  float64 `json:"relistRssMib,omitempty"`
	ListedRSSMiB  float64 `json:"listedRssMib,omitempty"` // when it has all, and the peak until then
	ListedPeakMiB float64 `json:"listedPeakMib,omitempty"`
}

var kubernetesFigures = []func(*kubernetesResult) *float64{
	func(r *kubernetesResult) *float64 { return &r.ObjectBytes },
	func(r *kubernetesResult) *float64 { return &r.ListMS },
	func(r *kubernetesResult) *float64 { return &r.ListCPUMS },
	func(r *kubernetesResult) *float64 { return &r.ServerCPUMS },
	func(r *kubernetesResult) *float64 { return &r.StatusRate },
	func(r *kubernetesResult) *float64 { return &r.StatusCores },
	func(r *kubernetesResult) *float64 { return &r.StatusPushes },
	func(r *kubernetesResult) *float64 { return &r.StatusAllocs },
	func(r *kubernetesResult) *float64 { return &r.RelistCPUMS },
	func(r *kubernetesResult) *float64 { return &r.RelistPushes },
	func(r *kubernetesResult) *float64 { return &r.RelistRSSMiB },
	func(r *kubernetesResult) *float64 { return &r.ListedRSSMiB },
	func(r *kubernetesResult) *float64 { return &r.ListedPeakMiB },
}

// clusters has the cluster of the present scenario, which its contenders share.
type clusters struct {
	binaries binaries
	present  *cluster
	items    []item
	pods     int // of each item
}

func (c *clusters) close() {
	if c.present != nil {
		c.present.close()
	}
	c.present = nil
}

// world returns the world that a cluster has, as the contenders before have left it.
func (c *clusters) world(s scenario, contender contender) (*world, error) {
	if c.present == nil || len(c.items) != s.Configs || c.pods != s.Pods {
		c.close()
		if err := c.fill(s.Configs, s.Pods); err != nil {
			return nil, err
		}
	}
	w := &world{cluster: c.present, of: 1, items: c.items, pods: s.Pods, omits: contender.omits, rand: rand.New(rand.NewPCG(1, 2)), visible: s.Configs}
	var made int64
	for i, it := range w.items {
		w.sources, w.names = append(w.sources, itemName(i)), append(w.names, itemName(i))
		if w.pods > 0 {
			w.names[i] = syntheticName(i)
		}
		made += int64(it.seq)
	}
	w.changes.Store(made)
	if w.pods > 0 {
		w.states = map[uint64][2]int{}
	}
	if w.omits {
		w.items, w.names, w.visible = make([]item, s.Configs), make([]string, s.Configs), 0
	}
	return w, nil
}

func (c *clusters) fill(n, pods int) (err error) {
	for _, path := range []string{c.binaries.etcd, c.binaries.apiserver} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w; `make kube` builds it", err)
		}
	}
	if c.present, err = newCluster(c.binaries); err != nil {
		return err
	}
	c.items, c.pods = make([]item, n), pods
	if pods > 0 {
		for i := range c.items {
			c.items[i] = makePods(i, 0, pods)
		}
		if err = c.present.fillServices(n, pods); err != nil {
			c.close()
		}
		return err
	}
	err = inParallel(n, func(i int) error {
		spec, err := protojson.Marshal(objectEntry(i, 0))
		if err != nil {
			return err
		}
		created, err := c.present.create(i, spec)
		if err != nil {
			return err
		}
		c.items[i], err = makeObject(i, 0, created.Unix())
		return err
	})
	if err != nil {
		c.close()
	}
	return err
}

// makeObject makes a resource of a cluster.
func makeObject(index, seq int, created int64) (it item, err error) {
	metadata := itemMetadata(index, seq)
	metadata.CreateTime.Seconds = created
	it.seq, it.created = seq, created
	it.element, it.hash, err = encode(metadata, objectEntry(index, seq))
	return it, err
}

// objectEntry has about 1.2 KB of JSON.
func objectEntry(index, seq int) *networking.ServiceEntry {
	e := itemEntry(index, seq)
	for n := range 11 {
		e.Endpoints = append(e.Endpoints, &networking.WorkloadEntry{
			Address: fmt.Sprintf("10.%d.%d.%d", 100+n, index>>8&255, index&255), Locality: "region-1/zone-b", ServiceAccount: fmt.Sprintf("backend-%02d", n), Weight: 1,
		})
	}
	return e
}

// object returns an object as people have them: applied by kubectl, which keeps a copy, and with the
// fields of several managers.
func object(index int, spec []byte) []byte {
	applied := strings.ReplaceAll(string(spec), `"`, `\"`)
	managed := strings.Join([]string{managedBy("kubectl-client-side-apply", 10), managedBy("argocd-controller", 12), managedBy("some-operator", 6)}, ",")
	return fmt.Appendf(nil, `{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": %q, "labels": {"app": %[1]q},
"annotations": {"bench.example/change": %[2]q, "kubectl.kubernetes.io/last-applied-configuration": "%[3]s"}, "managedFields": [%[4]s]}, "spec": %[5]s}`,
		itemShort(index), marker(index, 0), applied, managed, spec)
}

func managedBy(name string, fields int) string {
	var b strings.Builder
	for n := range fields {
		fmt.Fprintf(&b, `,"f:%s-field-%02d":{}`, name, n)
	}
	return fmt.Sprintf(`{"manager": %q, "operation": "Update", "apiVersion": "networking.istio.io/v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
"fieldsV1": {"f:spec":{"f:hosts":{},"f:location":{},"f:resolution":{}%s}}}`, name, b.String())
}

// write has the API server change an object, and returns when the raw reader has that.
func (w *world) write(index, seq int) (time.Time, error) {
	if w.pods > 0 {
		return time.Now(), w.cluster.writePods(index, seq, w.pods)
	}
	spec, err := protojson.Marshal(objectEntry(index, seq))
	if err != nil {
		return time.Time{}, err
	}
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"bench.example/change": %q}}, "spec": %s}`, marker(index, seq), spec)
	if err := w.cluster.patch(index, patch); err != nil {
		return time.Time{}, err
	}
	return w.cluster.seenAt(index, seq)
}

// looks is how far apart it is asked whether it has all: asking costs it something.
const looks = 20 * time.Millisecond

// list starts the contender some times, and leaves the last running when it has all objects.
func (b *bench) list() error {
	times := b.scenario.lists()
	var sum kubernetesResult
	for n := range times {
		if n > 0 {
			b.process.stop()
		}
		if err := b.listOnce(); err != nil {
			return err
		}
		one := b.result.Kubernetes
		sum.ListMS, sum.ListCPUMS, sum.ServerCPUMS = sum.ListMS+one.ListMS, sum.ListCPUMS+one.ListCPUMS, sum.ServerCPUMS+one.ServerCPUMS
	}
	r, n := b.result.Kubernetes, float64(times)
	r.Lists, r.ListMS, r.ListCPUMS, r.ServerCPUMS = times, sum.ListMS/n, sum.ListCPUMS/n, sum.ServerCPUMS/n
	return nil
}

func (b *bench) listOnce() error {
	b.world.cluster.settle()
	server := b.world.cluster.server
	before := server.cpu()
	if err := b.launch(); err != nil {
		return err
	}
	var profiled func()
	for deadline := time.Now().Add(patience); !b.listed(); time.Sleep(looks) {
		if profiled == nil && b.profiles != "" && b.process.listens(b.admin) {
			profiled = b.profile("list", "profile?seconds=3")
			defer profiled()
		}
		if err := b.process.alive(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("it does not have all objects in time")
		}
	}
	rss, peak := b.process.memory()
	b.result.Kubernetes = &kubernetesResult{
		ObjectBytes: float64(b.world.cluster.objectBytes), ListMS: ms(time.Since(b.process.began)), ListCPUMS: ms(b.process.cpu()),
		ServerCPUMS: ms(server.cpu() - before), ListedRSSMiB: mib(rss), ListedPeakMiB: mib(peak),
	}
	return nil
}

// listed reports whether the contender has all objects: it is ready, or listens.
func (b *bench) listed() bool {
	if b.contender.ready == "" {
		return b.process.listens(b.listen)
	}
	resp, err := http.Get("http://" + b.admin + b.contender.ready)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// statuses writes the status of objects, at a rate.
func (b *bench) statuses() error {
	r, n, written := b.result.Kubernetes, int(b.scenario.Lasting.Seconds())*b.scenario.Rate, atomic.Int64{}
	bytes, messages := b.received()
	write := b.world.cluster.writeStatus
	if b.world.pods > 0 {
		write = b.world.writePodStatus
	}
	allocations := b.allocations()
	cpu, began := b.process.cpu(), time.Now()
	gap := time.Second / time.Duration(b.scenario.Rate)
	err := inParallel(n, func(i int) error {
		if time.Since(began) > b.scenario.Lasting {
			return nil // it does not take as many
		}
		time.Sleep(time.Until(began.Add(time.Duration(i) * gap)))
		written.Add(1)
		return write(i*7919%len(b.world.items), i+1)
	})
	if err != nil {
		return err
	}
	lasted := time.Since(began)
	n = int(written.Load())
	time.Sleep(time.Second) // for what should not come
	if b.world.pods > 0 {
		r.StatusAllocs = (b.allocations() - allocations) / float64(n)
	}
	bytesAfter, messagesAfter := b.received()
	r.Statuses, r.StatusRate, r.StatusCores, r.StatusPushes = n, float64(n)/lasted.Seconds(), float64(b.process.cpu()-cpu)/float64(lasted), messagesAfter-messages
	if b.contender.product && bytesAfter != bytes {
		return fmt.Errorf("%d writes of statuses have sent a client %.0f bytes", n, bytesAfter-bytes)
	}
	return nil
}

// relist has the contender list all objects once more. One has changed.
func (b *bench) relist() error {
	r := b.result.Kubernetes
	_, messages := b.received()
	cpu := b.process.cpu()
	if err := b.world.cluster.expire(); err != nil {
		return err
	}
	stop, err := b.world.cluster.follow()
	if err != nil {
		return err
	}
	defer stop()
	g := b.world.aim(len(b.clients), b.world.changes.Load()+1, time.Now())
	b.world.change(b.world.pick())
	if _, err := b.wait(g); err != nil {
		return err
	}
	_, after := b.received()
	rss, _ := b.process.memory()
	r.Relisted, r.RelistCPUMS, r.RelistPushes, r.RelistRSSMiB = true, ms(b.process.cpu()-cpu), after-messages, mib(rss)
	if b.contender.product && after-messages != 1 {
		return fmt.Errorf("a list of the same, but for one object, has sent a client %.1f messages", after-messages)
	}
	return nil
}

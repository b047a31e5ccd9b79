package main

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
)

// sinkScenario is the scenario with a cluster that the relay writes into.
const sinkScenario = "sink-10k"

// sinkResult is what writing into a cluster costs.
type sinkResult struct {
	WriteMS     float64 `json:"writeMs"` // from the start of the process until the cluster has all objects
	CPUMS       float64 `json:"cpuMs"`
	ServerCPUMS float64 `json:"serverCpuMs"` // of the API server meanwhile
	// Restarted is set for the relay. The counts are of requests in the time of a start with nothing changed.
	Restarted     bool    `json:"restarted,omitempty"`
	RestartWrites float64 `json:"restartWrites"`
	RestartLists  float64 `json:"restartLists"`
	// A change, from when a client of the relay has it until a raw reader of the cluster does.
	MedianMS float64 `json:"medianMs,omitempty"`
	P99MS    float64 `json:"p99Ms,omitempty"`
	// ChangeWrites are the writes for each change.
	ChangeWrites float64 `json:"changeWrites,omitempty"`
}

var sinkFigures = []func(*sinkResult) *float64{
	func(r *sinkResult) *float64 { return &r.WriteMS },
	func(r *sinkResult) *float64 { return &r.CPUMS },
	func(r *sinkResult) *float64 { return &r.ServerCPUMS },
	func(r *sinkResult) *float64 { return &r.RestartWrites },
	func(r *sinkResult) *float64 { return &r.RestartLists },
	func(r *sinkResult) *float64 { return &r.MedianMS },
	func(r *sinkResult) *float64 { return &r.P99MS },
	func(r *sinkResult) *float64 { return &r.ChangeWrites },
}

const objectsFile = "objects.jsonl"

func (b binaries) startApply(dir, _, _ string, w *world, _ bool) (*exec.Cmd, error) {
	return exec.Command(b.apply, "-kubeconfig", w.target.kubeconfig, "-objects", filepath.Join(dir, objectsFile)), nil
}

// dumpObjects writes the resources of the world as objects, for the program that applies them: with a label and two
// annotations, as a sink writes them.
func (w *world) dumpObjects(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	for i := range w.items {
		spec, err := protojson.Marshal(itemEntry(i, 0))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":%q,"namespace":"team-%02d","labels":{"app":%[1]q,"bench.example/sink":"bench"},`+
			`"annotations":{"bench.example/change":%[3]q,"bench.example/version":"0123456789abcdef","bench.example/from":"upstream-000"}},"spec":%[4]s}`+"\n",
			itemShort(i), i%namespaces, marker(i, 0), spec)
	}
	return errors.Join(out.Flush(), f.Close())
}

// fillSink starts the contender, and waits until the cluster has all objects.
func (b *bench) fillSink() error {
	target := b.world.target
	if b.contender.mute {
		if err := b.world.dumpObjects(filepath.Join(b.dir, objectsFile)); err != nil {
			return err
		}
	}
	target.settle()
	server := target.server.cpu()
	if err := b.launch(); err != nil {
		return err
	}
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(looks) {
		n, err := target.count()
		switch {
		case err != nil:
			return err
		case n > b.scenario.Configs:
			return fmt.Errorf("the cluster has %d objects of %d", n, b.scenario.Configs)
		case n < b.scenario.Configs && time.Now().After(deadline):
			return fmt.Errorf("the cluster has %d objects of %d in time", n, b.scenario.Configs)
		case n < b.scenario.Configs && !b.contender.mute:
			if err := b.process.alive(); err != nil {
				return err
			}
		case n == b.scenario.Configs:
			b.result.Sink = &sinkResult{WriteMS: ms(time.Since(b.process.began)), CPUMS: ms(b.process.cpu()), ServerCPUMS: ms(target.server.cpu() - server)}
			return nil
		}
	}
}

// count returns how many ServiceEntries the store has.
func (c *cluster) count() (int, error) {
	const first, end = "/registry/networking.istio.io/serviceentries/", "/registry/networking.istio.io/serviceentries0"
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	var answer struct{ Count string }
	err := c.storeText("range", fmt.Appendf(nil, `{"key": %q, "range_end": %q, "count_only": true}`, encode(first), encode(end)), &answer)
	if err != nil || answer.Count == "" {
		return 0, err
	}
	return strconv.Atoi(answer.Count)
}

var requestLine = regexp.MustCompile(`(?m)^apiserver_request_total\{[^}]*resource="serviceentries"[^}]*verb="([A-Z]+)"[^}]*\} (\S+)$`)

// requests returns how many requests for ServiceEntries the server has answered: those that write, and lists.
func (c *cluster) requests() (writes, lists float64, err error) {
	text, err := c.ask(http.MethodGet, "/metrics", "", nil)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range requestLine.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return 0, 0, err
		}
		switch m[1] {
		case "LIST":
			lists += n
		case "GET", "WATCH":
		default:
			writes += n
		}
	}
	return writes, lists, nil
}

// sinkChanges makes changes one at a time, and tells how long after a client the cluster has each.
func (b *bench) sinkChanges() error {
	target := b.world.target
	stop, err := target.follow()
	if err != nil {
		return err
	}
	defer stop()
	before, _, err := target.requests()
	if err != nil {
		return err
	}
	var all []time.Duration
	for range b.scenario.Changes {
		index := b.world.pick()
		g := b.world.aim(len(b.clients), b.world.changes.Load()+1, time.Now())
		began := b.world.change(index)
		g.began(began)
		took, err := b.wait(g)
		if err != nil {
			return err
		}
		b.world.mu.RLock()
		seq := b.world.items[index].seq
		b.world.mu.RUnlock()
		at, err := target.seenAt(index, seq)
		if err != nil {
			return err
		}
		all = append(all, max(0, at.Sub(began)-slices.Min(took)))
		time.Sleep(gap)
	}
	after, _, err := target.requests()
	slices.Sort(all)
	r := b.result.Sink
	r.MedianMS, r.P99MS, r.ChangeWrites = ms(quantile(all, 0.5)), ms(quantile(all, 0.99)), (after-before)/float64(len(all))
	b.result.Changes = len(all)
	return err
}

// restartSink starts the contender again with nothing changed, and counts what it asks of the API server.
func (b *bench) restartSink() error {
	target, r := b.world.target, b.result.Sink
	b.process.stop()
	target.settle()
	writes, lists, err := target.requests()
	if err != nil {
		return err
	}
	if err := b.launch(); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); !b.sinkIsComplete(); time.Sleep(looks) {
		if err := b.process.alive(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("the sink is not complete in time after a restart")
		}
	}
	time.Sleep(time.Second) // for what should not come
	writesAfter, listsAfter, err := target.requests()
	r.Restarted, r.RestartWrites, r.RestartLists = true, writesAfter-writes, listsAfter-lists
	return err
}

// sinkIsComplete reports whether the relay has compared everything since its start.
func (b *bench) sinkIsComplete() bool {
	resp, err := http.Get("http://" + b.admin + "/metrics")
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, is := strings.CutPrefix(lines.Text(), `relay_sink_last_complete_timestamp_seconds{sink="bench"} `); is {
			return value != "0"
		}
	}
	return false
}

func sinksTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "until the cluster has all, time / CPU", "CPU of the API server", "restart: writes / lists", "change, after a client has it, median / p99", "writes a change",
	}, func(m result) []string {
		k := m.Sink
		if k == nil {
			return nil
		}
		cells := []string{m.Scenario, m.Contender, durations(k.WriteMS, k.CPUMS), duration(k.ServerCPUMS), "", "", ""}
		if k.Restarted {
			cells[4] = fmt.Sprintf("%.0f / %.0f", k.RestartWrites, k.RestartLists)
		}
		if m.Changes > 0 {
			cells[5], cells[6] = durations(k.MedianMS, k.P99MS), fmt.Sprintf("%.2f", k.ChangeWrites)
		}
		return cells
	})
}

// toApply compares the time until a cluster has all with that of four plain writers.
func toApply(medians []result, contender string) (float64, bool) {
	m, ok := find(medians, sinkScenario, contender)
	plain, also := find(medians, sinkScenario, "apply")
	if !ok || !also || m.Sink == nil || plain.Sink == nil {
		return 0, false
	}
	return m.Sink.WriteMS / plain.Sink.WriteMS, true
}

// inSink returns a figure of the scenario with a sink.
func inSink(f func(sinkResult) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, sinkScenario, contender)
		if !ok || m.Sink == nil || !m.Sink.Restarted {
			return 0, false
		}
		return f(*m.Sink), true
	}
}

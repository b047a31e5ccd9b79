package upstreams_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/xds"
)

// adapter is between the scenarios and the code that they test: a Manager of one upstream, whose
// source does not run by itself but is fed by the script, and a disk.
type adapter struct {
	t     *testing.T
	name  string
	kind  string // xds or file
	dir   string // of a file source
	cfg   *config.Config
	disk  *scriptDisk
	warns *atomic.Int32
	m     *upstreams.Manager
	s     *xdsScript // of an xds source: the stream
	state adsclient.State
	f     *file.Source // of a file source
	// assigned has the endpoints that the server has told, by cluster.
	assigned map[string]*endpointv3.ClusterLoadAssignment
}

func newAdapter(t *testing.T) *adapter {
	return &adapter{assigned: map[string]*endpointv3.ClusterLoadAssignment{}, t: t, name: "east", dir: filepath.Join(t.TempDir(), "config"), warns: new(atomic.Int32)}
}

// start makes an upstream that nothing is known of.
func (a *adapter) start(kind string, settings []string) (err error) {
	a.stop()
	a.kind = kind
	if err := errors.Join(os.RemoveAll(a.dir), os.Mkdir(a.dir, 0o755)); err != nil {
		return err
	}
	if a.cfg, err = configOf(kind, a.dir, settings); err != nil {
		return err
	}
	a.disk = &scriptDisk{records: map[mirror.Key]state.Record{}}
	return a.run()
}

// run begins a process with what is on the disk.
func (a *adapter) run() (err error) {
	a.disk.load()
	if a.m, err = upstreams.NewManager(a.cfg, kinds(), mirror.NewAggregate(), a.disk, slog.New(warnings{n: a.warns})); err != nil {
		return err
	}
	a.m.Restore(context.Background())
	a.m.StartBy(a.begin)
	a.begin(a.m.Upstreams()[0])
	return nil
}

// begin is what the Manager does to run an upstream, but that the script feeds the source.
func (a *adapter) begin(u *upstreams.Upstream) {
	if !u.Running() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- u.RunTimer(ctx) }()
		u.Stops(nil, func() { cancel(); a.check(<-done) })
	}
	switch source := u.Source().(type) {
	case *xds.Source:
		a.s = &xdsScript{t: a.t}
		a.s.attach(&xdsSource{source, u, a.m}, nil)
		u.Stops(func() { u.Tell(intake.Closed{}) }, nil)
	case *file.Source:
		a.f = source
		u.Stops(func() { u.Tell(intake.Closed{}) }, nil)
	}
}

// stop ends the process, after which it has no more to write.
func (a *adapter) stop() {
	if a.m != nil {
		a.m.Upstreams()[0].Stop()
		a.m.Upstreams()[0].StopAll()
		a.m = nil
	}
}

// restart begins a new process with what is on the disk: all, or what was written last.
func (a *adapter) restart(graceful bool, down time.Duration, settings []string) (err error) {
	a.stop()
	if graceful {
		if err := a.disk.Flush(a.t.Context()); err != nil {
			return err
		}
	}
	await.Pass(down)
	if len(settings) > 0 {
		if a.cfg, err = configOf(a.kind, a.dir, settings); err != nil {
			return err
		}
	}
	return a.run()
}

// reload takes over other settings.
func (a *adapter) reload(settings []string) (err error) {
	if a.cfg, err = configOf(a.kind, a.dir, settings); err != nil {
		return err
	}
	return a.m.Apply(a.cfg)
}

func (a *adapter) check(err error) {
	if err != nil {
		a.t.Error(err)
	}
}

// opened begins a stream of a server with these identities in its certificate.
func (a *adapter) opened(delta, relay bool, names []string) {
	protocol := adsclient.SotW
	if delta {
		protocol = adsclient.Delta
	}
	a.state = adsclient.State{Phase: adsclient.Streaming, Protocol: protocol, Relay: relay}
	for _, name := range names {
		if a.state.Server == nil {
			a.state.Server = &x509.Certificate{}
		}
		if dns, is := strings.CutPrefix(name, "dns:"); is {
			a.state.Server.DNSNames = append(a.state.Server.DNSNames, dns)
		} else if id, err := url.Parse(name); err == nil {
			a.state.Server.URIs = append(a.state.Server.URIs, id)
		}
	}
	a.s.x.HandleState(a.state)
}

func (a *adapter) disconnected() { a.s.disconnects() }

// received has the source told a response. On a SotW stream nothing is removed by name.
func (a *adapter) received(url string, delta, relist bool, removed []string, has []fakexds.Resource) error {
	if a.state.Phase == adsclient.Streaming {
		a.state.Phase = adsclient.Connected
		a.s.x.HandleState(a.state)
	}
	a.s.relist = relist
	if delta {
		return a.s.delta(url, removed, has...)
	}
	return a.s.sotw(url, has...)
}

// tellEndpoints feeds what the server has told of a cluster.
func (a *adapter) tellEndpoints(cluster string) {
	told := intake.Endpoints{}
	if cla, known := a.assigned[cluster]; known {
		told[cluster] = records.Assignment{Endpoints: services.Pack(services.FromAssignment(cla)), Known: true}
	}
	a.m.Upstreams()[0].Tell(told)
}

// lapse lets the grace pass in which names may turn up in another version.
func (a *adapter) lapse() {
	if a.s != nil {
		a.s.lapse()
	}
}

// types returns the types of the stream, and asked those that the client asks to be repeated.
func (a *adapter) types() []string {
	extra := sectionOf(a.cfg.Upstreams[0]).Types
	if a.state.Relay {
		return append(relayTypes(), extra...)
	}
	return allTypes(extra...)
}

func (a *adapter) asked() []string {
	if a.kind == "file" {
		if h := a.now().Held; h != nil && !h.Asked.IsZero() {
			return []string{a.dir}
		}
		return nil
	}
	return a.m.Upstreams()[0].Owed()
}

func (a *adapter) resumeVersions(url string) map[string]string { return a.s.x.ResumeVersions(url) }

// read has a file source read its directory, in which nobody writes any more.
func (a *adapter) read() {
	files, err := filepath.Glob(filepath.Join(a.dir, "*"))
	a.check(err)
	for _, file := range files {
		a.check(os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour)))
	}
	_ = a.f.Read(a.m.Upstreams()[0]) // the status tells of it
}

func (a *adapter) now() upstreams.Status { return a.m.Status()[0] }

// served returns what is served, by kind and name.
func (a *adapter) served() (out []*mirror.Resource) {
	store := a.m.Upstreams()[0].Store()
	for _, kind := range store.Kinds() {
		out = append(out, store.List(kind, "")...)
	}
	return out
}

// warned returns how many warnings were logged since the last call.
func (a *adapter) warned() int32 { return a.warns.Swap(0) }

// plain takes out of a text what differs between two runs: the directory, and the spaces of
// protobuf's errors.
func (a *adapter) plain(text string) string {
	return strings.NewReplacer("\u00a0", " ", a.dir+"/", "", a.dir, "the directory").Replace(text)
}

// loseDisk has the disk come back empty.
func (a *adapter) loseDisk() {
	clear(a.disk.records)
	a.disk.source.(interface{ MarkAll() }).MarkAll()
}

// scriptDisk is a Keeper that keeps what it is told in memory.
type scriptDisk struct {
	source    state.Source
	records   map[mirror.Key]state.Record
	saved     state.Saved
	revisions [][]state.Record
	written   []written
	taken     []state.Change
}

// written is what one flush has written.
type written struct {
	put, removed []string
	meta         state.Meta
}

// load makes saved the state on disk.
func (d *scriptDisk) load() {
	d.source = nil
	d.saved.Records = slices.Collect(maps.Values(d.records))
}

func (d *scriptDisk) Load(string) state.Saved                  { return d.saved }
func (d *scriptDisk) Served() bool                             { return false }
func (d *scriptDisk) MarkServed()                              {}
func (d *scriptDisk) Follow(_ string, s state.Source)          { d.source = s }
func (d *scriptDisk) Unfollow(string)                          {}
func (d *scriptDisk) History(string) ([]state.Revision, error) { return nil, nil }

// Flush writes what has changed.
func (d *scriptDisk) Flush(context.Context) error {
	changes, meta := d.source.TakeChanges()
	w := written{meta: meta}
	if meta.Whole {
		clear(d.records)
	}
	for _, c := range changes {
		if c.Record == nil {
			delete(d.records, c.Key)
			w.removed = append(w.removed, "- "+c.Key.String())
			continue
		}
		d.records[c.Key] = *c.Record
		line := "+ " + c.Key.String()
		if c.Record.TypeURL == "" {
			line += ", of no type"
		}
		if c.Endpoints {
			line += ", only endpoints"
		}
		w.put = append(w.put, line)
	}
	slices.Sort(w.put)
	slices.Sort(w.removed)
	d.saved.Meta = meta
	if len(changes) > 0 || meta.By != "" {
		d.written = append(d.written, w)
	}
	return nil
}

// take and giveBack are a Flush for which there is no room.
func (d *scriptDisk) take() { d.taken, _ = d.source.TakeChanges() }

func (d *scriptDisk) giveBack() { d.source.GiveBack(d.taken) }

// revision returns the number of the revision that is written now.
func (d *scriptDisk) revision(ctx context.Context) (uint64, error) {
	err := d.Flush(ctx)
	d.revisions = append(d.revisions, slices.Collect(maps.Values(d.records)))
	return uint64(len(d.revisions)), err
}

func (d *scriptDisk) At(_ string, revision uint64) ([]state.Record, error) {
	if revision == 0 || revision > uint64(len(d.revisions)) {
		return nil, fmt.Errorf("no revision %d", revision)
	}
	return d.revisions[revision-1], nil
}

func (d *scriptDisk) takeWritten() []written {
	w := d.written
	d.written = nil
	return w
}

package upstreams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/mirror"
)

// versionGrace is how long what an API version of a kind has lost, all at once, may still
// turn up in another one before it counts as deleted.
const versionGrace = time.Second

var serviceEntryKind = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

// maxRefused bounds the refusals that a Status lists.
const maxRefused = 100

// XDS mirrors another MCP-over-xDS server: an istiod or a relay.
type XDS struct {
	client    *adsclient.Client
	endpoints *endpoints      // nil unless they are discovered
	creds     *tlsCredentials // nil without TLS
	log       *slog.Logger

	// mu guards all below.
	mu     sync.Mutex
	table  table
	gate   *gate
	status Status
	store  *mirror.Store
	drift  map[string]uint64
	types  []string // subscribed on the present stream
	relay  bool     // which was asked for one version of each kind
	server acquaintance
	extra  []string // type URLs from the config
	// complained has, by address, the error that was logged last.
	complained map[string]string
	opened     uint64 // streams
	// unswept says that what is served may be of a former source, and has not been compared
	// with what this one says.
	unswept bool
	late    map[mirror.Kind]*time.Timer
	ended   bool
	// repeating is, for each type URL that the server was asked to repeat and has not, the
	// names that it has not repeated: none on a SotW stream, where any answer is all.
	repeating map[string]map[string]struct{}
}

// NewXDS returns a source that is not connected yet. While the files of its credentials can
// not be used, it tries again, as with a server that is not there.
func NewXDS(cfg config.Upstream, node config.Node, provenance config.Provenance, store *mirror.Store, log *slog.Logger) (*XDS, error) {
	x, err := newXDS(cfg, node, provenance, newGate(cfg, store, log.With("upstream", cfg.Name)), log)
	if err == nil {
		x.gate.follows(x)
	}
	return x, err
}

func newXDS(cfg config.Upstream, node config.Node, provenance config.Provenance, gate *gate, log *slog.Logger) (*XDS, error) {
	log = log.With("upstream", cfg.Name)
	im, err := newImporter(cfg, provenance)
	if err != nil {
		return nil, err
	}
	x := &XDS{
		log: log, gate: gate, store: gate.store, extra: cfg.XDS.Types, late: map[mirror.Kind]*time.Timer{},
		drift: map[string]uint64{}, complained: map[string]string{},
		table: newTable(im, gate, cfg.Limits),
		status: Status{
			Name: cfg.Name, ClusterID: cfg.ClusterID, Type: "xds", Required: cfg.Required,
			State: StateConnecting, Since: time.Now(), Address: cfg.XDS.Addresses[0],
		},
	}
	x.table.later = x.settleLater
	x.table.panicked = func(name string, p *mirror.Panic) { sayPanic(log, name, x.table.panics, p) }
	opts := []grpc.DialOption{grpc.WithUserAgent("meshrelay")}
	if cfg.XDS.Plaintext {
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		tls := cfg.XDS.TLS
		x.creds = &tlsCredentials{files: adsclient.TLSFiles{CAFile: tls.CAFile, CertFile: tls.CertFile, KeyFile: tls.KeyFile}}
		opts = append(opts, grpc.WithTransportCredentials(x.creds))
		if tls.ServerName != "" {
			opts = append(opts, grpc.WithAuthority(tls.ServerName))
		}
	}
	if cfg.XDS.TokenFile != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(adsclient.TokenFile(cfg.XDS.TokenFile)))
	}
	client, err := adsclient.New(adsclient.Config{
		Addresses: cfg.XDS.Addresses,
		Protocol:  adsclient.Protocol(cfg.XDS.Protocol),
		Node: func() *corev3.Node {
			return adsclient.Node(adsclient.NodeConfig{
				Name: node.ID, Namespace: node.Namespace, IP: node.IP, ClusterID: cfg.ClusterID, OwnClusterID: node.ClusterID, Revision: node.Revision,
			})
		},
		TypeURLs:       func(relay bool) []string { return subscriptions(relay, cfg.XDS.Types) },
		Name:           provenance.Relay,
		Met:            x.met,
		DialOptions:    opts,
		ResyncInterval: cfg.XDS.ResyncInterval.D(),
		SyncTimeout:    cfg.XDS.SyncTimeout.D(),
		FailbackAfter:  cfg.XDS.FailbackAfter.D(),

		MaxResponseBytes: cfg.Limits.MaxResponseBytes, Gzip: slices.Contains(cfg.XDS.Compression, config.CompressionGzip),
		Logger: log,
	}, x)
	if err != nil {
		x.free()
		return nil, fmt.Errorf("upstream %s: %w", cfg.Name, err)
	}
	x.client = client
	if cfg.Services.Mode == config.ServicesDiscover {
		if err := x.discover(cfg, node, opts); err != nil {
			x.free()
			return nil, fmt.Errorf("upstream %s: %w", cfg.Name, err)
		}
	}
	return x, nil
}

// settleSync notes that the source has given all that it has. The caller holds mu.
func (x *XDS) settleSync() {
	if x.status.Synced || x.pending() != nil || x.endpoints != nil && len(x.table.discovery.waiting) > 0 {
		return
	}
	x.status.Synced = true
	x.enter(StateSynced)
	x.store.SetSynced()
	x.log.Info("upstream has synced", "address", x.status.Address)
}

// subscriptions returns the type URLs to ask for. An istiod is asked for every
// version of a kind, because it answers one that it does not know with nothing
// (PROTOCOL C1); a relay serves all of a kind under each, so one is enough.
func subscriptions(relay bool, extra []string) []string {
	var urls []string
	seen := map[string]bool{}
	kinds := map[mirror.Kind]bool{}
	add := func(url string) {
		kind, _, err := mirror.ParseTypeURL(url)
		if err != nil || seen[url] || relay && kinds[kind] {
			return
		}
		seen[url], kinds[kind] = true, true
		urls = append(urls, url)
	}
	for _, info := range mirror.Kinds() {
		for _, url := range info.TypeURLs() {
			add(url)
		}
	}
	for _, url := range extra {
		add(url)
	}
	return urls
}

// Run implements Source.
func (x *XDS) Run(ctx context.Context) error {
	defer x.free()
	defer x.end()
	if x.endpoints == nil {
		return x.client.Run(ctx)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.client.Run(ctx) })
	g.Go(func() error { return x.endpoints.run(ctx) })
	return g.Wait()
}

// end sees to it that nothing happens any more.
func (x *XDS) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	for _, t := range x.late {
		t.Stop()
	}
	x.gate.contact(false) // so that it is known on disk until when there was
}

// settleLater has the names settled after a while that a kind seems to have lost. The
// caller holds mu.
func (x *XDS) settleLater(kind mirror.Kind) {
	x.late[kind] = time.AfterFunc(versionGrace, func() { x.settleLate(kind) })
}

func (x *XDS) settleLate(kind mirror.Kind) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.late, kind)
	if x.ended {
		return
	}
	x.gate.begin()
	x.table.settleLate(kind)
	back := x.status.Protocol != "" && !x.table.waits(kind) && x.gate.freshen(kind)
	x.gate.end(x.table.unsettled())
	if back {
		x.sayAll()
	}
	x.settleSync()
	x.touch()
}

// HandleState implements adsclient.Handler.
func (x *XDS) HandleState(s adsclient.State) {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := &x.status
	st.Address = s.Address
	x.server.follow(s)
	switch s.Phase {
	case adsclient.Connecting:
		if st.State == StateDenied || st.Synced || st.LastError != "" {
			return // what is known of the source is said until there is better news
		}
		x.enter(StateConnecting)
	case adsclient.Streaming:
		x.types, x.relay, x.table.relay = subscriptions(s.Relay, x.extra), s.Relay, s.Relay
		x.repeating = nil // what a new stream answers is more than a repetition
		x.table.begin(x.types)
		x.gate.streams()
		st.Protocol = string(s.Protocol)
		// A server that refuses us lets each stream open first: it has changed its mind when
		// it answers.
		if !st.Synced && st.State != StateDenied && !x.server.sameName {
			x.enter(StateSyncing)
		}
		if x.opened++; x.opened > 1 {
			st.Reconnects++
		}
		x.log.Debug("stream open", "address", s.Address, "protocol", s.Protocol, "relay", s.Relay)
	case adsclient.Connected:
		x.table.relay = s.Relay
		x.log.Info("upstream answers", "address", s.Address, "protocol", s.Protocol, "relay", s.Relay)
		st.LastError = ""
		clear(x.complained)
		if st.Synced {
			x.enter(StateSynced)
		} else {
			x.enter(StateSyncing)
		}
	case adsclient.Disconnected, adsclient.Denied:
		state := StateDisconnected
		switch {
		case s.Phase == adsclient.Denied:
			state = StateDenied
		case x.server.sameName:
			state = StateFailed
		case x.opened == 0:
			state = StateConnecting
		}
		if s.Err != nil {
			switch {
			case s.Answered && s.Phase == adsclient.Disconnected:
				x.log.Info("stream ended; reconnecting, what the upstream gave stays in force", "address", s.Address, "err", s.Err)
			case x.complained[s.Address] == s.Err.Error(): // it is known
			case x.server.sameName:
				x.log.Error("upstream is a relay of this relay's own name; nothing is taken from it", "address", s.Address, "err", s.Err)
			default:
				x.log.Warn("upstream is not reachable; what it gave stays in force", "address", s.Address, "err", s.Err)
			}
			st.LastError = s.Err.Error()
			x.complained[s.Address] = st.LastError
		}
		st.Protocol, x.repeating = "", nil
		x.gate.contact(false)
		x.enter(state)
	}
}

func (x *XDS) enter(s State) {
	if x.status.State != s {
		x.status.State, x.status.Since = s, time.Now()
	}
}

// HandleResponse implements adsclient.Handler.
func (x *XDS) HandleResponse(resp *adsclient.Response) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.status.LastUpdate = time.Now()
	kind, version, err := mirror.ParseTypeURL(resp.TypeURL)
	if err == nil && !slices.Contains(x.types, resp.TypeURL) {
		// What nobody asked for would never be updated, nor removed.
		err = fmt.Errorf("type %s was not asked for", resp.TypeURL)
	}
	if err != nil {
		x.status.NACKs++
		x.log.Warn("response refused", "type", resp.TypeURL, "err", err)
		return err
	}
	sp := x.table.spelling(kind, version, resp.TypeURL)
	x.table.arrive(sp)
	x.gate.begin()
	result, back := x.takeResponse(sp, resp)
	result.deleted = x.gate.end(x.table.unsettled())
	if n := result.changed + result.gone; resp.Relist && n > 0 {
		x.drift[kind.String()] += uint64(n)
		x.log.Info("asking for everything again has brought what no push had", "type", resp.TypeURL, "changed", result.changed, "gone", result.gone)
	}
	x.log.Debug("response", "type", resp.TypeURL, "resources", resp.Len(), "removed", resp.RemovedLen(),
		"changed", result.changed, "deleted", result.deleted, "bytes", resp.Size())
	if back {
		x.sayAll()
	}
	x.settleSync()
	x.touch()
	x.noteRepeated(sp, resp, result)
	if err := result.err(); err != nil {
		x.status.NACKs++
		x.log.Warn("response refused in part; the last good content stays in force", "type", resp.TypeURL, "err", err)
		return err
	}
	return nil
}

// takeResponse takes in a response, and reports whether the gate has to be told everything once more.
// Of a panic the response is refused as a whole, as far as it has not been taken in. The
// caller holds mu, and is between begin and end of the gate.
func (x *XDS) takeResponse(sp *spelling, resp *adsclient.Response) (result outcome, back bool) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			result.unread = true
			result.refuse(sp.typeURL, x.table.costs(sp.typeURL, p))
		}
	}()
	// There is one MeshConfig at most, so what a server has of it is all that there is.
	if resp.Complete || sp.kind == mirror.MeshConfig {
		result = x.table.replace(sp, resp)
	} else {
		result = x.table.patch(sp, resp)
	}
	if x.relay {
		x.table.retire(sp.kind, sp)
	}
	x.table.settle(sp.kind)
	back = !x.table.waits(sp.kind) && x.gate.freshen(sp.kind)
	x.ask()
	return result, back
}

// touch notes that the source is in contact, once it has said all that it has. The caller
// holds mu.
func (x *XDS) touch() {
	if x.table.unsettled() || x.endpoints != nil && len(x.table.discovery.waiting) > 0 || x.status.Protocol == "" {
		return
	}
	if x.gate.contact(true) || x.unswept {
		x.unswept = false
		x.gate.restate()
		x.table.sayAll()
		x.gate.finish(false, false)
	}
}

// pending returns the subscribed types that were never answered.
func (x *XDS) pending() []string {
	var urls []string
	for _, url := range x.types {
		if !x.table.answered(url) {
			urls = append(urls, url)
		}
	}
	return urls
}

// ResumeVersions implements adsclient.Handler.
func (x *XDS) ResumeVersions(typeURL string) map[string]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.table.versions(typeURL)
}

// Status implements Source.
func (x *XDS) Status() Status {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.status
	if !st.Synced {
		st.Pending = x.pending()
	}
	st.Refused, st.RefusedTotal = x.table.refusals()
	st.Dropped = x.table.droppedCounts()
	st.OverLimit, st.Panics = x.table.overLimit(), x.table.panics
	st.Drift = maps.Clone(x.drift)
	st.Addresses, st.Switches = x.client.Addresses(), x.client.Switches()
	st.Resources = countsByName(x.store)
	x.gate.status(&st)
	if x.endpoints != nil {
		e := x.endpoints.status()
		st.Endpoints = &EndpointsStatus{Clusters: e.Wanted, Answered: e.Answered, Awaited: e.Missing, NACKs: e.NACKs, LastError: e.LastError}
		if e.LeftOut != "" {
			st.Endpoints.LastError = e.LeftOut
		}
	}
	return st
}

func countsByName(s *mirror.Store) map[string]int {
	out := map[string]int{}
	for kind, n := range s.Counts() {
		out[kind.String()] = n
	}
	return out
}

// outcome is what a response came to.
type outcome struct {
	unread           bool // that there are elements whose names can not be read
	changed, deleted int
	gone             int      // that the source does not have any more, whatever comes of it
	bad              []string // what was refused: at most maxNamed of them
	badTotal         int
}

// maxNamed bounds the resources that a NACK names.
const maxNamed = 20

func (o *outcome) refuse(what string, err error) {
	o.badTotal++
	if len(o.bad) < maxNamed {
		o.bad = append(o.bad, fmt.Sprintf("%s: %v", what, err))
	}
}

func (o *outcome) err() error {
	if o.badTotal == 0 {
		return nil
	}
	errs := make([]error, 0, len(o.bad)+1)
	for _, b := range o.bad {
		errs = append(errs, errors.New(b))
	}
	if more := o.badTotal - len(o.bad); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

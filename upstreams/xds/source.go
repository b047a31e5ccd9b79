// Package xds reads an MCP-over-xDS server: an istiod, or another relay.
//
// It owns the stream to the server: the subscriptions, the state of the upstream, and, where
// services need it, a second stream for their endpoints.
//
// The package depends neither on what is served of its resources nor on other upstreams.
package xds

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/trouble"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Kind returns the kind of source for an MCP-over-xDS server. dial has options for its connections.
func Kind(dial ...grpc.DialOption) upstreams.Kind {
	return upstreams.Kind{
		Config: &Config{},
		New:    func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) { return New(u, env, dial...), nil },
		Check:  check,
		Lives:  lives,
		Probe:  probe,
	}
}

// Source reads one MCP-over-xDS server.
type Source struct {
	upstreams.Plain
	client    *adsclient.Client
	endpoints *endpoints // nil unless the config discovers them
	log       *slog.Logger
	// complaints limits the log lines about responses.
	complaints *loglimit.Limit
	cfg        config.Upstream
	token      *adsclient.Token
	issuer     *issuer // of tokens, nil unless the config asks a cluster for them
	name       string  // of this relay

	// telling is held while the feed is told something. It guards the fields up to mu.
	telling sync.Mutex
	feed    upstreams.Feed    // nil before Attach
	relay   bool              // the server is a relay
	server  []string          // its identities
	opened  uint64            // number of streams
	update  [1]records.Update // reused by HandleResponse
	// complained has the last logged error of each address.
	complained map[string]string

	// mu guards the fields below. Nobody tells the feed anything while it is held: the status waits for it.
	mu sync.Mutex
	// st has the fields of the status that only the source knows. Who changes its Protocol, or types, holds telling, too.
	st    upstreams.Status
	types []string // subscribed on the present stream
	// silent are the types of the present stream that the server is silent about and that are awaited. cure is what to do.
	silent []string
	cure   string
	// told is what the server tells on the present stream of problems with its upstreams, untold why that is refused.
	told   trouble.Report
	untold string
}

// New returns a source that is not connected. The files of its credentials need not exist yet.
func New(cfg config.Upstream, env upstreams.Env, dial ...grpc.DialOption) *Source {
	section := sectionOf(cfg)
	issuer := newIssuer(cfg, env, env.Log)
	client, token := clientConfig(cfg, env, issuer)
	client.DialOptions = append(client.DialOptions, dial...)
	s := &Source{log: env.Log, complaints: newComplaints(), cfg: cfg, token: token, issuer: issuer, name: env.Relay, complained: map[string]string{}}
	s.st = upstreams.Status{State: upstreams.StateConnecting, Since: time.Now(), Address: section.Addresses[0], Drift: map[string]uint64{}}
	if cfg.Services.Mode == config.ServicesDiscover {
		consumer := nodeConfig(cfg, env, "endpoints")
		second, _ := clientConfig(cfg, env, issuer) // with an adsclient.Token of its own: an istiod may want less of it
		second.DialOptions = append(second.DialOptions, dial...)
		consumer.ClusterID, consumer.Network = env.Node.ClusterID, cfg.Services.Network
		second.Node = func() *corev3.Node { return adsclient.EndpointsNode(consumer) }
		second.Name = "" // the first stream identifies the server
		s.endpoints = newEndpoints(second, endpointsPatience, s.endpointsChanged)
	}
	client.Met, client.Silent = s.met, s.HandleSilence
	s.client = adsclient.New(client, s)
	return s
}

// clientConfig returns the settings of the connection and of the subscriptions.
func clientConfig(cfg config.Upstream, env upstreams.Env, issuer *issuer) (adsclient.Config, *adsclient.Token) {
	section := sectionOf(cfg)
	creds, token, opts := dialOptions(section, issuer, env.Log)
	node := nodeConfig(cfg, env, "")
	node.ClusterID, node.OwnClusterID = cfg.ClusterID, env.Node.ClusterID
	return adsclient.Config{
		Addresses:        section.Addresses,
		Protocol:         adsclient.Protocol(section.Protocol),
		Node:             func() *corev3.Node { return adsclient.Node(node) },
		TypeURLs:         withTrouble(subscriptions(cfg)),
		Name:             env.Relay,
		Credentials:      creds,
		Stamp:            func() string { return token.Kept() + fmt.Sprint(issuer.state()) + fmt.Sprint(lives(cfg)) },
		DialOptions:      opts,
		ResyncInterval:   section.ResyncInterval.D(),
		MaxResponseBytes: cfg.Limits.MaxResponseBytes,
		Logger:           env.Log,
	}, token
}

// nodeConfig returns the description of this relay, without clusters. Servers such as Nacos keep streams by node ID,
// so each has its own. That of the main stream, "", is the pod's, by which an istiod finds the pod.
func nodeConfig(cfg config.Upstream, env upstreams.Env, stream string) adsclient.NodeConfig {
	id := env.Node.ID
	if sectionOf(cfg).Second {
		id += "_upstream-" + cfg.Name
	}
	if stream != "" {
		id += "_" + stream
	}
	return adsclient.NodeConfig{Name: id, Namespace: env.Node.Namespace, IP: env.Node.IP, Revision: cfg.Import.Revision}
}

// newComplaints limits the log lines about responses. The status counts and names all refusals.
func newComplaints() *loglimit.Limit { return loglimit.New(20, 10*time.Second) }

func dialOptions(x *Config, issuer *issuer, log *slog.Logger) (creds credentials.TransportCredentials, token *adsclient.Token, opts []grpc.DialOption) {
	token = adsclient.TokenFile(x.TokenFile)
	if issuer != nil {
		token = adsclient.TokenFrom(issuer.place, issuer.read)
		token.Denied = issuer.denied
	}
	creds, opts = insecure.NewCredentials(), []grpc.DialOption{grpc.WithUserAgent("meshrelay")}
	if !x.Plaintext {
		creds = tlsFiles(x.TLS).Credentials(log)
		if x.TLS.ServerName != "" {
			opts = append(opts, grpc.WithAuthority(x.TLS.ServerName))
		}
	}
	if x.TokenFile != "" || issuer != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(token), grpc.WithChainStreamInterceptor(token.Stream))
	}
	return creds, token, opts
}

func tlsFiles(t *TLS) adsclient.TLSFiles {
	return adsclient.TLSFiles{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile}
}

// lives returns how long the client certificate and the token of an upstream are valid, or those for the cluster that
// gives its tokens.
func lives(u config.Upstream) (certificate, token doctor.Life, err error) {
	section := sectionOf(u)
	if section.Token != nil {
		certificate, token, err = section.Token.credentials().Lives()
	} else {
		token, err = doctor.TokenFileLife(section.TokenFile)
	}
	if err == nil && section.TLS != nil && section.TLS.CertFile != "" {
		certificate, err = doctor.CertificateLife(section.TLS.CertFile)
	}
	return certificate, token, err
}

// check returns an error if the files of the credentials can not be used.
func check(u config.Upstream) error {
	section := sectionOf(u)
	if section.Plaintext {
		return nil
	}
	return tlsFiles(section.TLS).Check()
}

// subscriptions returns a function with the type URLs to ask for. It asks an istiod for every version of
// a kind, because an istiod answers an unknown version with nothing (PROTOCOL C1). A relay serves all of
// a kind under each version, so one is enough.
func subscriptions(cfg config.Upstream) func(relay bool) []string {
	all, asked := []string{}, records.Asked(cfg)
	for _, info := range mirror.Kinds() {
		all = append(all, info.TypeURLs()...)
	}
	all = append(all, sectionOf(cfg).Types...)
	return func(relay bool) (urls []string) {
		kinds := map[mirror.Kind]bool{}
		for _, url := range all {
			kind, _, err := mirror.ParseTypeURL(url)
			if err == nil && asked(kind) && !slices.Contains(urls, url) && (!relay || !kinds[kind]) {
				kinds[kind] = true
				urls = append(urls, url)
			}
		}
		return urls
	}
}

// Attach sets the feed of the source. Run calls it.
func (s *Source) Attach(feed upstreams.Feed) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.feed = feed
	if s.endpoints != nil {
		s.tellEndpoints(nil)
	}
}

// Run implements upstreams.Source.
func (s *Source) Run(ctx context.Context, feed upstreams.Feed) error {
	s.Attach(feed)
	g, ctx := errgroup.WithContext(ctx)
	if s.issuer != nil {
		next := s.issuer.renew(ctx) // the first streams need the token
		g.Go(func() error { return panics.Contain(func() error { return s.issuer.run(ctx, next) }) })
	}
	g.Go(func() error { return panics.Contain(func() error { return s.client.Run(ctx) }) })
	if s.endpoints != nil {
		g.Go(func() error { return panics.Contain(func() error { return s.endpoints.run(ctx) }) })
	}
	return g.Wait()
}

// Describe implements upstreams.Source.
func (s *Source) Describe(st *upstreams.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.State, st.Since, st.Address, st.Protocol, st.LastError = s.st.State, s.st.Since, s.st.Address, s.st.Protocol, s.st.LastError
	st.Reconnects, st.NACKs, st.Drift = s.st.Reconnects, s.st.NACKs, maps.Clone(s.st.Drift)
	st.Addresses, st.Switches = s.client.Addresses(), s.client.Switches()
	_, problem := s.issuer.state()
	st.MayWait, st.Kept, st.Told = s.st.MayWait, cmp.Or(problem, s.token.Kept()), s.told
	if s.untold != "" {
		st.Notes = append(st.Notes, "what it tells of its problems is refused: "+s.untold)
	}
	if len(s.silent) > 0 && s.st.Protocol != "" && !st.InContact {
		offered := slices.DeleteFunc(slices.Clone(s.types), func(typeURL string) bool { return slices.Contains(st.NotOffered, typeURL) })
		st.Silence = silentAbout(offered, s.silent) + ": " + s.cure
		st.Notes = append(st.Notes, "it "+st.Silence)
	}
	if n := len(st.NotOffered); n > 0 {
		st.Notes = append(st.Notes, fmt.Sprintf("types not offered: %d, such as %s", n, st.NotOffered[0]))
	}
	if s.endpoints != nil {
		st.Endpoints = s.endpoints.describe()
	}
}

// endpointsChanged imports the services of these clusters again.
func (s *Source) endpointsChanged(clusters []string) {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.tellEndpoints(clusters)
}

// tellEndpoints feeds the endpoints of clusters, and requests those that the feed needs. The caller
// holds telling.
func (s *Source) tellEndpoints(clusters []string) {
	result := s.feed.Tell(s.endpoints.told(clusters))
	if err := result.Err(); err != nil {
		s.complaints.Warn(s.log, "endpoints of services refused, last endpoints served", "err", err)
	}
	s.log.Debug("endpoints changed", "clusters", len(clusters), "services", result.Changed)
	s.want(result.Clusters)
}

// want requests the endpoints of these clusters, unless clusters is nil. The caller holds telling.
func (s *Source) want(clusters map[string]struct{}) {
	if clusters == nil || s.endpoints == nil {
		return
	}
	if err := s.endpoints.want(clusters); err != nil {
		// The clusters that are left out count as without endpoints.
		s.complaints.Warn(s.log, "clusters of services left out of the request", "err", err)
		s.tellEndpoints(slices.Collect(maps.Keys(clusters)))
	}
}

// nack counts and logs a refused response, and returns err.
func (s *Source) nack(message, typeURL string, err error) error {
	s.mu.Lock()
	s.st.NACKs++
	s.mu.Unlock()
	s.complaints.Warn(s.log, message, "type", typeURL, "err", err)
	return err
}

// HandleResponse implements adsclient.Handler.
func (s *Source) HandleResponse(resp *adsclient.Response) error {
	s.telling.Lock()
	defer s.telling.Unlock()
	if resp.TypeURL == trouble.TypeURL && s.relay {
		return s.hear(resp)
	}
	scope, err := records.TypeScope(resp.TypeURL)
	if err == nil && !slices.Contains(s.types, resp.TypeURL) {
		// No server would update or remove resources of a type that is not subscribed.
		err = fmt.Errorf("type %s was not asked for", resp.TypeURL)
	}
	if err != nil {
		return s.nack("response refused", resp.TypeURL, err)
	}
	if err := fitDelta(scope.Kind, resp); err != nil {
		return err // HandleState logs it
	}
	// A server has one MeshConfig at most, so each answer is complete.
	complete := resp.Complete || scope.Kind == mirror.MeshConfig
	s.update[0] = records.Update{Scope: scope, Complete: complete, Part: resp.Part, Room: resp.Room(), Marks: resp.Marks()}
	if resp.Len() > 0 { // each push of an istiod has dozens of empty answers
		s.update[0].Elements = elementsOf(resp)
	}
	if resp.RemovedLen() > 0 {
		s.update[0].Removed = resp.Removed()
	}
	result := s.feed.Tell(intake.Received{Believe: s.relay, Server: s.server, Updates: s.update[:]})
	s.update[0] = records.Update{}
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("response", "type", resp.TypeURL, "resources", resp.Len(), "removed", resp.RemovedLen(),
			"changed", result.Changed, "deleted", result.Deleted, "bytes", resp.Size())
	}
	s.want(result.Clusters)
	if n := result.Changed + result.Gone; resp.Relist && n > 0 {
		s.mu.Lock()
		s.st.Drift[scope.Kind.String()] += uint64(n)
		s.mu.Unlock()
		s.log.Info("full answer had changes that no push had", "type", resp.TypeURL, "changed", result.Changed, "gone", result.Gone)
	}
	if result.Relist {
		s.client.Relist()
	}
	if err := result.Err(); err != nil {
		return s.nack("response refused in part, last good content served", resp.TypeURL, err)
	}
	return nil
}

func elementsOf(resp *adsclient.Response) func(int, records.Known) iter.Seq[records.Element] {
	return func(limit int, known records.Known) iter.Seq[records.Element] {
		return func(yield func(records.Element) bool) {
			for raw := range resp.Unknown(limit, known) {
				if !yield(records.Element{Raw: raw.Any, Head: raw.Peek(), Size: raw.Size, Name: raw.Name, Version: raw.Version, Mark: raw.Mark}) {
					return
				}
			}
		}
	}
}

// Repeat implements upstreams.Source.
func (s *Source) Repeat() (repeats bool) {
	s.Resync()
	return true
}

// Resync implements upstreams.Source.
func (s *Source) Resync() { s.client.Relist() }

// ResumeVersions implements adsclient.Handler.
func (s *Source) ResumeVersions(typeURL string) map[string]string {
	scope, _ := records.TypeScope(typeURL) // without an error: it is asked for
	return s.feed.Versions(scope)
}

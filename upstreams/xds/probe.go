package xds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/kube"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
)

// istiodAudience is the token audience that an istiod accepts.
const istiodAudience = "istio-ca"

// maxMissing is how many types a finding names.
const maxMissing = 5

// probe returns one check for each address of an upstream.
func probe(u config.Upstream, env upstreams.Env) (checks []doctor.Check) {
	for _, address := range sectionOf(u).Addresses {
		p := prober{section: sectionOf(u), upstream: u, env: env, address: address, issuer: newIssuer(u, env, slog.New(slog.DiscardHandler))}
		checks = append(checks, doctor.Check{Name: "stream", Upstream: u.Name, Run: p.run})
	}
	return checks
}

// prober checks one address.
type prober struct {
	section  *Config
	upstream config.Upstream
	env      upstreams.Env
	address  string
	dial     []grpc.DialOption // further options for the stream
	issuer   *issuer           // nil unless a cluster gives the token
}

// run checks the connection, then the token, then a stream. If the stream opens, an earlier failure
// becomes a warning.
func (p prober) run(ctx context.Context) []doctor.Finding {
	now := time.Now()
	server := doctor.Server{Address: p.address, Now: now}
	var found []doctor.Finding
	if !p.section.Plaintext {
		cfg, err := tlsFiles(p.section.TLS).Config()
		if err != nil {
			return []doctor.Finding{doctor.Bad("tls", p.address, "the files of TLS can not be used", err.Error(), "correct tls.caFile, tls.certFile and tls.keyFile")}
		}
		cfg.ServerName = p.section.TLS.ServerName
		server.TLS, server.Roots = cfg, "the roots of this host"
		if p.section.TLS.CAFile != "" {
			server.Roots = p.section.TLS.CAFile
		}
		if f := p.section.TLS; f.CertFile != "" {
			found = append(found, doctor.OwnCertificate(f.CertFile, f.KeyFile, now))
		}
	}
	way := server.Reach(ctx)
	found = append(found, way...)
	identity := len(found)
	token := doctor.Token{File: p.section.TokenFile, Audience: istiodAudience, Namespace: p.env.Node.Namespace, Now: now}
	if p.issuer != nil {
		defer p.issuer.client.Close()
		p.issuer.renew(ctx)
		token.File, token.Read, token.Audience = p.issuer.place, p.issuer.read, p.issuer.section.Audience
	}
	if token.File != "" {
		found = append(found, token.Check()...)
	}
	if doctor.Worst(way) == doctor.Failed {
		return found
	}
	got, err := p.ask(ctx)
	stream := p.stream(ctx, got, err)
	if stream.Level != doctor.Failed {
		for i, f := range found[identity:] {
			if f.Level == doctor.Failed {
				f.Level = doctor.Warning
				f.Why = strings.TrimPrefix(f.Why+"; this server accepts it all the same", "; ")
				found[identity+i] = f
			}
		}
	}
	return append(append(append(found, stream), p.leftOut(got)...), got.objections.Findings(p.address)...)
}

// leftOut returns a finding if all resources of a kind will be left out.
func (p prober) leftOut(got answers) []doctor.Finding {
	if len(got.generated) == 0 || got.relay != "" || p.upstream.Generated == config.GeneratedKeep {
		return nil
	}
	return []doctor.Finding{doctor.Doubt("import", p.address, "all resources are left out, reason generated, of "+strings.Join(got.generated, ", "),
		"their names have "+records.GeneratedMark, "set generated: keep if nothing behind the relay derives them")}
}

// answers are the results of one stream.
type answers struct {
	witness   *adsclient.Witness
	relay     string // name of the relay, or "without a name"; empty if it is none
	istiod    string // version of the istiod
	missing   []string
	resources int
	generated []string // kinds of which all resources are
	// objections are about resources of the server.
	objections doctor.Objections
}

// stream returns the finding about a stream that asked for all types, as the relay does.
func (p prober) stream(ctx context.Context, got answers, err error) doctor.Finding {
	who := "the server"
	switch {
	case got.relay != "":
		who = "relay " + got.relay
	case got.istiod != "":
		who = "istiod " + got.istiod
	}
	switch {
	case err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && status.Code(err) != codes.DeadlineExceeded:
		return p.refusal(err, got.witness.Explain)
	case len(got.missing) == 0:
		f := doctor.Good("stream", p.address, "%s answers every type, with %d resources", who, got.resources)
		f.Resources = got.resources
		return f
	}
	types := subscriptions(p.upstream)(false)
	all, why := len(types), "no answer to "+text.Some(got.missing, maxMissing)
	lacks := p.section.Partial || slices.Equal(got.missing, []string{mirror.MeshConfig.PreferredTypeURL()})
	what := fmt.Sprintf("%s answers %d of %d types in time", who, all-len(got.missing), all)
	f := doctor.Doubt("stream", p.address, what, why, "look whether the server is ready")
	switch {
	case len(got.missing) == all:
		f.Level = doctor.Failed
	case lacks && !errors.Is(err, io.EOF):
		f = doctor.Good("stream", p.address, "%s, with %d resources: %s, which counts as not offered", what, got.resources, why)
	case !lacks:
		f.What, f.Fix = who+" "+silentAbout(types, got.missing), f.Fix+"; "+ifSilent
	}
	if got.relay != "" && f.Level != doctor.OK {
		f.Fix = "look at that relay: relay status there tells whom it waits for"
	}
	if errors.Is(err, io.EOF) {
		f.Why += "; " + err.Error()
	}
	f.Resources = got.resources
	return f
}

// refusal returns the finding for a stream that ended with an error.
func (p prober) refusal(err error, explain func(error) error) doctor.Finding {
	const serviceAccount = "run the relay under a service account of istiod's root namespace (usually istio-system), with node.namespace set to it, over port 15012"
	said := status.Convert(err).Message()
	switch status.Code(err) {
	case codes.Unauthenticated:
		return doctor.Bad("identity", p.address, "the server does not accept the relay's identity", said,
			"check tokenFile or token (audience "+istiodAudience+", not expired, of a cluster that the server knows) or the client certificate")
	case codes.PermissionDenied:
		if strings.Contains(said, "no view matches this client") {
			return doctor.Bad("identity", p.address, "the relay there has no view for us", said, "add this client to a view of that relay")
		}
		return doctor.Bad("identity", p.address, "the server knows the relay's identity, and its api generator is closed to it", said,
			serviceAccount+"; or set ENABLE_XDS_API_GENERATOR_AUTH=false on the istiod")
	case codes.Unimplemented:
		return doctor.Bad("stream", p.address, "the server is one of gRPC, and not of xDS", said, "check the port: an istiod has 15012 (TLS) and 15010 (plaintext)")
	}
	return doctor.Bad("stream", p.address, "no stream", explain(err).Error(), "look at the log of the server")
}

// ask opens a stream, asks for all types, and reads until each is answered or ctx ends.
func (p prober) ask(ctx context.Context) (got answers, err error) {
	got.witness = &adsclient.Witness{}
	creds, _, opts := dialOptions(p.section, p.issuer, slog.New(slog.DiscardHandler))
	opts = append(append(append(opts, p.dial...), got.witness.Options(creds)...), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(p.upstream.Limits.MaxResponseBytes)))
	conn, err := grpc.NewClient("passthrough:///"+p.address, opts...)
	if err != nil {
		return got, err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return got, err
	}
	self := nodeConfig(p.upstream, p.env, "probe")
	self.ClusterID, self.OwnClusterID = p.upstream.ClusterID, p.env.Node.ClusterID
	node := adsclient.Node(self)
	types := subscriptions(p.upstream)(false)
	got.missing = slices.Clone(types)
	for _, typeURL := range types {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
			break // Recv has the reason
		}
	}
	counted := map[string]bool{}
	for len(got.missing) > 0 {
		resp, err := stream.Recv()
		if err != nil {
			return got, err
		}
		got.learn(stream, resp)
		got.missing = slices.DeleteFunc(got.missing, func(t string) bool { return t == resp.TypeUrl })
		// A server may answer each version of a kind with the same resources.
		if kind, _, err := mirror.ParseTypeURL(resp.TypeUrl); err == nil && !counted[kind.String()] && len(resp.Resources) > 0 {
			counted[kind.String()] = true
			got.resources += len(resp.Resources)
			all := true
			for _, one := range resp.Resources {
				all = strings.Contains(got.object(kind, one), records.GeneratedMark) && all
			}
			if all {
				got.generated = append(got.generated, kind.String())
			}
		}
	}
	return got, nil
}

// object adds an objection to a resource that the relay would take, and returns its name.
func (a *answers) object(kind mirror.Kind, element *anypb.Any) string {
	encoded, _ := proto.Marshal(element) // without it nothing is decoded
	r, err := mirror.Decode(kind, encoded, "")
	if err != nil {
		return ""
	}
	a.objections.Add(r.Key().String(), kube.Objection(r))
	return r.Key().Name
}

// learn sets relay or istiod from a response.
func (a *answers) learn(stream grpc.ClientStream, resp *discoveryv3.DiscoveryResponse) {
	var istiod struct{ Info struct{ Version string } }
	if json.Unmarshal([]byte(resp.GetControlPlane().GetIdentifier()), &istiod) == nil && istiod.Info.Version != "" {
		a.istiod = istiod.Info.Version
	}
	if headers, err := stream.Header(); err == nil && a.relay == "" { // the headers came with the answer
		if p := adsclient.ParsePeer(headers); p.Relay {
			a.relay = cmp.Or(p.Name, "without a name")
		}
	}
}

package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// clientOf returns the client of a node with this id, metadata and labels.
func clientOf(id string, metadata, labels map[string]string) client {
	text := func(m map[string]string) *structpb.Struct {
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for k, v := range m {
			s.Fields[k] = structpb.NewStringValue(v)
		}
		return s
	}
	md := text(metadata)
	md.Fields["LABELS"] = structpb.NewStructValue(text(labels))
	return must(parseNode(&corev3.Node{Id: id, Metadata: md}))
}

func TestFirstMatchingViewWins(t *testing.T) {
	views := []View{
		{Name: "listener"},
		{Name: "id", Match: Match{NodeIDs: []string{"sidecar~*~edge-?.*", "gateway"}}},
		{Name: "cluster", Match: Match{ClusterIDs: []string{"east", "west-*"}}},
		{Name: "namespace and labels", Match: Match{Namespaces: []string{"team-*"}, Labels: "tier in (gold,silver),!legacy"}},
		{Name: "namespace", Match: Match{Namespaces: []string{"team-a"}}},
		{Name: "identity", Match: Match{Identities: []string{"spiffe://*/ns/istio-system/sa/*", "dns:*.example"}}},
		{Name: "cluster and identity", Match: Match{ClusterIDs: []string{"far"}, Identities: []string{"spiffe://*/**"}}},
		{Name: "late cluster", Match: Match{ClusterIDs: []string{"east"}}},
	}
	type m = map[string]string
	for _, tc := range []struct {
		name       string
		listener   string
		client     client
		identities []string
		want       string // empty: none
	}{
		{"listener", "listener", clientOf("gateway", m{"CLUSTER_ID": "east"}, nil), nil, "listener"},
		{"listener, identity", "cluster and identity", clientOf("x", nil, nil), []string{"spiffe://mesh/other"}, "cluster and identity"},
		{"id, literally", "", clientOf("gateway", nil, nil), nil, "id"},
		{"id, by pattern", "", clientOf("sidecar~10.0.0.1~edge-1.prod~prod.svc", nil, nil), nil, "id"},
		{"a pattern is for all of an id", "", clientOf("gateway-2", nil, nil), nil, ""},
		{"cluster", "", clientOf("x", m{"CLUSTER_ID": "west-2"}, nil), nil, "cluster"},
		{"the first of two", "", clientOf("x", m{"CLUSTER_ID": "east"}, nil), []string{"dns:a.example"}, "cluster"},
		{"namespace and labels", "", clientOf("x", m{"NAMESPACE": "team-a"}, m{"tier": "gold"}), nil, "namespace and labels"},
		{"namespace of the id", "", clientOf("sidecar~10.0.0.1~p.team-b~d", nil, m{"tier": "silver"}), nil, "namespace and labels"},
		{"labels that do not match", "", clientOf("x", m{"NAMESPACE": "team-a"}, m{"tier": "gold", "legacy": ""}), nil, "namespace"},
		{"labels of another namespace", "", clientOf("x", m{"NAMESPACE": "other"}, m{"tier": "gold"}), nil, ""},
		{"SPIFFE id", "", clientOf("x", nil, nil), []string{"spiffe://mesh/ns/istio-system/sa/istiod"}, "identity"},
		{"a * is one segment", "", clientOf("x", nil, nil), []string{"spiffe://mesh/ns/istio-system/sa/x/istiod"}, ""},
		{"second identity", "", clientOf("x", nil, nil), []string{"spiffe://mesh/other", "dns:relay.example"}, "identity"},
		{"any identity", "", clientOf("x", m{"CLUSTER_ID": "far"}, nil), []string{"spiffe://mesh/other"}, "cluster and identity"},
		{"no identity is not any", "", clientOf("x", m{"CLUSTER_ID": "far"}, nil), nil, ""},
		{"nothing", "", clientOf("x", nil, nil), nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := Listener{Address: "127.0.0.1:15010", View: tc.listener, TLS: &TLS{ClientCAFile: "ca.pem"}}
			for _, other := range []string{"", "default"} {
				all := views
				if other != "" {
					all = append([]View{{Name: other, Default: true}}, views...)
				}
				want := tc.want
				if want == "" {
					want = other
				}
				r, err := must(newRules(Access{Views: all}, []Listener{l})).choose(l, tc.client, tc.identities)
				switch {
				case want == "" && status.Code(err) != codes.PermissionDenied:
					t.Errorf("got %v, %v, want a refusal", r, err)
				case want != "" && (err != nil || r.Name != want):
					t.Errorf("got %v, %v, want %s", r, err, want)
				}
			}
		})
	}
}

// TestIdentitiesOfAViewHoldOnEveryListener: on a listener that names the view, and for the default.
func TestIdentitiesOfAViewHoldOnEveryListener(t *testing.T) {
	match := Match{NodeIDs: []string{"other"}, Identities: []string{"spiffe://mesh/ns/a/sa/b"}}
	verified := &TLS{ClientCAFile: "ca.pem"}
	for name, tc := range map[string]struct {
		view     View
		listener Listener
	}{
		"a listener names the view": {View{Name: "a", Match: match}, Listener{View: "a", TLS: verified}},
		"the view is the default":   {View{Name: "a", Match: match, Default: true}, Listener{TLS: verified}},
	} {
		rs := must(newRules(Access{Views: []View{tc.view}}, []Listener{tc.listener}))
		if r, err := rs.choose(tc.listener, clientOf("x", nil, nil), []string{"spiffe://mesh/ns/a/sa/b"}); err != nil || r.Name != "a" {
			t.Errorf("%s: its identity gets %v, %v", name, r, err)
		}
		for _, other := range [][]string{nil, {"spiffe://mesh/ns/a/sa/c"}} {
			if r, err := rs.choose(tc.listener, clientOf("x", nil, nil), other); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: identities %v get %v, %v", name, other, r, err)
			}
		}
	}
	for _, blind := range []*TLS{nil, {}} {
		if _, err := newRules(Access{Views: []View{{Name: "a", Match: match}}}, []Listener{{Address: ":1", View: "a", TLS: blind}}); err == nil {
			t.Errorf("a listener with TLS %v, which verifies nobody, names a view of identities", blind)
		}
	}
}

func TestRefusalSaysByWhatTheClientWasJudged(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, tc := range []struct {
		client     client
		identities []string
		want       string
	}{
		{clientOf("n-1", map[string]string{"CLUSTER_ID": "east", "NAMESPACE": "shop"}, nil), nil,
			`no view matches this client: listener 0.0.0.0:15010, node id "n-1", cluster "east", namespace "shop", identity none verified`},
		{clientOf("n-1", nil, nil), []string{"spiffe://a/b", "c"},
			`no view matches this client: listener 0.0.0.0:15010, node id "n-1", cluster "", namespace "", identity "spiffe://a/b", "c"`},
		{clientOf(long, map[string]string{"CLUSTER_ID": long, "NAMESPACE": long}, nil), []string{long, long, long, long, long}, ""},
	} {
		_, err := must(newRules(Access{Views: []View{{Name: "v"}}}, nil)).choose(Listener{Address: "0.0.0.0:15010"}, tc.client, tc.identities)
		got := status.Convert(err).Message()
		if tc.want != "" && got != tc.want || len(got) > 2000 {
			t.Errorf("%d bytes: %s", len(got), got)
		}
	}
}

func TestBadViewsAreErrorsThatNameThem(t *testing.T) {
	for want, tc := range map[string]struct {
		views     []View
		listeners []Listener
	}{
		"view a: another view has this name":           {[]View{{Name: "a"}, {Name: "a"}}, nil},
		"view b: view a is the default already":        {[]View{{Name: "a", Default: true}, {Name: "b", Default: true}}, nil},
		"view 2 has no name":                           {[]View{{Name: "a"}, {}}, nil},
		"view a: a pattern for the namespace is empty": {[]View{{Name: "a", Match: Match{Namespaces: []string{"x", ""}}}}, nil},
		`view a: label selector "x in"`:                {[]View{{Name: "a", Match: Match{Labels: "x in"}}}, nil},
		"listener :1: there is no view b":              {[]View{{Name: "a"}}, []Listener{{Address: ":1", View: "b"}}},
		"listener :1: there is no view a":              {nil, []Listener{{Address: ":1", View: "a"}}},
		"view c: another view has this name\ndownst":   {[]View{{Name: "c"}, {Name: "c"}}, []Listener{{View: "d"}}},
	} {
		if len(tc.listeners) == 0 {
			tc.listeners = []Listener{{Address: ":1"}}
		}
		_, err := New(Config{Listeners: tc.listeners, Access: Access{Views: tc.views}}, Deps{Resources: mirror.NewAggregate(), Registerer: prometheus.NewRegistry()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestUnverifiedCertificatesAreNoIdentity(t *testing.T) {
	leaf := &x509.Certificate{DNSNames: []string{"a.example"}}
	for name, tc := range map[string]struct {
		info credentials.AuthInfo
		want int
	}{
		"plaintext":  {nil, 0},
		"unverified": {credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}}, 0},
		"empty":      {credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}}, 0},
		"verified":   {credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}}, 1},
	} {
		if got := (&TLS{}).identify(&peer.Peer{AuthInfo: tc.info}).Names; len(got) != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestClientsGetTheirView: by the listener, by their certificate, by what they say, or
// none.
func TestClientsGetTheirView(t *testing.T) {
	dir := t.TempDir()
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay.example", ca)
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(ca.Certificate[0])))
	file := func(name string) string { return filepath.Join(dir, name) }
	only := func(namespace string) func(*mirror.Resource) bool {
		return func(r *mirror.Resource) bool { return r.Namespace() == namespace }
	}
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Listeners = []Listener{
			{Address: "127.0.0.1:0", TLS: &TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAFile: file("ca.crt")}},
			{Address: "127.0.0.1:0", View: "public"},
		}
		c.Views = []View{
			{Name: "istiods", Match: Match{Identities: []string{"spiffe://cluster.local/ns/istio-system/sa/istiod"}}, Accepts: only("shop")},
			{Name: "by cluster", Match: Match{ClusterIDs: []string{"south"}}, Accepts: only("till")},
			{Name: "public", Accepts: only("public")},
		}
	})
	addrs := must(r.server.Addrs(t.Context()))
	r.put(se("shop", "a", "a.example"), se("till", "b", "b.example"), se("public", "c", "c.example"))
	as := func(name string) grpc.DialOption {
		return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*certificate(t, dir, name, ca)},
		}))
	}
	open := func(listener int, cluster string, opts ...grpc.DialOption) *sotwStream {
		r.addr = addrs[listener].String()
		s := r.sotw(opts...)
		s.send(&discoveryv3.DiscoveryRequest{Node: node("CLUSTER_ID", cluster), TypeUrl: seV1})
		return s
	}
	for _, tc := range []struct {
		listener   int
		opts       []grpc.DialOption
		view, sees string
	}{
		{0, []grpc.DialOption{as("istiod")}, "istiods", "shop/a"},
		{0, []grpc.DialOption{as("other")}, "by cluster", "till/b"},
		{1, nil, "public", "public/c"},
	} {
		stream := open(tc.listener, "south", tc.opts...)
		if got := names(t, stream.next()); got != tc.sees {
			t.Errorf("the view %s shows %q, want %q", tc.view, got, tc.sees)
		}
		if st := r.server.Clients(); len(st) != 1 || st[0].View != tc.view {
			t.Errorf("clients %+v, want one of the view %s", st, tc.view)
		}
		stream.cancel()
		r.eventually(t, "the client is gone", func() bool { return len(r.server.Clients()) == 0 })
	}
	err := open(0, "north", as("other")).end()
	wantCode(t, err, codes.PermissionDenied)
	for _, part := range []string{"127.0.0.1:0", `"north"`, node().Id, "spiffe://cluster.local/ns/istio-system/sa/other", "no view matches"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal does not name %s: %v", part, err)
		}
	}
	r.eventually(t, "the refusal is counted", func() bool {
		return testutil.ToFloat64(r.server.metrics.refused.WithLabelValues(codes.PermissionDenied.String())) == 1
	})
}

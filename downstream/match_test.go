package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

func TestBadViewsAreErrorsThatNameThem(t *testing.T) {
	for want, tc := range map[string]struct {
		views     []views.View
		listeners []Listener
	}{
		"view a: identity: ":              {[]views.View{{Name: "a", Match: views.Match{Identities: []string{"x"}}}}, nil},
		"listener :1: there is no view b": {[]views.View{{Name: "a"}}, []Listener{{Address: ":1", View: "b"}}},
		"listener :1: there is no view a": {nil, []Listener{{Address: ":1", View: "a"}}},
	} {
		if len(tc.listeners) == 0 {
			tc.listeners = []Listener{{Address: ":1"}}
		}
		_, err := New(Config{Listeners: tc.listeners, Views: tc.views}, Deps{Resources: mirror.NewAggregate(), Registerer: prometheus.NewRegistry()})
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
			{Address: "127.0.0.1:0", TLS: &TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAs: []ClientCA{{File: file("ca.crt")}}}},
			{Address: "127.0.0.1:0", View: "public"},
		}
		c.Views = []views.View{
			{Name: "istiods", Match: views.Match{Identities: []string{"spiffe://cluster.local/ns/istio-system/sa/istiod"}}, Accepts: only("shop")},
			{Name: "by cluster", Match: views.Match{ClusterIDs: []string{"south"}}, Accepts: only("till")},
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

package downstream

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/views"
	"meshrelay/events"
)

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestATrustDomainIsVouchedForByItsOwnRoots: a CA of another trust domain, or of none, can not
// make its identities, and what is refused is logged with listener, peer and reason.
func TestATrustDomainIsVouchedForByItsOwnRoots(t *testing.T) {
	dir := t.TempDir()
	cas := map[string]*tls.Certificate{}
	for _, name := range []string{"a", "b", "other"} {
		cas[name] = certificate(t, dir, name, nil)
	}
	certificate(t, dir, "relay.example", cas["other"])
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(cas["other"].Certificate[0])))
	file := func(name string) string { return filepath.Join(dir, name) }
	log := &lockedLog{}
	r := startRelay(t, true, func(c *Config, d *Deps) {
		d.Logger = slog.New(slog.NewTextHandler(log, nil))
		c.Listeners = []Listener{{Address: "127.0.0.1:0", TLS: &TLS{
			CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAs: []ClientCA{{File: file("other.crt")}, {TrustDomain: "a.example", File: file("a.crt")}, {TrustDomain: "b.example", File: file("b.crt")}},
		}}}
		c.Views = []views.View{
			{Name: "a", Match: views.Match{Identities: []string{"spiffe://a.example/ns/istio-system/*/*"}}},
			{Name: "dns", Match: views.Match{Identities: []string{"dns:relay.*"}}},
			{Name: "c", Match: views.Match{Identities: []string{"spiffe://c.example/**"}}},
		}
	})
	uri := func(texts ...string) (out []*url.URL) {
		for _, s := range texts {
			out = append(out, must(url.Parse(s)))
		}
		return out
	}
	const tenant = "spiffe://a.example/ns/istio-system/sa/istiod"
	for i, tc := range []struct {
		name, ca string
		uris     []string
		dns      []string
		view     string // empty: none
		logged   string // empty: the handshake succeeds
	}{
		{"its own CA", "a", []string{tenant}, nil, "a", ""},
		{"the CA of another trust domain", "b", []string{tenant}, nil, "", "unknown authority"},
		{"the CA for all others", "other", []string{tenant}, nil, "", "unknown authority"},
		{"a trust domain of the CA for all others", "other", []string{"spiffe://c.example/x"}, nil, "c", ""},
		{"a trust domain that no CA here vouches for", "a", []string{"spiffe://c.example/x"}, nil, "", "unknown authority"},
		{"a name of the CA for all others", "other", nil, []string{"relay.east"}, "dns", ""},
		{"a name of a CA of a trust domain", "a", nil, []string{"relay.east"}, "", "unknown authority"},
		{"a name beside a SPIFFE ID", "b", []string{"spiffe://b.example/x"}, []string{"relay.east"}, "", ""},
		{"no SPIFFE ID", "a", []string{"spiffe://a.example/ns/istio-system/sa/x/../../ns/evil"}, nil, "", "not a SPIFFE ID"},
		{"two SPIFFE IDs", "b", []string{"spiffe://b.example/x", tenant}, nil, "", "must be the only URI"},
		{"more segments than the pattern", "a", []string{"spiffe://a.example/ns/istio-system/sa/x/y"}, nil, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name := string(rune('A' + i))
			cert := certificateOf(t, dir, name, cas[tc.ca], func(c *x509.Certificate) { c.URIs, c.DNSNames = uri(tc.uris...), tc.dns })
			before := log.String()
			s, err := openStream(t, r, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
				RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*cert},
			})))
			if err == nil && tc.view != "" {
				r.eventually(t, "the client has its view", func() bool { st := r.server.Clients(); return len(st) == 1 && st[0].View == tc.view })
				s.cancel()
				r.eventually(t, "the client is gone", func() bool { return len(r.server.Clients()) == 0 })
				return
			}
			if err == nil {
				err = s.end()
			}
			want := codes.PermissionDenied
			if tc.logged != "" {
				want = codes.Unavailable
			}
			if tc.view != "" || status.Code(err) != want {
				t.Errorf("the client gets %v, want the view %q", err, tc.view)
			}
			if tc.logged == "" {
				return
			}
			r.eventually(t, "it is logged", func() bool {
				line := strings.TrimPrefix(log.String(), before)
				return strings.Contains(line, "client refused") && strings.Contains(line, "listener=127.0.0.1:0 address=127.0.0.1:") &&
					strings.Contains(line, "reason=handshake") && strings.Contains(line, tc.logged)
			})
		})
	}
}

// openStream subscribes; a handshake that fails is an error.
func openStream(t *testing.T, r *relay, opts ...grpc.DialOption) (*sotwStream, error) {
	t.Helper()
	stream, err := r.dial(opts...).StreamAggregatedResources(t.Context())
	if err != nil {
		return nil, err
	}
	s := newStream(t, stream, func() {})
	s.cancel = func() { _ = stream.CloseSend() }
	s.send(&discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: seV1})
	return s, nil
}

// TestAFailedHandshakeOfTheNetworkIsNotTheClients: probes of ports are no refused certificates.
func TestAFailedHandshakeOfTheNetworkIsNotTheClients(t *testing.T) {
	for _, err := range []error{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}} {
		if !isOfTheNetwork(err) {
			t.Errorf("%v counts as refused", err)
		}
	}
	if isOfTheNetwork(x509.UnknownAuthorityError{}) {
		t.Error("a certificate of an unknown authority counts as the network's")
	}
}

// TestTheJournalTellsWhyAHandshakeFailed, as the log does.
func TestTheJournalTellsWhyAHandshakeFailed(t *testing.T) {
	_, set, client := mutualTLS(t)
	journal := events.New()
	r := startRelay(t, true, set, func(_ *Config, d *Deps) { d.Events = journal })
	s, err := openStream(t, r, client("one", -time.Minute))
	if err == nil {
		err = s.end()
	}
	wantCode(t, err, codes.Unavailable)
	r.eventually(t, "the journal tells of the certificate", func() bool {
		page := journal.Read(events.Query{Filter: events.Filter{Types: []events.Type{events.TurnedAway}}})
		return len(page.Events) > 0 && strings.HasPrefix(page.Events[0].Reason, "handshake: ") && strings.Contains(page.Events[0].Reason, "expired")
	})
}

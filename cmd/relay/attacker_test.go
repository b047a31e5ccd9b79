package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/testing/await"
)

// issueFor returns a client certificate with URIs, as a SPIFFE CA issues it.
func (c *ca) issueFor(serial int64, ends time.Time, uris ...string) *tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "client"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			c.t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// attacker connects to the relay of TestAnAttackerGetsNothing.
type attacker struct {
	certificate *tls.Certificate
	metadata    map[string]any
}

// entries returns the names of the ServiceEntries that the attacker is sent.
func (a attacker) entries(ctx context.Context, address string, roots *x509.CertPool) (names []string, err error) {
	cfg := &tls.Config{RootCAs: roots, ServerName: istiodName}
	if a.certificate != nil { // one that the server's list of CAs does not have is sent all the same
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate, nil }
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	md, err := structpb.NewStruct(a.metadata)
	if err != nil {
		return nil, err
	}
	node := &corev3.Node{Id: "waypoint~10.0.0.1~attacker~svc.cluster.local", Metadata: md}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: "networking.istio.io/v1/ServiceEntry"}) // Recv has the status
	resp, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for range resp.GetResources() {
		names = append(names, "a resource")
	}
	return names, stream.CloseSend()
}

// TestAnAttackerGetsNothing: whoever proves nothing, or something wrong, or something that no view has, is sent no
// resource, and each time the metrics have the reason. A host of others that an upstream claims is not served. Those that
// views let in are served meanwhile.
func TestAnAttackerGetsNothing(t *testing.T) {
	root, stranger := newCA(t, "root"), newCA(t, "root")
	server := root.good()
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	listener := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	p := newProcess(t, fmt.Sprintf(`
upstreams: [{name: east, file: {path: east.yaml}, import: {profile: services, hosts: {include: ["*.shop.example"]}}}]
views: [{name: all, match: {identities: ["spiffe://mesh.example/ns/shop/**"]}}]
downstream:
  listeners:
  - address: %q
    tls: {certFile: cert.pem, keyFile: key.pem, clientCAs: [{trustDomain: mesh.example, file: %q}]}
`, listener, root.file))
	const entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop}\n" +
		"spec: {hosts: [%s], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}\n---\n"
	for name, content := range map[string][]byte{
		"cert.pem":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate[0]}),
		"key.pem":   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"east.yaml": fmt.Appendf(nil, entry+entry, "web", "web.shop.example", "takeover", "API.bank.example"),
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.start()
	p.awaitReady(t)

	const shop, bank = "spiffe://mesh.example/ns/shop/sa/web", "spiffe://mesh.example/ns/bank/sa/web"
	soon := time.Now().Add(time.Hour)
	roots := x509.NewCertPool()
	roots.AddCert(root.cert)
	ctx := t.Context()

	good := map[string]attacker{
		"a certificate":                       {certificate: root.issueFor(2, soon, shop)},
		"a certificate, and what the node is": {certificate: root.issueFor(2, soon, shop), metadata: map[string]any{"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web"}},
	}
	served := func() {
		t.Helper()
		for name, a := range good {
			if names, err := a.entries(ctx, listener, roots); err != nil || len(names) != 1 {
				t.Errorf("%s: %d resources, %v", name, len(names), err)
			}
		}
	}
	served()

	told := 0
	refused := func(reason string, n int) {
		t.Helper()
		series := fmt.Sprintf("relay_downstream_refused_total{reason=%q} %d\n", reason, n)
		await.Until(t, "the metrics have "+series, func() bool { return strings.Contains(scrape(t, p.admin), series) })
	}
	seen := map[string]int{}
	for name, tc := range map[string]struct {
		attacker
		reason string
	}{
		"nobody":                     {attacker{}, "handshake"},
		"a CA of the same name":      {attacker{certificate: stranger.issueFor(2, soon, shop)}, "handshake"},
		"another trust domain":       {attacker{certificate: root.issueFor(2, soon, "spiffe://other.example/ns/shop/sa/web")}, "handshake"},
		"an expired certificate":     {attacker{certificate: root.issueFor(2, time.Now().Add(-time.Minute), shop)}, "handshake"},
		"two URIs":                   {attacker{certificate: root.issueFor(2, soon, shop, bank)}, "handshake"},
		"an identity without a view": {attacker{certificate: root.issueFor(2, soon, bank)}, "view"},
		"the namespace of others":    {attacker{certificate: root.issueFor(2, soon, shop), metadata: map[string]any{"NAMESPACE": "bank"}}, "node"},
		"the account of others":      {attacker{certificate: root.issueFor(2, soon, shop), metadata: map[string]any{"SERVICE_ACCOUNT": "db"}}, "node"},
	} {
		names, err := tc.entries(ctx, listener, roots)
		if code := status.Code(err); err == nil || len(names) > 0 || code == codes.DeadlineExceeded || code == codes.Canceled {
			t.Errorf("%s: %d resources, %v", name, len(names), err)
		}
		seen[tc.reason]++
		refused(tc.reason, seen[tc.reason])
		told++
	}
	served()
	if told != 8 || seen["handshake"] < 5 {
		t.Errorf("%d attacks, %v", told, seen)
	}

	t.Run("AThousandAtOnce", func(t *testing.T) {
		var all sync.WaitGroup
		var let, denied atomic.Int64
		bad := attacker{certificate: root.issueFor(2, soon, bank)}
		for range 8 {
			all.Go(func() {
				for range 125 {
					if names, err := bad.entries(ctx, listener, roots); err == nil || len(names) > 0 {
						let.Add(1)
					} else if !errors.Is(err, context.DeadlineExceeded) {
						denied.Add(1)
					}
				}
			})
		}
		served()
		all.Wait()
		if let.Load() != 0 || denied.Load() != 1000 {
			t.Errorf("%d were let in, and %d denied", let.Load(), denied.Load())
		}
		served()
	})
}

package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"

	workloadpb "github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// workloadAPI is a SPIFFE agent that tells one certificate.
type workloadAPI struct {
	workloadpb.UnimplementedSpiffeWorkloadAPIServer
	path string
	stop func()

	mu   sync.Mutex
	now  *workloadpb.X509SVIDResponse
	news chan struct{} // closed after each change
}

func startWorkloadAPI(t *testing.T) *workloadAPI {
	t.Helper()
	a := &workloadAPI{path: filepath.Join(t.TempDir(), "agent.sock"), news: make(chan struct{})}
	lis, err := net.Listen("unix", a.path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	workloadpb.RegisterSpiffeWorkloadAPIServer(s, a)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(lis) }()
	a.stop = func() { s.Stop(); <-done }
	t.Cleanup(a.stop)
	return a
}

// tell gives the relay a certificate with its ID, the roots of its trust domain, and those of others.
func (a *workloadAPI) tell(own *tls.Certificate, id string, root *tls.Certificate, others map[string]*tls.Certificate) {
	resp := &workloadpb.X509SVIDResponse{
		Svids:            []*workloadpb.X509SVID{{SpiffeId: id, X509Svid: own.Certificate[0], X509SvidKey: must(x509.MarshalPKCS8PrivateKey(own.PrivateKey)), Bundle: root.Certificate[0]}},
		FederatedBundles: map[string][]byte{},
	}
	for domain, ca := range others {
		resp.FederatedBundles[domain] = ca.Certificate[0]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = resp
	close(a.news)
	a.news = make(chan struct{})
}

// FetchX509SVID implements the API.
func (a *workloadAPI) FetchX509SVID(_ *workloadpb.X509SVIDRequest, stream grpc.ServerStreamingServer[workloadpb.X509SVIDResponse]) error {
	for {
		a.mu.Lock()
		now, news := a.now, a.news
		a.mu.Unlock()
		if now != nil {
			if err := stream.Send(now); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-news:
		}
	}
}

func testLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func withAuthorization(ctx context.Context, header string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", header)
}

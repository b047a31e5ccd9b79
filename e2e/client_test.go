package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
)

// xdsClient is an independent MCP-over-xDS client: generated code, gRPC's own codec,
// and none of the relay's packages.
type xdsClient struct {
	t    *testing.T
	conn *grpc.ClientConn
	stub discoveryv3.AggregatedDiscoveryServiceClient
	ctx  context.Context
}

func dial(t *testing.T, address string) *xdsClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &xdsClient{t: t, conn: conn, stub: discoveryv3.NewAggregatedDiscoveryServiceClient(conn), ctx: t.Context()}
}

func testNode() *corev3.Node {
	return &corev3.Node{
		Id:       "sidecar~127.0.0.1~test.istio-system~istio-system.svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("api")}},
	}
}

// list asks for one type on a SotW stream of its own and returns the names with the
// versions, and the resources.
func (c *xdsClient) list(typeURL string) (map[string]*mcp.Resource, error) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	s, err := c.stub.StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{Node: testNode(), TypeUrl: typeURL}); err != nil {
		return nil, err
	}
	resp, err := s.Recv()
	if err != nil {
		return nil, err
	}
	if resp.TypeUrl != typeURL {
		return nil, fmt.Errorf("asked for %s, got %s", typeURL, resp.TypeUrl)
	}
	out := map[string]*mcp.Resource{}
	for _, a := range resp.Resources {
		m := &mcp.Resource{}
		if err := a.UnmarshalTo(m); err != nil {
			return nil, err
		}
		if _, twice := out[m.Metadata.Name]; twice {
			return nil, fmt.Errorf("%s comes twice", m.Metadata.Name)
		}
		out[m.Metadata.Name] = m
	}
	return out, nil
}

// follower is a delta stream of one type that keeps a log of what it is sent.
type follower struct {
	t    *testing.T
	mu   sync.Mutex
	log  []string          // "+name" for what came, "-name" for what was removed
	have map[string]string // name to version
	all  map[string]*mcp.Resource
	err  error

	answered bool
}

func (c *xdsClient) follow(typeURL string, held map[string]string) *follower {
	c.t.Helper()
	s, err := c.stub.DeltaAggregatedResources(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	f := &follower{t: c.t, have: map[string]string{}, all: map[string]*mcp.Resource{}}
	for k, v := range held {
		f.have[k] = v
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(), TypeUrl: typeURL, InitialResourceVersions: held}); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		for {
			resp, err := s.Recv()
			f.mu.Lock()
			if err != nil {
				f.err = err
				f.mu.Unlock()
				return
			}
			f.answered = true
			for _, r := range resp.Resources {
				f.log = append(f.log, "+"+r.Name)
				f.have[r.Name] = r.Version
				m := &mcp.Resource{}
				if err := r.Resource.UnmarshalTo(m); err == nil {
					f.all[r.Name] = m
				}
			}
			for _, n := range resp.RemovedResources {
				f.log = append(f.log, "-"+n)
				delete(f.have, n)
				delete(f.all, n)
			}
			f.mu.Unlock()
			s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: resp.Nonce}) //nolint:errcheck // Recv tells
		}
	}()
	eventually(c.t, "the first answer about "+typeURL, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.answered && f.err == nil {
			return errors.New("none has come")
		}
		return nil
	})
	return f
}

// mark forgets the log so far.
func (f *follower) mark() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

func (f *follower) events() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.log, " ")
}

// sent waits until so many resources have come or gone since mark, and returns them in order. More than that are not
// waited for, but seen if they came with those.
func (f *follower) sent(n int) (log []string) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d resources are sent", n), func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if log = slices.Sorted(slices.Values(f.log)); len(log) < n {
			return fmt.Errorf("sent are %q", log)
		}
		return nil
	})
	return log
}

func (f *follower) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.have)
}

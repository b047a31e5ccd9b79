// Command linear is a relay as one writes it in a day: SotW clients of the upstreams, a
// go-control-plane LinearCache, and go-control-plane's server. It relays ServiceEntries,
// without API versions, shadowing, metadata or recovery.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
)

const (
	typeURL     = "networking.istio.io/v1alpha3/ServiceEntry"
	resourceURL = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
	window      = 1 << 20
)

func main() {
	listen := flag.String("listen", "", "address to serve on")
	upstreams := flag.String("upstreams", "", "addresses to relay from, with commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *listen, strings.Split(*upstreams, ",")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen string, upstreams []string) error {
	// Only types that go-control-plane knows to need it are sent whole on SotW streams, as
	// MCP demands. So the cache believes that it holds one of those.
	linear := cache.NewLinearCache(resource.ClusterType)
	failed := make(chan error, len(upstreams)+1)
	var synced sync.WaitGroup
	for _, addr := range upstreams {
		synced.Add(1)
		go func() { failed <- fmt.Errorf("upstream %s: %w", addr, follow(ctx, addr, linear, synced.Done)) }()
	}
	all := make(chan struct{})
	go func() { defer close(all); synced.Wait() }()
	select {
	case err := <-failed:
		return err
	case <-all:
	}
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	grpcServer := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(grpcServer, ads{server.NewServer(ctx, linear, nil)})
	go func() { failed <- grpcServer.Serve(lis) }()
	defer grpcServer.Stop()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// follow brings the cache to what an upstream sends.
func follow(ctx context.Context, addr string, linear *cache.LinearCache, synced func()) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{
		Id:       "sidecar~127.0.0.1~linear.istio-system~istio-system.svc.cluster.local",
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue("api")}},
	}}
	have := map[string][]byte{}
	for first := true; ; first = false {
		if err := stream.Send(req); err != nil {
			return err
		}
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		changed := map[string]types.Resource{}
		has := make(map[string][]byte, len(resp.Resources))
		for _, a := range resp.Resources {
			r := &mcp.Resource{}
			if err := a.UnmarshalTo(r); err != nil {
				return err
			}
			name := r.GetMetadata().GetName()
			if has[name] = a.Value; !bytes.Equal(a.Value, have[name]) {
				changed[name] = r
			}
		}
		var gone []string
		for name := range have {
			if _, ok := has[name]; !ok {
				gone = append(gone, name)
			}
		}
		have = has
		if err := linear.UpdateResources(changed, gone); err != nil {
			return err
		}
		if first {
			synced()
		}
		req = &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: resp.VersionInfo, ResponseNonce: resp.Nonce}
	}
}

// ads is the server behind the type that clients ask for.
type ads struct{ server.Server }

func (a ads) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return a.Server.StreamAggregatedResources(sotw{s})
}

func (a ads) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.Server.DeltaAggregatedResources(delta{s})
}

type sotw struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
}

func (s sotw) Recv() (*discoveryv3.DiscoveryRequest, error) {
	req, err := s.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Recv()
	if err == nil {
		req.TypeUrl = resource.ClusterType
	}
	return req, err
}

func (s sotw) Send(resp *discoveryv3.DiscoveryResponse) error {
	resp.TypeUrl = typeURL
	for _, r := range resp.Resources {
		r.TypeUrl = resourceURL
	}
	return s.AggregatedDiscoveryService_StreamAggregatedResourcesServer.Send(resp)
}

type delta struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
}

func (s delta) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	req, err := s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Recv()
	if err == nil {
		req.TypeUrl = resource.ClusterType
	}
	return req, err
}

func (s delta) Send(resp *discoveryv3.DeltaDiscoveryResponse) error {
	resp.TypeUrl = typeURL
	for _, r := range resp.Resources {
		r.Resource.TypeUrl = resourceURL
	}
	return s.AggregatedDiscoveryService_DeltaAggregatedResourcesServer.Send(resp)
}

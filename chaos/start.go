package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// startScenario starts a relay that has a large state and can reach none of its upstreams.
func startScenario() scenario {
	return scenario{
		name: "start", about: "how long a relay takes to serve 10,000 configs from its state to an istiod that waits, with all upstreams down",
		sources: []string{"east", "west"}, keys: 12_000, most: 1, relays: 1, state: true,
	}
}

// istiodTypes are what an istiod asks for, in its order.
var istiodTypes = []string{
	"security.istio.io/v1/AuthorizationPolicy", "networking.istio.io/v1/DestinationRule", "networking.istio.io/v1alpha3/EnvoyFilter",
	"networking.istio.io/v1/Gateway", "security.istio.io/v1/PeerAuthentication", "networking.istio.io/v1beta1/ProxyConfig",
	"security.istio.io/v1/RequestAuthentication", "networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1/Sidecar",
	"telemetry.istio.io/v1/Telemetry", "networking.istio.io/v1/VirtualService", "extensions.istio.io/v1alpha1/WasmPlugin",
	"networking.istio.io/v1/WorkloadEntry", "networking.istio.io/v1/WorkloadGroup",
}

// begin runs the start scenario.
func (o options) begin(ctx context.Context, out io.Writer, binary, dir string, j *journal) (res result, err error) {
	sc := startScenario()
	res.scenario = sc.name
	st, err := newStage(ctx, sc, binary, filepath.Join(dir, sc.name), j)
	if err != nil {
		return res, err
	}
	defer func() { st.close(); st.fill(&res) }()
	st.clients = nil
	plan := newSchedule(o.seed, sc, len(sc.sources), st.world.holders)
	if err := st.start(plan.first()); err != nil {
		return res, err
	}
	if err := st.synced(); err != nil {
		return res, err
	}
	configs := len(st.world.expected())
	j.say("scenario %s: %d configs, %d starts", sc.name, configs, o.starts)
	if err := sleep(st.ctx, flushed); err != nil {
		return res, err
	}
	r := st.relays[0]
	if err := r.signal(syscall.SIGTERM, true); err != nil {
		return res, err
	}
	for _, u := range st.upstreams {
		u.stop()
	}
	var took []time.Duration
	for range o.starts {
		type outcome struct {
			at  time.Time
			n   int
			err error
		}
		waits := make(chan outcome, 1)
		began := time.Now()
		st.running.Go(func() {
			ctx, cancel := context.WithTimeout(st.ctx, patience)
			defer cancel()
			n, err := awaitAll(ctx, r.address)
			waits <- outcome{time.Now(), n, err}
		})
		if err := r.start(); err != nil {
			return res, err
		}
		got := <-waits
		switch {
		case got.err != nil:
			return res, cause(st.ctx, got.err)
		case got.n != configs:
			return res, &violation{lost, "an istiod that waits", -1, fmt.Sprintf("it was given %d configs from the state, which has %d", got.n, configs)}
		}
		took = append(took, got.at.Sub(began))
		res.rounds++
		if err := r.signal(syscall.SIGTERM, true); err != nil {
			return res, err
		}
	}
	slices.Sort(took)
	if len(took) > 0 {
		fmt.Fprintf(out, "\n%d starts with all upstreams down: from exec until %d configs were with an istiod that waits: median %v, shortest %v, longest %v\n",
			len(took), configs, took[len(took)/2].Round(time.Millisecond), took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
	return res, nil
}

// awaitAll connects as soon as there is somebody to connect to, asks for all that an istiod
// does, and returns how many configs it was given when all is answered.
func awaitAll(ctx context.Context, address string) (configs int, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Second,
		}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.WaitForReady(true)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return 0, err
	}
	for i, typeURL := range istiodTypes {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL}
		if i == 0 {
			req.Node = clientNode("istiod")
		}
		if err := stream.Send(req); err != nil {
			return 0, endOf(err, stream)
		}
	}
	answered := map[string]bool{}
	for len(answered) < len(istiodTypes) {
		resp, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		if !answered[resp.TypeUrl] {
			configs += len(resp.Resources)
		}
		answered[resp.TypeUrl] = true
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo}); err != nil {
			return 0, endOf(err, stream)
		}
	}
	return configs, nil
}

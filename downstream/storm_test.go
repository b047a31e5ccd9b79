package downstream

import (
	"context"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stormy is the life of one client in a storm. The error is of what it did not get.
func stormy(ctx context.Context, r *relay, client discoveryv3.AggregatedDiscoveryServiceClient, round, i int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := node("CLUSTER_ID", fmt.Sprintf("cluster-%d-%d", round, i%7))
	if n.Id = fmt.Sprintf("client-%d", i); i%5 == 0 {
		n.Id = fmt.Sprintf("limited-%d", i)
	}
	if i%2 == 0 {
		s, err := client.StreamAggregatedResources(ctx)
		if err != nil {
			return err
		}
		if err := s.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1}); err != nil {
			return err
		}
		if i%4 == 0 {
			return nil // it does not wait for an answer
		}
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		return s.Send(ack(resp))
	}
	s, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	switch i % 3 {
	case 0: // it is refused
		if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1}); err != nil {
			return err
		}
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			return fmt.Errorf("without a node: %w", err)
		}
		return nil
	case 1: // many types, and it is off
		for j := range 20 {
			if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: fmt.Sprintf("example.com/v1/Kind%d", j)}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.Send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1}); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil {
		return err
	}
	return s.CloseSend()
}

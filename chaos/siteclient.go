package main

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// siteClient is a client that knows what it was sent last. Persons may have it sent older contents, so it checks only
// that a source has given each.
type siteClient struct {
	name, address string
	reader        *reader
	responses     *atomic.Int64
	fail          func(*violation)

	mu  sync.Mutex // guards all below
	has []map[int]content
}

func newSiteClient(name, address string, w *world, responses *atomic.Int64, fail func(*violation)) *siteClient {
	return &siteClient{name: name, address: address, reader: &reader{world: w}, responses: responses, fail: fail, has: make([]map[int]content, len(kinds))}
}

// run keeps a stream open until ctx ends.
func (c *siteClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = c.stream(ctx) // the relay may be down
		if sleep(ctx, clientPause) != nil {
			return
		}
	}
}

func (c *siteClient) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(c.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for i, k := range kinds {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: k.typeURL(k.versions[0])}
		if i == 0 {
			req.Node = clientNode(c.name)
		}
		if err := stream.Send(req); err != nil {
			return err
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		if bad := c.take(resp); bad != nil {
			c.fail(bad)
			return bad
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, VersionInfo: resp.VersionInfo}); err != nil {
			return err
		}
	}
}

// take takes over a response, which has all resources of a kind.
func (c *siteClient) take(resp *discoveryv3.DiscoveryResponse) *violation {
	c.responses.Add(1)
	n, ok := kindOf(resp.TypeUrl)
	if !ok {
		return &violation{wrong, c.name, -1, "it was sent the type " + resp.TypeUrl + ", which it has not asked for"}
	}
	all := make(map[int]content, len(resp.Resources))
	for _, element := range resp.Resources {
		is, err := c.reader.read(n, element)
		if err != nil {
			return &violation{wrong, c.name, -1, err.Error()}
		}
		all[is.key] = is
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has[n] = all
	return nil
}

// view returns all that the client has.
func (c *siteClient) view() map[int]content {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[int]content{}
	for _, has := range c.has {
		maps.Copy(out, has)
	}
	return out
}

// deadline waits until look finds nothing wrong any more, for some time at most.
func deadline(ctx context.Context, within time.Duration, look func() *violation) error {
	for began := time.Now(); ; {
		bad := look()
		if bad == nil {
			return nil
		}
		if took := time.Since(began); took > within {
			bad.text = took.Round(time.Millisecond).String() + " after all was quiet: " + bad.text
			return bad
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

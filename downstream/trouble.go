package downstream

import (
	"fmt"
	"log/slog"
	"reflect"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
	"meshrelay/trouble"
)

// Trouble is a problem of which clients that are relays are told, if their view shows the upstream.
type Trouble struct {
	trouble.Problem
	// From is the upstream of this relay that has the problem, or behind which it is.
	From string
}

// told has what relays are told. It is immutable.
type told struct {
	all []Trouble
	has func(upstream string, accept func(*mirror.Resource) bool) bool
}

// hearing is what one stream is told of trouble. The sending goroutine alone uses last and nonce.
type hearing struct {
	asks  bool        // a request waits for its answer
	of    *told       // of the last look, by rule
	rule  *views.Rule // nil before the first look
	last  string      // as it was sent
	nonce int
}

// Tell sets what clients that ask for trouble.TypeURL are told, and tells them if it is new. has reports whether accept
// accepts a resource of an upstream: a view of some content shows an upstream if it accepts one, and tells no counts.
// Nobody may change all.
func (s *Server) Tell(all []Trouble, has func(upstream string, accept func(*mirror.Resource) bool) bool) {
	if was := s.told.Load(); was != nil && reflect.DeepEqual(was.all, all) {
		return
	}
	s.told.Store(&told{all, has})
	for _, c := range s.connections() {
		if c.hears.Load() {
			c.signal()
		}
	}
}

// askTrouble handles a request for trouble.TypeURL on a delta stream. It reports whether to answer.
func (c *conn) askTrouble(req *request) bool {
	if req.Nonce != "" {
		if req.Rejected {
			c.server.nacks.Warn(c.log(), "client rejected what it was told of trouble", "err", refusal.Bounded(req.Error))
		}
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hearing.asks = true
	c.hears.Store(true)
	return true
}

// sendTrouble tells the client of trouble, if it asks or what its view shows has changed.
func (c *conn) sendTrouble() error {
	if !c.hears.Load() {
		return nil
	}
	of := c.server.told.Load()
	c.mu.Lock()
	h, v, rule := &c.hearing, c.view, c.rule
	asks := h.asks
	if of == nil || v == nil || !asks && h.of == of && h.rule == rule {
		c.mu.Unlock()
		return nil
	}
	h.asks, h.of, h.rule = false, of, rule
	cluster := v.selection.Cluster
	c.mu.Unlock()
	var shown []trouble.Problem
	for _, t := range of.all {
		own := t.Cluster != "" && (t.Cluster == cluster || t.Cluster == c.claim.Cluster || t.Cluster == rule.ClusterID)
		if p, ok := rule.Tells(t.Problem, t.From, of.has); ok && !own {
			shown = append(shown, p)
		}
	}
	text, err := trouble.Encode(shown)
	if err != nil {
		return err
	}
	if text == h.last && !asks {
		return nil
	}
	body, err := anypb.New(wrapperspb.String(text))
	if err != nil {
		return err
	}
	h.last = text
	h.nonce++
	if c.debugs() {
		c.log().Log(c.ctx, slog.LevelDebug, "trouble told", "problems", len(shown))
	}
	return c.sendMsg(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: trouble.TypeURL, Nonce: fmt.Sprint("trouble-", h.nonce),
		Resources: []*discoveryv3.Resource{{Name: "trouble", Version: fmt.Sprint(h.nonce), Resource: body}},
	})
}

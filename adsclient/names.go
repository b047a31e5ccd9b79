package adsclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// maxNamesBytes is what the names of one request may take, encoded: a request says all of
// them, and a node, and stays below maxRequestBytes.
const maxNamesBytes = maxRequestBytes - 64<<10

// wildcard is the name that asks for everything (PROTOCOL S16).
const wildcard = "*"

// FitNames returns what a request can say of names: sorted, each once, and as many as it
// has room for. The error says what was left out.
func FitNames(names []string) ([]string, error) {
	unsound := func(name string) bool { return name == "" || name == wildcard || !utf8.ValidString(name) }
	bad := 0
	fit := make([]string, 0, len(names))
	for _, name := range names {
		if unsound(name) {
			bad++
			continue
		}
		fit = append(fit, name)
	}
	slices.Sort(fit)
	fit = slices.Compact(fit)
	var errs []error
	if bad > 0 {
		errs = append(errs, fmt.Errorf("%d names are left out: a name is neither empty nor %q, and is UTF-8", bad, wildcard))
	}
	size := 0
	for i, name := range fit {
		if size += 1 + protowire.SizeBytes(len(name)); size > maxNamesBytes {
			errs = append(errs, fmt.Errorf("%d of %d names are left out: a request has room for %d bytes of names", len(fit)-i, len(fit), maxNamesBytes))
			fit = slices.Clip(fit[:i])
			break
		}
	}
	return fit, errors.Join(errs...)
}

// Resubscribe says that Config.Names has other names to give. It does not wait: the
// present stream asks for them when it comes to that, once for any number of calls.
func (c *Client) Resubscribe() {
	select {
	case c.namesChanged <- struct{}{}:
	default:
	}
}

// names returns what is to be asked for of a type.
func (c *Client) names(typeURL string) []string {
	names, err := FitNames(c.cfg.Names(typeURL))
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != c.leftOut[typeURL] {
		if said != "" {
			c.log.Warn("not all names can be asked for", "type", typeURL, "err", err)
		}
		c.leftOut[typeURL] = said
	}
	return names
}

// wanted reports whether there is anything to ask for.
func (c *Client) wanted() bool {
	return c.cfg.Names == nil || slices.ContainsFunc(c.cfg.TypeURLs(false), func(typeURL string) bool {
		return len(c.names(typeURL)) > 0
	})
}

// subscription is what a stream's server was last told of a type that is asked for by
// name. It is the writer's.
type subscription struct {
	names []string
	// nonce and version are those of the last response that was acknowledged.
	nonce, version string
}

// named reports whether the stream asks for names.
func (s *stream) named() bool { return s.client.cfg.Names != nil }

// writeNames does what write does, by name.
func (s *stream) writeNames(ctx context.Context) {
	resync, again, stop := s.resync()
	defer stop()
	err := s.subscribe(false)
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case m := <-s.out:
			err = s.confirm(m)
		case <-s.client.namesChanged:
			err = s.subscribe(false)
		case <-resync:
			err = s.subscribe(true)
			again()
		}
	}
}

// subscribe asks for the present names of each type where they are others than those
// asked for, or again, for all of them. An empty list at first would ask for everything
// there is, so it is not sent; later it says that nothing is wanted any more
// (PROTOCOL S16).
func (s *stream) subscribe(again bool) error {
	for _, typeURL := range s.types {
		names := s.client.names(typeURL)
		sub := s.subscriptions[typeURL]
		switch {
		case len(names) == 0 && (sub == nil || len(sub.names) == 0):
			continue
		case sub == nil:
			sub = &subscription{}
			s.subscriptions[typeURL] = sub
		case !again && slices.Equal(names, sub.names):
			continue
		}
		sub.names = names
		if again && len(names) > 0 {
			// An empty nonce asks for the full state (PROTOCOL C4, C6).
			sub.nonce, sub.version = "", ""
		}
		req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, ResponseNonce: sub.nonce, VersionInfo: sub.version}
		if !s.introduced {
			req.Node, s.introduced = s.client.cfg.Node(), true
		}
		if err := s.grpc.SendMsg(req); err != nil {
			return err
		}
	}
	return nil
}

// confirm sends an acknowledgement and those that wait behind it. Each carries all the
// names, as it must: a request that crossed a response was ignored by the server, for its
// nonce was old, and then this one tells of the new names. Therefore an ACK is left out
// when a later one of its type waits: servers ignore what is not of their last response.
func (s *stream) confirm(first proto.Message) error {
	waiting := []*discoveryv3.DiscoveryRequest{first.(*discoveryv3.DiscoveryRequest)}
	for n := len(s.out); n > 0; n-- {
		waiting = append(waiting, (<-s.out).(*discoveryv3.DiscoveryRequest))
	}
	for i, req := range waiting {
		outdated := func(later *discoveryv3.DiscoveryRequest) bool { return later.TypeUrl == req.TypeUrl }
		sub := s.subscriptions[req.TypeUrl]
		if sub == nil || req.ErrorDetail == nil && slices.ContainsFunc(waiting[i+1:], outdated) {
			continue // or what was not asked for: an ACK without names would ask for everything
		}
		sub.nonce, sub.version = req.ResponseNonce, req.VersionInfo
		if len(sub.names) == 0 {
			continue // nothing is wanted any more, and the server was told
		}
		req.ResourceNames = sub.names
		if err := s.grpc.SendMsg(req); err != nil {
			return err
		}
	}
	return nil
}

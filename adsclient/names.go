package adsclient

import (
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxNamesBytes bounds the encoded names of a request, which also has a node, and must stay below
// maxRequestBytes.
const maxNamesBytes = maxRequestBytes - 64<<10

// wildcard is the name that asks for everything (PROTOCOL S16).
const wildcard = "*"

// FitNames returns the names that fit into a request, sorted and without duplicates. The error has the number
// of names that are left out, and the reason.
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
		errs = append(errs, fmt.Errorf("%d names are left out: a name must be UTF-8, not empty, and not %q", bad, wildcard))
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

// Resubscribe makes the present stream ask for the names that Config.Names returns now, once for
// several calls. It does not block.
func (c *Client) Resubscribe() {
	select {
	case c.namesChanged <- struct{}{}:
	default:
	}
}

// names returns the names to ask for of a type. It logs once if names are left out.
func (c *Client) names(typeURL string) []string {
	names, err := FitNames(c.cfg.Names(typeURL))
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if reason != c.leftOut[typeURL] {
		if reason != "" {
			c.log.Warn("names left out of the request", "type", typeURL, "err", err)
		}
		c.leftOut[typeURL] = reason
	}
	return names
}

// wanted reports whether there is anything to ask for.
func (c *Client) wanted() bool {
	return c.cfg.Names == nil || slices.ContainsFunc(c.cfg.TypeURLs(false), func(typeURL string) bool {
		return len(c.names(typeURL)) > 0
	})
}

// subscription is the state of a type with names. Only the writer uses it.
type subscription struct {
	names          []string // in the last request
	nonce, version string   // of the last acknowledged response
}

// named reports whether the stream asks for names.
func (s *stream) named() bool { return s.client.cfg.Names != nil }

// subscribe asks for the names of each type if they have changed, or if again is set. An empty list
// without a nonce would ask for everything, so it is not sent. With a nonce it ends the subscription
// (PROTOCOL S16).
func (s *stream) subscribe(again bool) error {
	for _, typeURL := range s.types {
		names := s.client.names(typeURL)
		sub := s.subscriptions[typeURL]
		switch {
		case len(names) == 0 && (sub == nil || len(sub.names) == 0):
			continue
		case len(names) == 0 && sub.nonce == "":
			continue // confirm gets the nonce, and calls Resubscribe
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

// confirm sends an acknowledgement and all that wait behind it. Each one repeats all names, because the
// server ignores a new subscription that crossed its response. confirm skips an ACK if a later one of the
// type waits: servers ignore all but the ACK of their last response.
func (s *stream) confirm(first any) error {
	waiting := []*discoveryv3.DiscoveryRequest{first.(*discoveryv3.DiscoveryRequest)}
	for range len(s.out) {
		waiting = append(waiting, (<-s.out).(*discoveryv3.DiscoveryRequest))
	}
	for i, req := range waiting {
		outdated := func(later *discoveryv3.DiscoveryRequest) bool { return later.TypeUrl == req.TypeUrl }
		sub := s.subscriptions[req.TypeUrl]
		if sub == nil || req.ErrorDetail == nil && slices.ContainsFunc(waiting[i+1:], outdated) {
			continue // skip unsolicited types, too: an ACK without names would ask for everything
		}
		if sub.nonce == "" {
			s.client.Resubscribe() // the end of the subscription may have waited for a nonce
		}
		sub.nonce, sub.version = req.ResponseNonce, req.VersionInfo
		if len(sub.names) == 0 {
			continue // the server knows that the subscription has ended
		}
		req.ResourceNames = sub.names
		if err := s.grpc.SendMsg(req); err != nil {
			return err
		}
	}
	return nil
}

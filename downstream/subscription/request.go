package subscription

import (
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
)

const wildcardName = "*"

// Outcome is what a request turned out to be.
type Outcome int

// The outcomes of a request.
const (
	Subscribed Outcome = iota // the subscription is new or changed
	ACK
	NACK
	Stale // about a response that is not the newest: nothing to do
)

// RequestSotW classifies a DiscoveryRequest and takes over what it asks for
// (PROTOCOL S7, S16). w is nil for the first request of its type.
func (s *Set) RequestSotW(req *discoveryv3.DiscoveryRequest, limits Limits, now time.Time) (Outcome, error) {
	s.limits = limits
	names := req.GetResourceNames()
	w := s.byURL[req.GetTypeUrl()]
	if w == nil {
		// Whatever its nonce, the first request of a type on a stream is an initial
		// one: istiod's client sends a time there (PROTOCOL S2).
		w, err := s.add(req.GetTypeUrl())
		if err != nil {
			return 0, err
		}
		if err := s.setNames(w, names); err != nil {
			return 0, err
		}
		w.wildcard = w.wildcard || len(names) == 0
		w.mustReply = true
		if req.GetErrorDetail() != nil {
			w.rejected(req.GetErrorDetail().GetMessage())
			return NACK, nil
		}
		w.clientVersion = req.GetVersionInfo()
		return Subscribed, nil
	}
	switch {
	case req.GetErrorDetail() != nil:
		if req.GetResponseNonce() != w.nonce {
			return Stale, nil
		}
		w.rejected(req.GetErrorDetail().GetMessage())
		return NACK, nil
	case req.GetResponseNonce() == "":
		// Asked again: full state whatever the client has (PROTOCOL C4).
		if err := s.replaceNames(w, names); err != nil {
			return 0, err
		}
		w.mustReply, w.clientVersion = true, ""
		return Subscribed, nil
	case req.GetResponseNonce() != w.nonce:
		return Stale, nil
	case w.sameNames(names):
		w.acknowledged(req.GetResponseNonce(), now)
		return ACK, nil
	}
	w.acknowledged(req.GetResponseNonce(), now)
	if err := s.replaceNames(w, names); err != nil {
		return 0, err
	}
	w.mustReply, w.clientVersion = w.wildcard || len(w.names) > 0, ""
	return Subscribed, nil
}

// setNames takes over the names of a first request.
func (s *Set) setNames(w *Watch, names []string) error {
	w.named = len(names) > 0 || w.named
	for _, n := range names {
		if n == wildcardName {
			w.wildcard = true
			continue
		}
		if err := s.addName(w, n); err != nil {
			return err
		}
	}
	return nil
}

// replaceNames takes over the names of a later SotW request. A client that never
// sent a name keeps its wildcard by sending none; one that did unsubscribes with
// that (PROTOCOL S16).
func (s *Set) replaceNames(w *Watch, names []string) error {
	if w.sameNames(names) {
		return nil
	}
	for n := range w.names {
		s.dropName(w, n)
	}
	w.wildcard = false
	return s.setNames(w, names)
}

func (w *Watch) sameNames(names []string) bool {
	if len(names) == 0 {
		return !w.named
	}
	if !w.named {
		return false
	}
	star := false
	n := 0
	for _, name := range names {
		if name == wildcardName {
			star = true
			continue
		}
		n++
		if _, ok := w.names[name]; !ok {
			return false
		}
	}
	return star == w.wildcard && n == len(w.names)
}

func (s *Set) addName(w *Watch, name string) error {
	w.ackedCursor = 0 // nothing has been sent of it, whatever was acknowledged before
	if _, there := w.names[name]; there {
		return nil
	}
	switch {
	case len(name) > MaxName:
		return refusal.New(refusal.Names, codes.InvalidArgument, "%s: a resource name of %d bytes: no resource has more than %d", w.TypeURL, len(name), MaxName)
	case s.used.Names >= s.limits.Names:
		return TooManyNames(s.limits.Names)
	case s.used.NameBytes+len(name) > s.limits.NameBytes:
		return refusal.New(refusal.Names, codes.ResourceExhausted,
			"resource names of more than %d bytes (downstream.maxNameBytesPerClient); subscribe with a wildcard", s.limits.NameBytes)
	}
	w.names[name] = struct{}{}
	s.used.Names++
	s.used.NameBytes += len(name)
	return nil
}

// TooManyNames returns the refusal of a client that subscribes to too many names.
func TooManyNames(most int) error {
	return refusal.New(refusal.Names, codes.ResourceExhausted,
		"more than %d resource names (downstream.maxNamesPerClient); subscribe with a wildcard", most)
}

// dropName forgets a name that w has.
func (s *Set) dropName(w *Watch, name string) {
	delete(w.names, name)
	s.used.Names--
	s.used.NameBytes -= len(name)
}

// RequestDelta is RequestSotW for a DeltaDiscoveryRequest (PROTOCOL S17, S18).
// Changes of the subscription count whatever the nonce is.
func (s *Set) RequestDelta(req *discoveryv3.DeltaDiscoveryRequest, limits Limits, now time.Time) (Outcome, error) {
	s.limits = limits
	w := s.byURL[req.GetTypeUrl()]
	result := Subscribed
	first := w == nil
	if first {
		var err error
		if w, err = s.add(req.GetTypeUrl()); err != nil {
			return 0, err
		}
		w.mustReply, w.sendAll = true, true
		w.clientVersions = req.GetInitialResourceVersions()
		w.versionBytes = sizeOfVersions(w.clientVersions)
		w.wildcard = len(req.GetResourceNamesSubscribe()) == 0
	} else if req.GetErrorDetail() == nil && req.GetResponseNonce() != "" {
		result = Stale
		// Several responses may be on their way, and each is acknowledged.
		if newerNonce(req.GetResponseNonce(), w.status.AckedNonce) && !newerNonce(req.GetResponseNonce(), w.nonce) {
			w.acknowledged(req.GetResponseNonce(), now)
			result = ACK
		}
	}
	if req.GetErrorDetail() != nil {
		w.rejected(req.GetErrorDetail().GetMessage())
		result = NACK
	}
	changed, err := s.changeNames(w, first, req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe())
	if changed && result == Stale {
		result = Subscribed
	}
	return result, err
}

// changeNames applies a delta request's changes: what is unsubscribed in the
// request that subscribes it ends unsubscribed.
func (s *Set) changeNames(w *Watch, first bool, subscribe, unsubscribe []string) (changed bool, err error) {
	changed = len(subscribe)+len(unsubscribe) > 0
	dropped := make(map[string]struct{}, len(unsubscribe))
	for _, n := range unsubscribe {
		dropped[n] = struct{}{}
	}
	for _, n := range subscribe {
		if _, both := dropped[n]; both {
			continue
		}
		if n == wildcardName {
			// Asked for again, everything is sent again.
			w.wildcard, w.sendAll, w.mustReply = true, true, true
			continue
		}
		if err := s.addName(w, n); err != nil {
			return changed, err
		}
		w.mustReply = true
		if !first {
			w.again(n)
		}
	}
	for n := range dropped {
		if n == wildcardName {
			w.wildcardDropped = w.wildcard && !first
			w.wildcard, w.sendAll = false, false
			continue
		}
		switch _, named := w.names[n]; {
		case named:
			s.dropName(w, n)
		case !w.wildcard:
			continue
		}
		delete(w.sentDigests, n)
		delete(w.resend, n)
		if w.wildcard {
			// The client drops it now, and the wildcard still covers it.
			w.again(n)
		}
	}
	return changed, nil
}

// newerNonce compares two nonces of a type on a stream: "" is the oldest, then comes that
// of the first response, and the others are numbers.
func newerNonce(a, b string) bool {
	rank := func(nonce string) string {
		if strings.HasPrefix(nonce, snapshot.FirstNoncePrefix) {
			return "0"
		}
		return nonce
	}
	a, b = rank(a), rank(b)
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}

// again has the next response bring a name, whether it has changed or not.
func (w *Watch) again(name string) {
	switch {
	case w.wildcard && w.sendAll:
		return
	case w.wildcard && len(w.resend) >= maxResend:
		w.sendAll, w.mustReply, w.resend = true, true, nil
		return
	case w.resend == nil:
		w.resend = map[string]struct{}{}
	}
	w.resend[name] = struct{}{}
}

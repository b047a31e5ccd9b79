package subscription

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

const wildcardName = "*"

// Outcome is the class of a request.
type Outcome int

// The outcomes of a request.
const (
	Subscribed Outcome = iota // the subscription is new or changed
	ACK
	NACK
	Stale // its nonce is not the newest: ignore the request
)

// Asks reports whether a request with this outcome may need a response. An ACK without names does not;
// clients send thousands of these after each push.
func (o Outcome) Asks(req *Request) bool {
	return o != ACK && o != Stale || len(req.Subscribe)+len(req.Unsubscribe) > 0
}

// Request is a request of a client, in either protocol.
type Request struct {
	TypeURL string
	Nonce   string // of the response that the client answers
	// Rejected is set for a NACK. Error is its text.
	Rejected bool
	Error    string
	// Version is the version_info that a SotW client has.
	Version string
	// Subscribe has all names of a SotW client, or the additional names of a delta client.
	Subscribe []string
	// Only delta clients send Unsubscribe and Versions (initial_resource_versions).
	Unsubscribe []string
	Versions    map[string]string
}

// Request classifies a request, and applies its names to the subscription.
func (s *Set) Request(req *Request, limits Limits, now time.Time) (result Outcome, err error) {
	s.limits, s.latency = limits, 0
	w := s.Watch(req.TypeURL)
	first := w == nil
	if first {
		// The first request of a type subscribes, whatever its nonce is: istiod's client sends a time as the
		// nonce (PROTOCOL S2).
		if w, err = s.add(req.TypeURL); err != nil {
			return 0, err
		}
		w.mustReply, w.wildcard = true, len(req.Subscribe) == 0
	}
	if s.delta {
		return s.requestDelta(w, first, req, now)
	}
	return s.requestSotW(w, first, req, now)
}

// requestSotW applies a SotW request (PROTOCOL S7, S16).
func (s *Set) requestSotW(w *Watch, first bool, req *Request, now time.Time) (Outcome, error) {
	answers := !first && (req.Rejected || req.Nonce != "")
	switch {
	case answers && w.stale(req.Nonce):
		if !req.Rejected && w.nonceOf(req.Nonce) != 0 {
			w.awaitedSince = now.UnixNano()
		}
		return Stale, nil
	case answers && req.Rejected:
		s.answer(w, now)
		w.rejected(req.Error)
		return NACK, nil
	case answers:
		s.answer(w, now)
		w.acknowledged(w.sentNonce, now)
		s.settle(w)
		if w.sameNames(req.Subscribe) {
			return ACK, nil
		}
	}
	if err := s.setNames(w, req.Subscribe); err != nil {
		return 0, err
	}
	// A request without a nonce gets all resources, even if the client has them (PROTOCOL C4).
	w.mustReply = !answers || w.wildcard || len(w.names) > 0
	w.tidy()
	if req.Rejected {
		w.rejected(req.Error)
		return NACK, nil
	}
	if first && req.Version != "" {
		w.own().clientVersion = req.Version
	}
	return Subscribed, nil
}

// setNames applies the names of a SotW request. An empty list means the wildcard if the client has never sent
// a name. Otherwise it ends the subscription (PROTOCOL S16).
func (s *Set) setNames(w *Watch, names []string) error {
	if w.sameNames(names) {
		return nil
	}
	for n := range w.names {
		s.dropName(w, n)
	}
	w.wildcard, w.named = slices.Contains(names, wildcardName), true
	for _, n := range names {
		if n == wildcardName {
			continue
		}
		if err := s.addName(w, n); err != nil {
			return err
		}
	}
	return nil
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
	w.ackedCursor = 0 // the new name was not sent yet
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
			"resource names of more than %d bytes; subscribe with a wildcard", s.limits.NameBytes)
	}
	if w.names == nil {
		w.own().names = map[string]struct{}{}
	}
	w.names[name] = struct{}{}
	s.used.Names++
	s.used.NameBytes += len(name)
	return nil
}

// TooManyNames returns the error for a client that subscribes to too many names.
func TooManyNames(most int) error {
	return refusal.New(refusal.Names, codes.ResourceExhausted,
		"more than %d resource names; subscribe with a wildcard", most)
}

// dropName removes a name of w.
func (s *Set) dropName(w *Watch, name string) {
	delete(w.names, name)
	s.used.Names--
	s.used.NameBytes -= len(name)
}

// requestDelta applies a delta request (PROTOCOL S17, S18). Its names count even if the nonce is old.
func (s *Set) requestDelta(w *Watch, first bool, req *Request, now time.Time) (Outcome, error) {
	result, n := Subscribed, nonce(0)
	if !first && req.Nonce != "" {
		n = w.nonceOf(req.Nonce)
	}
	if n == w.sentNonce {
		s.answer(w, now)
	}
	switch {
	case first:
		w.sendAll = true
		if len(req.Versions) > 0 {
			x := w.own()
			x.clientVersions, x.versionBytes = req.Versions, sizeOfVersions(req.Versions)
		}
	case !req.Rejected && req.Nonce != "":
		result = Stale
		// The client may acknowledge several responses, one after the other.
		if n > w.ackedNonce && n <= w.sentNonce {
			w.acknowledged(n, now)
			s.settle(w)
			result = ACK
		}
	}
	if req.Rejected {
		w.rejected(req.Error)
		result = NACK
	}
	changed, err := s.changeNames(w, first, req.Subscribe, req.Unsubscribe)
	if changed && result == Stale {
		result = Subscribed
	}
	return result, err
}

// changeNames applies the names of a delta request. Unsubscribing wins over subscribing.
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
			// A repeated wildcard gets everything again.
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
			// The client deletes the resource, but the wildcard still includes it: send it again.
			w.again(n)
		}
	}
	return changed, nil
}

// again makes the next response include a name, even if its item has not changed.
func (w *Watch) again(name string) {
	switch {
	case w.wildcard && w.sendAll:
		return
	case w.wildcard && len(w.resend) >= maxResend:
		w.sendAll, w.mustReply, w.resend = true, true, nil
		return
	case w.resend == nil:
		w.own().resend = map[string]struct{}{}
	}
	w.resend[name] = struct{}{}
}

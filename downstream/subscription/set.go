// Package subscription holds the subscriptions of one client: the state machine of the xDS protocols SotW and
// delta, over snapshots. It decides whether a request is a subscription, an ACK or a NACK, and which
// responses come next.
//
// The package does no I/O, starts no goroutine and reads no clock. It must not know where snapshots come
// from, or how many clients there are. One goroutine at a time may use a Set.
package subscription

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
)

const (
	// MaxName is the longest name of an item, in bytes: a namespace and a name of 253 bytes each, and
	// separators.
	MaxName = 512
	// maxURLs bounds the type URLs that one client may use for one type, unless the type is Fixed.
	maxURLs = 4
)

// Limits limit the subscriptions of one client. PartBytes bounds a delta response; its default is the
// constant PartBytes.
type Limits struct{ Types, Names, NameBytes, PartBytes int }

// Usage is the memory that subscriptions take.
type Usage struct {
	Names, NameBytes int
	// Versions is the bytes of initial_resource_versions that are not compared yet.
	Versions int
}

// Changed returns u after one of its parts has changed from was to is.
func (u Usage) Changed(was, is Usage) Usage {
	return Usage{u.Names + is.Names - was.Names, u.NameBytes + is.NameBytes - was.NameBytes, u.Versions + is.Versions - was.Versions}
}

// Set is the subscriptions of one client.
type Set struct {
	delta        bool
	form         snapshot.Form // of SotW responses
	controlPlane []byte
	lookup       func(typeURL string) (Type, bool)

	sorted []*Watch // in sending order
	limits Limits
	used   Usage // without versions
	nonce  uint64
	round  Round
	// awaited counts the watches whose newest response has no ACK yet.
	awaited int
	latency time.Duration // see Latency
}

// New returns an empty Set. controlPlane is an encoded ControlPlane. lookup returns the type of a type URL. A
// type that there is not gets empty responses (PROTOCOL S3).
func New(delta bool, controlPlane []byte, lookup func(typeURL string) (Type, bool)) *Set {
	return &Set{delta: delta, controlPlane: controlPlane, lookup: lookup}
}

// Use sets the form of SotW responses. Call it before the first Request.
func (s *Set) Use(form snapshot.Form) { s.form = form }

// Settled reports whether the client has acknowledged the newest response of each type. It ignores types that
// clients never acknowledge.
func (s *Set) Settled() bool { return s.awaited == 0 }

// settle counts a watch as acknowledged, if its newest response is.
func (s *Set) settle(w *Watch) {
	if w.awaited && w.ackedNonce == w.sentNonce {
		w.awaited = false
		s.awaited--
	}
}

// answer notes that the client has answered the newest response of a watch.
func (s *Set) answer(w *Watch, now time.Time) {
	if !w.answered && w.sentNonce != 0 {
		w.answered = true
		s.latency = now.Sub(timeOf(w.record.sentAt))
	}
}

// Latency returns how long after a response the last Request came, if it was the first ACK or NACK of that
// response, and no newer response was sent. Otherwise Latency returns 0.
func (s *Set) Latency() time.Duration { return s.latency }

// AwaitedSince returns since when the client owes an ACK for a type without having acknowledged any response of
// it. It is the zero time when the client owes none.
func (s *Set) AwaitedSince() time.Time {
	oldest := int64(0)
	for _, w := range s.sorted {
		if w.awaited && (oldest == 0 || w.awaitedSince < oldest) {
			oldest = w.awaitedSince
		}
	}
	return timeOf(oldest)
}

// Watches returns the subscriptions in sending order.
func (s *Set) Watches() []*Watch { return s.sorted }

// Watch returns the subscription to a type URL, nil when there is none.
func (s *Set) Watch(typeURL string) *Watch {
	for _, w := range s.sorted {
		if w.TypeURL == typeURL {
			return w
		}
	}
	return nil
}

// Usage returns the memory of the subscriptions.
func (s *Set) Usage() Usage {
	u := s.used
	for _, w := range s.sorted {
		u.Versions += w.versionBytes
	}
	return u
}

func (s *Set) add(typeURL string) (*Watch, error) {
	if len(s.sorted) >= s.limits.Types {
		return nil, refusal.New(refusal.Types, codes.ResourceExhausted, "subscribed to more than %d types", s.limits.Types)
	}
	if typeURL == "" || len(typeURL) > 512 {
		return nil, refusal.New(refusal.Types, codes.InvalidArgument, "type_url %q: want group/version/Kind", refusal.Bounded(typeURL))
	}
	w := &Watch{Target: targetOf(typeURL, s.typeOf(typeURL)), special: nothing}
	at, _ := slices.BinarySearchFunc(s.sorted, w, func(a, b *Watch) int {
		return cmp.Or(compareTypes(a.Type, b.Type), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	s.sorted = slices.Insert(s.sorted, at, w)
	return w, nil
}

func (s *Set) typeOf(typeURL string) Type {
	t, ok := s.lookup(typeURL)
	n := 0
	for _, w := range s.sorted {
		if w.Type == t {
			n++
		}
	}
	if !ok || !t.Fixed && n >= maxURLs {
		return Type{Group: typeURL}
	}
	return t
}

// sizeOfVersions returns about how many bytes initial_resource_versions take.
func sizeOfVersions(versions map[string]string) (n int) {
	const entry = 64
	for name, version := range versions {
		n += len(name) + len(version) + entry
	}
	return n
}

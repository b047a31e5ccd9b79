package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/mirror"
)

// absence is since when, and how often in a row, answers are such.
type absence struct {
	since   time.Time
	answers int
	gone    bool // so it was told
}

// definitionsChanged has discovery follow soon, and a few times more: it lags behind definitions.
func (s *Source) definitionsChanged() {
	s.hurry.Store(hurries)
	s.discoverSoon()
}

// nextDiscovery returns how long to wait before the next one.
func (s *Source) nextDiscovery() time.Duration {
	if left := s.hurry.Load(); left > 0 && s.hurry.CompareAndSwap(left, left-1) {
		return min(s.pace.soon<<(hurries-left), s.pace.discover)
	}
	return s.pace.discover
}

// errNamespaces is the error of a discovery before it is known what is in which namespace.
var errNamespaces = errors.New("the namespaces have not been listed yet")

// discover follows what the server serves now.
func (s *Source) discover(ctx context.Context) error {
	connection, err := s.verify(ctx)
	var a *answer
	if err == nil {
		a, err = discover(ctx, connection, s.kinds)
		if err = s.refused(err); apierrors.IsForbidden(err) {
			err = fmt.Errorf("what the API server serves: %w: give the identity the ClusterRole system:discovery", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errNoCredentials) {
		return err // why there are none is known
	}
	s.trouble(troubleDiscovery, err)
	if err != nil {
		return err
	}
	if len(s.aside) == 0 {
		s.aside = s.prepare(servedDefinitions, true)
		s.launch(ctx, s.aside)
	}
	if s.choice != nil && !s.choice.complete() {
		if len(s.ledger.of(namespaceKind)) == 0 {
			s.launch(ctx, s.prepare(servedNamespaces, false))
		}
		return errNamespaces
	}
	var fresh []*target
	first := s.discovered()
	for _, k := range s.kinds {
		if !s.wants(k) {
			continue
		}
		now := s.ledger.of(k)
		best, is := a.best(k)
		switch {
		case is:
			delete(s.absent, k)
			if len(now) == 0 || !a.has(now[0].served) || s.improves(k, best, now[0].served) {
				stop(now)
				fresh = append(fresh, s.prepare(best, false)...)
			}
		case a.lacks(k):
			s.missing(ctx, k, now)
		}
	}
	s.unusable(a)
	for _, input := range servedInputs {
		if s.ingressOptions != nil && len(s.ledger.of(input.kind)) == 0 {
			fresh = append(fresh, s.prepare(input, false)...)
		}
	}
	s.prepareMesh()
	if first {
		s.ledger.Begin()
	}
	s.launch(ctx, fresh) // after it is known who has to answer
	s.readMesh(ctx, connection)
	s.readVersion(ctx, connection)
	return nil
}

// improves reports whether another version than the followed one is the better one for long enough:
// the servers of one cluster may be of several versions for a while.
func (s *Source) improves(k mirror.Kind, best, now served) bool {
	if best == now {
		delete(s.better, k)
		return false
	}
	b := s.better[k]
	if b == nil {
		b = &absence{since: time.Now()}
		s.better[k] = b
	}
	if b.answers++; b.answers < goneAnswers || time.Since(b.since) < s.pace.gone {
		return false
	}
	delete(s.better, k)
	return true
}

// prepare makes new targets those of a kind. aside: for no scope of the intake.
func (s *Source) prepare(of served, aside bool) []*target {
	namespaces := s.section.Namespaces
	if len(namespaces) == 0 || !of.namespaced {
		namespaces = []string{""}
	}
	targets := make([]*target, len(namespaces))
	for i, ns := range namespaces {
		targets[i] = &target{
			served: of, namespace: ns, source: s, aside: aside,
			paced: rate.NewLimiter(rate.Every(s.pace.asks), burst), again: make(chan struct{}, 1), ended: make(chan struct{}),
		}
	}
	if !aside {
		s.ledger.set(of.kind, targets)
	}
	s.show(of.kind, targets)
	return targets
}

// launch begins to follow targets.
func (s *Source) launch(ctx context.Context, targets []*target) {
	for _, t := range targets {
		ctx, cancel := context.WithCancel(ctx)
		t.stopAll = cancel
		s.running.Go(func() { t.run(ctx) })
	}
}

func stop(targets []*target) {
	for _, t := range targets {
		t.stopAll()
	}
	for _, t := range targets {
		<-t.ended
	}
}

// missing counts the answers that lack a kind. What it had is gone when enough of them do, and its changes
// do not follow: a server that starts may not know its own definitions yet, and be one of several. A
// definition that is deleted ends the watches of its kind.
func (s *Source) missing(ctx context.Context, k mirror.Kind, before []*target) {
	a := s.absent[k]
	if a == nil {
		a = &absence{since: time.Now()}
		s.absent[k] = a
	}
	follows := false
	for _, t := range before {
		if s.ledger.follows(t) {
			follows = true
		} else {
			s.ledger.hush(t)
		}
	}
	if a.answers++; follows || a.gone || a.answers < goneAnswers || time.Since(a.since) < s.pace.gone || !s.ready(ctx) {
		return
	}
	stop(before)
	s.ledger.set(k, nil)
	s.show(k, nil)
	a.gone = true
	if result := s.ledger.drop(k); result.Gone > 0 {
		s.log.Warn("kind is not served any more", "kind", k, "resources", result.Gone)
	}
}

// ready reports whether the server does not tell that it is still starting.
func (s *Source) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resp, err := s.client.current().get(ctx, "/readyz", nil, "*/*")
	if err == nil {
		resp.Body.Close()
	}
	return err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

func (s *Source) discoverSoon() {
	select {
	case s.soon <- struct{}{}:
	default:
	}
}

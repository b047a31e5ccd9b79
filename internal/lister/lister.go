// Package lister lists and watches what an MCP-over-xDS server has: an istiod, a relay,
// or anything else that speaks the protocol.
//
// The package must not know what is done with what it finds.
package lister

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meshrelay/adsclient"
	"meshrelay/mirror"
)

// Kind is a kind to list, with all the spellings under which to ask for it: a server
// answers one that it does not know with nothing (PROTOCOL C1).
type Kind struct {
	Kind     mirror.Kind
	TypeURLs []string
}

// Config is what to list, and where.
type Config struct {
	// Server is host:port.
	Server string
	Kinds  []Kind
	Node   *corev3.Node
	// Credentials and DialOptions are for the connection; Access.Apply sets them.
	Credentials credentials.TransportCredentials
	DialOptions []grpc.DialOption
	// Timeout bounds the wait for the complete first answer. It must be positive.
	Timeout time.Duration
	// ResyncInterval is how often everything is asked for again: an istiod does not
	// push every change (PROTOCOL C4). Zero: never.
	ResyncInterval time.Duration
	Logger         *slog.Logger
}

// Event is a change of one resource. Old is nil for a new one, Cur for one that is
// gone.
type Event struct{ Old, Cur *mirror.Resource }

// List returns all resources of the kinds, by kind in the order of Config.Kinds and
// then by name. problems are the resources that could not be decoded.
func List(ctx context.Context, cfg Config) (resources []*mirror.Resource, problems []error, err error) {
	var out []*mirror.Resource
	done := errors.New("listed")
	problems, err = run(ctx, cfg, observer{
		events: func(events []Event) error {
			for _, e := range events {
				out = append(out, e.Cur)
			}
			return done
		},
	})
	if !errors.Is(err, done) {
		return nil, problems, cmp.Or(err, context.Cause(ctx))
	}
	return out, problems, nil
}

// Watch calls observe with all there is, as events, and from then on with each change,
// until ctx ends or observe fails. notice is told of what the user should know
// meanwhile: resources that do not decode, and a lost connection, which is restored.
func Watch(ctx context.Context, cfg Config, observe func([]Event) error, notice func(error)) error {
	_, err := run(ctx, cfg, observer{events: observe, notice: notice})
	return err
}

type observer struct {
	events func([]Event) error
	notice func(error) // nil: lost connections end the listing, and problems are collected
}

func run(ctx context.Context, cfg Config, o observer) (problems []error, err error) {
	l := &lister{cfg: cfg, observer: o, answers: map[string]map[string]*mirror.Resource{}, merged: map[mirror.Key]*mirror.Resource{}}
	typeURLs := l.index()
	client, err := adsclient.New(adsclient.Config{
		Addresses: []string{cfg.Server}, Protocol: adsclient.SotW,
		Node:        func() *corev3.Node { return cfg.Node },
		TypeURLs:    func(bool) []string { return typeURLs },
		Credentials: cfg.Credentials, DialOptions: cfg.DialOptions, ResyncInterval: cfg.ResyncInterval, Logger: cfg.Logger,
		SyncTimeout: -1, // Config.Timeout is what counts
	}, l)
	if err != nil {
		return nil, err
	}
	ctx, l.stop = context.WithCancelCause(ctx)
	defer l.stop(nil)
	late := time.AfterFunc(cfg.Timeout, func() { l.stop(errLate) })
	defer late.Stop()
	l.synced = func() { late.Stop() }
	if err := client.Run(ctx); err != nil {
		return nil, err
	}
	err = context.Cause(ctx)
	if errors.Is(err, errLate) {
		err = l.late()
	} else if errors.Is(err, context.Canceled) {
		err = nil // whoever called wanted it to end
	}
	return l.problems, err
}

var errLate = errors.New("timeout")

// lister is the adsclient.Handler. Its methods run one at a time.
type lister struct {
	cfg      Config
	observer observer
	stop     context.CancelCauseFunc
	synced   func()

	kindOf map[string]mirror.Kind // by type URL
	// answers are the newest full answers, by type URL and full name.
	answers  map[string]map[string]*mirror.Resource
	complete bool // each type was answered
	merged   map[mirror.Key]*mirror.Resource
	problems []error
}

func (l *lister) index() (typeURLs []string) {
	l.kindOf = map[string]mirror.Kind{}
	for _, k := range l.cfg.Kinds {
		for _, u := range k.TypeURLs {
			l.kindOf[u] = k.Kind
			typeURLs = append(typeURLs, u)
		}
	}
	return typeURLs
}

// HandleResponse implements adsclient.Handler.
func (l *lister) HandleResponse(resp *adsclient.Response) error {
	kind, asked := l.kindOf[resp.TypeURL]
	if !asked {
		return fmt.Errorf("type %s was not asked for", resp.TypeURL)
	}
	before := l.answers[resp.TypeURL]
	answer := make(map[string]*mirror.Resource, resp.Room())
	var bad []error
	for raw := range resp.Resources(0) {
		r, err := mirror.Decode(kind, raw.Any, l.cfg.Server)
		if err == nil {
			if answer[r.FullName()] == nil {
				answer[r.FullName()] = r
				continue
			}
			err = fmt.Errorf("%s: is there twice", r.FullName())
		}
		bad = append(bad, fmt.Errorf("%s: %w", resp.TypeURL, err))
		// What was good before is not gone because its newest version is bad.
		if name, err := mirror.PeekName(kind, raw.Any); err == nil && answer[string(name)] == nil && before[string(name)] != nil {
			answer[string(name)] = before[string(name)]
		}
	}
	l.answers[resp.TypeURL] = answer
	for _, err := range bad {
		if l.observer.notice != nil {
			l.observer.notice(err)
		} else {
			l.problems = append(l.problems, err)
		}
	}
	l.tell(kind)
	return errors.Join(bad...)
}

// tell works out what changed and hands it on, once there is a complete picture.
func (l *lister) tell(kind mirror.Kind) {
	if len(l.answers) < len(l.kindOf) {
		return
	}
	first := !l.complete
	var events []Event
	for _, k := range l.cfg.Kinds {
		if first || k.Kind == kind {
			events = append(events, l.difference(k)...)
		}
	}
	if first {
		l.complete = true
		l.synced()
	}
	if first || len(events) > 0 {
		if err := l.observer.events(events); err != nil {
			l.stop(err)
		}
	}
}

// difference unites the answers to all spellings of a kind and compares them with what
// was told. Of a resource that is in several the newest spelling counts.
func (l *lister) difference(kind Kind) (events []Event) {
	united := map[mirror.Key]*mirror.Resource{}
	for _, u := range kind.TypeURLs {
		for _, r := range l.answers[u] {
			if _, ok := united[r.Key()]; !ok {
				united[r.Key()] = r
			}
		}
	}
	for key, old := range l.merged {
		if key.Kind == kind.Kind && united[key] == nil {
			events = append(events, Event{Old: old})
			delete(l.merged, key)
		}
	}
	for key, r := range united {
		if old := l.merged[key]; !old.Equal(r) {
			events = append(events, Event{Old: old, Cur: r})
		}
		l.merged[key] = r
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Compare(cmp.Or(a.Cur, a.Old).FullName(), cmp.Or(b.Cur, b.Old).FullName())
	})
	return events
}

// ResumeVersions implements adsclient.Handler.
func (l *lister) ResumeVersions(string) map[string]string { return nil }

// HandleState implements adsclient.Handler.
func (l *lister) HandleState(s adsclient.State) {
	if s.Phase != adsclient.Disconnected && s.Phase != adsclient.Denied {
		return
	}
	err := s.Err
	if err == nil {
		err = errors.New("the server ended the stream")
	}
	if !l.complete || l.observer.notice == nil {
		l.stop(fmt.Errorf("server %w", err))
		return
	}
	l.observer.notice(fmt.Errorf("connection lost, reconnecting: %w", err))
}

// late tells which types the server has not answered. It is called after the client has
// ended.
func (l *lister) late() error {
	var pending []string
	for _, k := range l.cfg.Kinds {
		for _, u := range k.TypeURLs {
			if _, ok := l.answers[u]; !ok {
				pending = append(pending, u)
			}
		}
	}
	n := len(pending)
	if n > 3 {
		pending = append(pending[:3], "…")
	}
	return fmt.Errorf("server %s: no answer within %v for %d of %d types (%s): a relay answers when its upstreams have synced, see its /ready; give it longer with --timeout",
		l.cfg.Server, l.cfg.Timeout, n, len(l.kindOf), strings.Join(pending, ", "))
}

// Package lister lists and watches the resources of an MCP-over-xDS server: an istiod, a relay, or another
// server of the protocol.
//
// The package must not know what its caller does with the resources.
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
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/mirror"
)

// Config names the server and the kinds to list.
type Config struct {
	// Server is host:port.
	Server string
	Kinds  []selection.Kind
	Node   *corev3.Node
	// Credentials and DialOptions are for the connection. Access.Apply sets them.
	Credentials credentials.TransportCredentials
	DialOptions []grpc.DialOption
	// Timeout bounds the wait for the complete first answer. It must be positive.
	Timeout time.Duration
	// ResyncInterval is the time between two requests for all resources: an istiod does not push every
	// change (PROTOCOL C4). Zero means a single request.
	ResyncInterval time.Duration
	Logger         *slog.Logger
}

// Event is a change of one resource. Old is nil for a new resource, Cur for a deleted one.
type Event struct{ Old, Cur *mirror.Resource }

var (
	errListed = errors.New("listed")
	errLate   = errors.New("timeout")
)

// List returns all resources of Config.Kinds, in this order of kinds and then by name. problems has an error for
// each resource that can not be decoded.
func List(ctx context.Context, cfg Config) (resources []*mirror.Resource, problems []error, err error) {
	l := &lister{
		cfg: cfg, once: true,
		observe: func(events []Event) error {
			for _, e := range events {
				resources = append(resources, e.Cur)
			}
			return errListed
		},
		notice: func(err error) { problems = append(problems, err) },
	}
	if err = l.run(ctx); errors.Is(err, errListed) {
		return resources, problems, nil
	}
	return nil, problems, cmp.Or(err, context.Cause(ctx))
}

// Watch calls observe first with all resources, as events, and then with each change, until ctx ends or observe
// fails. It calls notice with warnings for the user: resources that can not be decoded, and lost connections. It
// connects again when a connection is lost.
func Watch(ctx context.Context, cfg Config, observe func([]Event) error, notice func(error)) error {
	return (&lister{cfg: cfg, observe: observe, notice: notice}).run(ctx)
}

// lister is the adsclient.Handler. Its methods run one at a time.
type lister struct {
	cfg     Config
	once    bool // a lost connection is an error
	observe func([]Event) error
	notice  func(error)
	stop    context.CancelCauseFunc
	late    *time.Timer

	kindOf map[string]mirror.Kind // by type URL
	// relay is set when the server is a relay, which has every kind under each of its spellings.
	relay bool
	// answers are the newest full answers, by type URL and full name.
	answers  map[string]map[string]*mirror.Resource
	complete bool // each type was answered
	merged   map[mirror.Kind]map[mirror.Key]*mirror.Resource
}

func (l *lister) run(ctx context.Context) error {
	l.kindOf, l.answers, l.merged = map[string]mirror.Kind{}, map[string]map[string]*mirror.Resource{}, map[mirror.Kind]map[mirror.Key]*mirror.Resource{}
	for _, k := range l.cfg.Kinds {
		for _, u := range k.TypeURLs {
			l.kindOf[u] = k.Kind
		}
	}
	client := adsclient.New(adsclient.Config{
		Addresses: []string{l.cfg.Server}, Protocol: adsclient.SotW,
		Node:      func() *corev3.Node { return l.cfg.Node },
		MeetFirst: true,
		TypeURLs: func(relay bool) []string {
			l.relay = relay
			return l.asked()
		},
		Credentials: l.cfg.Credentials, DialOptions: l.cfg.DialOptions, ResyncInterval: l.cfg.ResyncInterval, Logger: l.cfg.Logger,
		SyncTimeout: -1, // Config.Timeout bounds the wait
	}, l)
	ctx, l.stop = context.WithCancelCause(ctx)
	defer l.stop(nil)
	l.late = time.AfterFunc(l.cfg.Timeout, func() { l.stop(errLate) })
	defer l.late.Stop()
	if err := client.Run(ctx); err != nil {
		return err
	}
	switch err := context.Cause(ctx); {
	case errors.Is(err, errLate):
		return l.notAnswered()
	case errors.Is(err, context.Canceled): // the caller ended ctx
		return nil
	default:
		return err
	}
}

// spellings returns the type URLs to request for a kind.
func (l *lister) spellings(k selection.Kind) []string {
	if l.relay {
		return k.TypeURLs[:1]
	}
	return k.TypeURLs
}

// asked returns the requested type URLs.
func (l *lister) asked() (typeURLs []string) {
	for _, k := range l.cfg.Kinds {
		typeURLs = append(typeURLs, l.spellings(k)...)
	}
	return typeURLs
}

// pending returns the requested type URLs without an answer.
func (l *lister) pending() []string {
	return slices.DeleteFunc(l.asked(), func(u string) bool { return l.answers[u] != nil })
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
			err = fmt.Errorf("%s: sent twice in one response", r.FullName())
		}
		bad = append(bad, fmt.Errorf("%s: %w", resp.TypeURL, err))
		// The last good version of a resource stays when a bad one comes.
		if name, err := mirror.PeekName(kind, raw.Any); err == nil && answer[string(name)] == nil && before[string(name)] != nil {
			answer[string(name)] = before[string(name)]
		}
	}
	l.answers[resp.TypeURL] = answer
	for _, err := range bad {
		l.notice(err)
	}
	l.tell(kind)
	return errors.Join(bad...)
}

// tell calls observe with the changes of a kind. It does nothing until each type was answered. The
// first time it reports the changes of all kinds.
func (l *lister) tell(kind mirror.Kind) {
	if len(l.pending()) > 0 {
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
		l.late.Stop()
	}
	if first || len(events) > 0 {
		if err := l.observe(events); err != nil {
			l.stop(err)
		}
	}
}

// difference unites the answers to all spellings of a kind, and compares the union with the last one. A resource
// under several spellings is taken from the newest.
func (l *lister) difference(kind selection.Kind) (events []Event) {
	united := map[mirror.Key]*mirror.Resource{}
	for _, u := range l.spellings(kind) {
		for _, r := range l.answers[u] {
			if _, ok := united[r.Key()]; !ok {
				united[r.Key()] = r
			}
		}
	}
	before := l.merged[kind.Kind]
	for key, old := range before {
		if united[key] == nil {
			events = append(events, Event{Old: old})
		}
	}
	for key, r := range united {
		if old := before[key]; !old.Equal(r) {
			events = append(events, Event{Old: old, Cur: r})
		}
	}
	l.merged[kind.Kind] = united
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
	err := cmp.Or(s.Err, errors.New("the server ended the stream"))
	if !l.complete || l.once {
		l.stop(fmt.Errorf("server %w", err))
		return
	}
	l.notice(fmt.Errorf("connection lost, reconnecting: %w", err))
}

// notAnswered returns an error that names types without an answer.
func (l *lister) notAnswered() error {
	pending := l.pending()
	n := len(pending)
	if n > 3 {
		pending = append(pending[:3], "…")
	}
	return fmt.Errorf("server %s: no answer within %v for %d of %d types (%s): a relay answers when its upstreams have synced, see its /ready; raise --timeout",
		l.cfg.Server, l.cfg.Timeout, n, len(l.asked()), strings.Join(pending, ", "))
}

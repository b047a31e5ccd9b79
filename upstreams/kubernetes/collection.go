package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/federation"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
	"meshrelay/upstreams/kubernetes/reflector"
)

// collection is the objects of one kind, in one namespace or in all. It is the Sink of its reflector, and
// passes the objects to the ledger.
type collection struct {
	discovery.Resource
	namespace string // empty: all
	source    *Source
	entry     *ledger.Entry        // the ledger is told of it, except for resource definitions
	reflector *reflector.Reflector // nil for a MeshConfig, which is polled
	converter *converter           // nil for kinds that are not mirrored
	cancel    context.CancelFunc
	ended     chan struct{}

	// Source.mu guards these.
	shown CollectionState
	err   error
}

// newCollection returns a collection without a reflector.
func (s *Source) newCollection(of discovery.Resource, namespace string) *collection {
	c := &collection{Resource: of, namespace: namespace, source: s, ended: make(chan struct{}), shown: Listing}
	c.entry = &ledger.Entry{Kind: of.Kind, Namespace: namespace, Relist: c.relist}
	return c
}

// namespacesOf returns the namespaces of the collections of a kind: one that is empty, or those of the config.
func (s *Source) namespacesOf(of discovery.Resource) []string {
	if len(s.section.Namespaces) == 0 || !of.Namespaced {
		return []string{""}
	}
	return s.section.Namespaces
}

// newCollections returns the collections of a kind.
func (s *Source) newCollections(of discovery.Resource) (all []*collection) {
	for _, ns := range s.namespacesOf(of) {
		c := s.newCollection(of, ns)
		if s.ledger.Mirrors(of.Kind) {
			c.converter = s.newConverter(of.Kind)
		}
		c.reflector = s.newReflector(c, c)
		all = append(all, c)
	}
	return all
}

// newReflector returns a reflector that passes the objects of a collection to a sink.
func (s *Source) newReflector(c *collection, sink reflector.Sink) *reflector.Reflector {
	cfg := reflector.Config{
		Name: c.Kind.String(), Path: c.Path(c.namespace), AcceptList: apiserver.AcceptJSON, AcceptWatch: apiserver.AcceptJSON,
		Connect: s.cluster.Verify, Log: s.log, Pace: s.pace.Pace,
		Begin: func() *object.Reading { return s.lists.Begin(c.Kind == ledger.Namespaces) },
	}
	if c.Selected && (c.Kind != exportKind || c.converter != nil) { // what is made of Services is not selected
		cfg.Selector = s.section.Selector
	}
	if c.Kind == ledger.Namespaces || c.Kind == definitionKind {
		// Lists and watches need different types: a server sends a list only in a form for lists.
		cfg.AcceptList, cfg.AcceptWatch = apiserver.AcceptMetadataList, apiserver.AcceptMetadata+","+apiserver.AcceptJSON
	}
	return reflector.New(cfg, sink)
}

// newConverter returns the converter of a kind.
func (s *Source) newConverter(kind mirror.Kind) *converter {
	c := s.converting
	c.kind = kind
	c.holds = func(name string, digest xxh3.Uint128, size int) bool {
		return s.feed.Holds(records.KindScope(kind), name, digest, size)
	}
	c.unknown = func(o *object.Object, fields []string) { s.unknown(kind, o, fields) }
	return &c
}

// relist makes the reflector list all objects again. It does not wait.
func (c *collection) relist() {
	if c.reflector != nil {
		c.reflector.Relist()
	}
}

// launch starts the reflectors of collections.
func (s *Source) launch(ctx context.Context, all []*collection) {
	for _, c := range all {
		ctx, cancel := context.WithCancel(ctx)
		c.cancel = cancel
		s.spawn(func() {
			defer close(c.ended)
			c.reflector.Run(ctx)
		})
	}
}

func stop(all []*collection) {
	for _, c := range all {
		c.cancel()
	}
	for _, c := range all {
		<-c.ended
	}
}

// Prepare implements reflector.Sink.
func (c *collection) Prepare(o *object.Object) {
	switch {
	case o.Made != nil || o.Unselected:
		return
	case c.Kind == ledger.Namespaces:
		if c.source.readsInput(c.Kind) {
			in, err := decodeInput(c.Kind, o)
			o.Made = &object.Made{Input: in, InputErr: err}
		}
		o.Spec, o.Annotations = nil, nil
	case c.source.selection.Skips(c.entry, o.Namespace):
		o.Clear()
		o.Namespace, o.Name, o.Unselected = "", object.AnyName, true
	case c.source.readsInput(c.Kind):
		c.convertInput(o)
	case c.converter != nil:
		if c.Kind == federation.WorkloadEntry {
			o.SetHealthy()
		}
		c.converter.convert(o)
	}
	o.Status, o.Data = nil, nil
}

// convertInput decodes an input of services. Its content stays only where Ingresses need it.
func (c *collection) convertInput(o *object.Object) {
	in, err := decodeInput(c.Kind, o)
	switch {
	case c.converter != nil:
		c.converter.convert(o) // services.Decode has set Healthy
	case c.source.ingressOptions == nil || c.Kind != serviceKind:
		o.Clear()
	}
	if o.Made == nil {
		o.Made = &object.Made{}
	}
	o.Made.Input, o.Made.InputErr = in, err
}

// Replace implements reflector.Sink.
func (c *collection) Replace(all []*object.Object) {
	s := c.source
	results := s.ledger.Replace(c.entry, all)
	s.enter(c, Following, nil)
	s.log.Debug("objects listed", "kind", c.Kind, "namespace", c.namespace, "objects", len(all))
	c.judge(results)
	if c.Kind == ledger.Namespaces && s.selection != nil {
		s.discoverSoon() // the other kinds wait for the namespaces
	}
}

// Put implements reflector.Sink.
func (c *collection) Put(o *object.Object) { c.judge(c.source.ledger.Put(c.entry, o)) }

// Delete implements reflector.Sink.
func (c *collection) Delete(o *object.Object) { c.judge(c.source.ledger.Delete(c.entry, o)) }

// judge logs refused objects. It lists all objects again if the intake asks for that.
func (c *collection) judge(results []records.Result) {
	for _, result := range results {
		if err := result.Err(); err != nil {
			c.source.complaints.Warn(c.source.log, "objects refused, last good content served", "kind", c.Kind, "err", err)
		}
		if result.Relist {
			c.relist()
		}
	}
}

// Resumed implements reflector.Sink.
func (c *collection) Resumed() {
	c.source.ledger.Resumed(c.entry)
	c.source.enter(c, Following, nil)
}

// MayResume implements reflector.Sink.
func (c *collection) MayResume() bool {
	return !c.source.ledger.OutOfTouch(c.entry, time.Now(), c.source.pace.grace)
}

// Failed implements reflector.Sink.
func (c *collection) Failed(err error) {
	s := c.source
	if !s.broken(c, err) {
		return
	}
	s.ledger.Lost(c.entry)
	switch {
	case apierrors.IsForbidden(err):
		if !s.needed(c.Kind) {
			s.ledger.Hush(c.entry)
		}
		s.enter(c, Denied, err)
	case apierrors.IsNotFound(err):
		s.enter(c, Unserved, err)
		s.ledger.Hush(c.entry)
		s.discoverSoon()
	default:
		s.enter(c, Failing, err)
	}
}

// Lost implements reflector.Sink.
func (c *collection) Lost(err error) {
	s := c.source
	s.broken(c, err)
	s.ledger.Lost(c.entry)
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, context.Canceled) {
		s.enter(c, Failing, err) // it needs the attention of an operator
	}
}

// broken notes the end of a stream, or a failed request: the cluster is then verified again. It returns false
// if the relay itself has ended it.
func (s *Source) broken(c *collection, err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	s.cluster.Broken()
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		s.feed.Tell(intake.Panicked{What: c.Kind.String(), Panic: p})
	}
	return true
}

// definitions is the Sink for resource definitions. A change of one requests a discovery. Nobody waits for them.
type definitions struct{ *collection }

func (definitions) Prepare(o *object.Object) { o.Clear() }

func (d definitions) Replace([]*object.Object) {
	d.source.enter(d.collection, Following, nil)
	d.source.definitionsChanged()
}

func (d definitions) Put(*object.Object) { d.source.definitionsChanged() }

func (d definitions) Delete(*object.Object) { d.source.definitionsChanged() }

func (d definitions) Failed(err error) {
	if s := d.source; apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		s.broken(d.collection, err)
		s.enter(d.collection, Polled, fmt.Errorf("changes are noticed every %s: %w", s.pace.discover, err))
		return
	}
	d.collection.Failed(err)
}

package kubernetes

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/internal/panics"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

// maker makes outputs of inputs. The ledger's lock guards it.
type maker interface {
	// size returns about how many bytes an input takes, before it is taken.
	size(mirror.Kind, *object.Object) int
	// decode decodes an input, and returns what sets it. After an error, its former content stays.
	decode(mirror.Kind, *object.Object) (set func(), err error)
	remove(mirror.Kind, objectName)
	synced(mirror.Kind)
	// flush returns the outputs that changed since the last call, and all returns all outputs.
	flush() []output
	all() []output
	// lost calls f with what is left out of the outputs, or has no effect.
	lost(f func(problem string))
}

// objectName is the name of an object. Namespace is empty for one of the cluster.
type objectName struct{ Namespace, Name string }

// output is a resource that is made of inputs.
type output struct {
	key    mirror.Key
	digest xxh3.Uint128
	size   int                              // bytes, about
	make   func() (*mirror.Resource, error) // nil: the output is gone
}

// made returns a resource with a body.
func made(s mirror.Spec, body proto.Message) (*mirror.Resource, error) {
	s.Body = &anypb.Any{}
	if err := anypb.MarshalFrom(s.Body, body, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return mirror.New(s)
}

// derived makes resources of objects that are not mirrored, or of some that are. The ledger's lock guards it.
type derived struct {
	feed    upstreams.Feed
	maker   maker
	takes   map[mirror.Kind]bool // the kinds of inputs; true: also mirrored
	outputs []mirror.Kind        // in the order of their scopes

	inputs    map[mirror.Kind]map[objectName]input
	has       map[mirror.Kind]bool // kinds of inputs that have synced
	undecoded int                  // inputs without any decoded content
	mesh      bool                 // options come from the MeshConfig
	unsettled bool                 // the MeshConfig was not read yet
	relisted  bool                 // an input was listed again since complete was called

	// unnoted is set while there may be refused inputs that are not in inputs, because there is no room. A list of
	// one namespace does not clear it: outputs that are gone then stay until the source starts again.
	unnoted map[mirror.Kind]bool

	named    []string // result of problems
	count    int
	reviewed bool // named and count are up to date
}

// input describes an object that is an input.
type input struct {
	size    int   // charged bytes
	decoded bool  // an earlier or the newest content was decoded
	err     error // why the newest content can not be used
}

// maxProblem bounds the kept error of an input, in bytes.
const maxProblem = 512

// newDerived returns what makes outputs with a maker. It reports panics to feed.
func newDerived(feed upstreams.Feed, m maker, takes map[mirror.Kind]bool, outputs ...mirror.Kind) *derived {
	d := &derived{
		feed: feed, maker: m, takes: takes, outputs: outputs,
		inputs: map[mirror.Kind]map[objectName]input{}, has: map[mirror.Kind]bool{}, unnoted: map[mirror.Kind]bool{},
	}
	for kind := range takes {
		d.inputs[kind] = map[objectName]input{}
	}
	return d
}

// Takes implements ledger.Deriver.
func (g *derived) Takes(kind mirror.Kind) (is, also bool) {
	also, is = g.takes[kind]
	return is || g.mesh && kind == meshKind, also
}

// Outputs implements ledger.Deriver.
func (g *derived) Outputs() []mirror.Kind { return g.outputs }

// Synced implements ledger.Deriver.
func (g *derived) Synced(kind mirror.Kind) {
	if _, is := g.takes[kind]; is {
		g.has[kind] = true
		g.maker.synced(kind)
	}
}

// ready reports whether all inputs have synced.
func (g *derived) ready() bool { return !g.unsettled && len(g.has) == len(g.takes) }

// settle calls change, which sets options.
func (g *derived) settle(change func()) {
	g.unsettled, g.reviewed = false, false
	change()
}

func nameOf(o *object.Object) objectName { return objectName{o.Namespace, o.Name} }

// Set implements ledger.Deriver. If the new content of an input is wrong, its last good content stays.
func (g *derived) Set(kind mirror.Kind, o *object.Object) error {
	g.reviewed = false
	name := o.FullName()
	before, known := g.inputs[kind][nameOf(o)]
	now, err := input{size: g.maker.size(kind, o), decoded: true}, o.Err
	grows := now.size - before.size
	if fits := g.feed.Keep(grows); err == nil && grows > 0 && !fits {
		err = fmt.Errorf("%s %s: %sthe upstream has more than limits.maxBytes", kind.Kind, name, object.OverLimit)
	}
	if err == nil {
		err = g.take(kind, o)
	}
	if err != nil {
		g.feed.Keep(-grows)
		now = before
		now.err = errors.New(text.Shorten(err.Error(), maxProblem))
	}
	if !now.decoded {
		now.size = object.Entry + 2*len(name) + len(now.err.Error())
		if fits := g.feed.Keep(now.size - before.size); !known && !fits {
			g.feed.Keep(-now.size)
			g.unnoted[kind] = true
			return err
		}
	}
	if !known && !now.decoded {
		g.undecoded++
	} else if known && now.decoded && !before.decoded {
		g.undecoded--
	}
	g.inputs[kind][nameOf(o)] = now
	return err
}

// forget removes the input of a deleted object.
func (g *derived) forget(kind mirror.Kind, name objectName) {
	g.maker.remove(kind, name)
	g.reviewed = false
	in, known := g.inputs[kind][name]
	if known && !in.decoded {
		g.undecoded--
	}
	g.feed.Keep(-in.size)
	delete(g.inputs[kind], name)
}

// take decodes an input and sets it. A panic of decoding is an error of the object, one of setting it is one of the
// source, whose state may be half changed.
func (g *derived) take(kind mirror.Kind, o *object.Object) error {
	set, err := panics.Value(func() (func(), error) { return g.maker.decode(kind, o) })
	if p, is := errors.AsType[*panics.Panic](err); is {
		g.feed.Tell(intake.Panicked{What: kind.Kind + " " + o.FullName(), Panic: p})
		return fmt.Errorf("%s %s: %w", kind.Kind, o.FullName(), p)
	}
	if err == nil {
		set()
	}
	return err
}

// Replace implements ledger.Deriver.
func (g *derived) Replace(kind mirror.Kind, namespace string, all []*object.Object) (refused records.Result) {
	g.relisted = true
	if namespace == "" {
		g.unnoted[kind] = false
	}
	listed := make(map[objectName]bool, len(all))
	for _, o := range all {
		listed[nameOf(o)] = true
		if err := g.Set(kind, o); err != nil {
			refused.Refuse(kind.String()+" "+o.FullName(), err)
		}
	}
	g.retain(kind, func(n objectName) bool {
		return listed[n] || namespace != "" && n.Namespace != namespace
	})
	return refused
}

func (g *derived) retain(kind mirror.Kind, keep func(objectName) bool) {
	for name := range g.inputs[kind] {
		if !keep(name) {
			g.forget(kind, name)
		}
	}
}

// Delete implements ledger.Deriver.
func (g *derived) Delete(kind mirror.Kind, o *object.Object) { g.forget(kind, nameOf(o)) }

// Leave implements ledger.Deriver.
func (g *derived) Leave(namespaces []string) {
	for kind := range g.takes {
		g.retain(kind, func(n objectName) bool { return !slices.Contains(namespaces, n.Namespace) })
	}
}

// owes reports whether the intake must get all outputs again.
func (g *derived) owes() bool { return g.relisted && g.ready() }

// lacks reports whether some input was never decoded. Outputs of that input may exist from before the start,
// made by another build or with other limits. These outputs are not gone.
func (g *derived) lacks() bool {
	return g.undecoded > 0 || slices.Contains(slices.Collect(maps.Values(g.unnoted)), true)
}

// complete returns all outputs. Its updates are complete unless lacks returns true.
func (g *derived) complete() []records.Update {
	lacks := g.lacks()
	g.relisted = true // in case of a panic
	var gone []output
	if lacks {
		gone = g.maker.flush()
	}
	updates := g.updates(g.maker.all())
	removed := g.updates(gone)
	for i := range updates {
		if updates[i].Complete = !lacks; lacks {
			updates[i].Removed = removed[i].Removed
		}
	}
	g.relisted = lacks
	return updates
}

// Answer implements ledger.Deriver.
func (g *derived) Answer() []records.Update {
	if g.owes() {
		return g.complete()
	}
	return g.updates(g.maker.flush())
}

// Changes implements ledger.Deriver.
func (g *derived) Changes(part bool) []records.Update {
	if !part && g.owes() && !g.lacks() {
		return g.complete()
	}
	changes := g.maker.flush()
	if len(changes) == 0 {
		return nil
	}
	updates := g.updates(changes)
	for i := range updates {
		updates[i].Part = part
	}
	return updates
}

// updates returns outputs as an update for each kind. It makes those that the intake does not hold.
func (g *derived) updates(all []output) []records.Update {
	updates := make([]records.Update, len(g.outputs))
	for i, kind := range g.outputs {
		var present []records.Element
		var gone []string
		scope := records.DerivedScope(kind)
		for _, out := range all {
			if out.key.Kind != kind {
				continue
			}
			name := out.key.FullName()
			if out.make == nil {
				gone = append(gone, name)
				continue
			}
			var r *mirror.Resource
			var err error
			if !g.feed.Holds(scope, name, out.digest, out.size) {
				r, err = panics.Value(out.make)
			}
			present = append(present, ledger.ElementOf(name, out.digest, out.size, r, err))
		}
		each := records.Elements(present, func(el records.Element) records.Element { return el })
		updates[i] = records.Update{Scope: scope, Elements: each, Room: len(present), Removed: ledger.Names(gone)}
	}
	return updates
}

// problems returns the first problems of inputs and outputs, and the number of all. Nobody may change the list.
func (g *derived) problems() (named []string, all int) {
	if g.reviewed {
		return g.named, g.count
	}
	defer func() { g.named, g.count, g.reviewed = named, all, true }()
	add := func(problem string) {
		if all++; len(named) < ledger.MaxProblems {
			named = append(named, problem)
		}
	}
	for _, kind := range slices.SortedFunc(maps.Keys(g.takes), mirror.CompareKinds) {
		if g.unnoted[kind] {
			add(fmt.Sprintf("%s: there is no room for the names of all that are refused: raise limits.maxBytes", kind.Kind))
		}
		for _, in := range g.inputs[kind] {
			if in.err != nil {
				add(in.err.Error())
			}
		}
	}
	slices.Sort(named)
	g.maker.lost(add)
	return named, all
}

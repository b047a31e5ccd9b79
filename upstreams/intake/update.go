package intake

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

var (
	errDuplicate = errors.New("the name comes twice in one response; the first is kept")
	errNoName    = errors.New("the element has no name")
	errNoMCP     = errors.New("the element is no istio.mcp.v1alpha1.Resource")
	// errPanicked tells that content is not tried again.
	errPanicked = errors.New("internal error of the relay, as before: it is tried again when it changes; the log has where")
)

// unnamedElement is the name under which elements are refused whose own can not be read. No
// resource is called so.
const unnamedElement = "(an element without a readable name)"

// replace makes a scope what a complete update has. Elements that are as they were cost a hash and
// a look-up; nothing is decoded or allocated for them. first reports whether the update is the
// first on its stream. While unsure, what was restored and is not in the update stays.
func (in *Intake) replace(sc *scope, u *Update, first, unsure bool, out *Result) {
	in.nextGeneration(sc)
	clear(sc.refused)
	sc.moreRefused = 0
	seen, unnamed := 0, 0
	changed := in.makeRoom(sc, u)
	// late are the numbers of the elements for which there is no room before what is gone is gone.
	var late []int32
	at := int32(-1)
	for el := range u.Elements(in.limits.MaxResourceBytes) {
		at++
		name, err := in.peekName(sc.Kind, el)
		rec := sc.byName[string(name)]
		if err == nil && rec == nil && el.Resource == nil && !isMCP(sc.Kind, el.peek()) {
			err = errNoMCP // and what looked like its name need not be one
		}
		if err != nil {
			unnamed++
			sc.refuse(unnamedElement, err, out)
			continue
		}
		if err := in.room(sc, rec, name, el.size()); err != nil {
			if rec == nil && errors.Is(err, errFull) {
				late = append(late, at)
				continue
			}
			sc.refuse(string(name), err, out)
			if rec != nil && rec.generation != sc.generation {
				seen++
				rec.hash = xxh3.Uint128{}
				rec.generation = sc.generation
			}
			continue
		}
		switch {
		case rec == nil:
			rec = &record{}
			seen++
			if full, differs := in.insert(sc, rec, name, el, out); differs {
				changed = append(changed, full)
			}
		case rec.generation == sc.generation:
			sc.refuse(string(name), errDuplicate, out)
		case in.isSame(rec, el):
			seen++
			rec.setVersion(el.version())
		default:
			seen++
			full := string(name)
			if in.accept(sc, rec, full, el, out) {
				changed = append(changed, full)
			}
		}
		rec.generation = sc.generation
	}
	k := in.kind(sc.Kind)
	out.Changed += in.reconcile(k, changed)
	if seen < len(sc.byName) {
		if unnamed > 0 {
			// Whose names could not be read can not be told from what is gone.
			out.Unread = true
			out.refuse(sc.Name, fmt.Errorf("%d elements have no readable name: nothing is removed on account of this response", unnamed))
		} else {
			if seen == 0 && len(late) == 0 && !first && len(k.scopes) > 1 && k.graceUntil.IsZero() {
				k.graceUntil = in.now.Add(versionGrace)
				in.replan()
			}
			in.deleteUnseen(k, sc, unsure, out)
		}
	}
	in.admitLate(k, sc, u, late, out)
}

// deleteUnseen deletes the records that the newest update of a scope does not have.
func (in *Intake) deleteUnseen(k *kind, sc *scope, unsure bool, out *Result) {
	var gone []string
	for name, rec := range sc.byName {
		if rec.generation == sc.generation || unsure && rec.generation == unconfirmed {
			continue
		}
		if in.delete(sc, name, rec) {
			gone = append(gone, name)
		}
	}
	out.Gone += len(gone)
	in.reconcile(k, gone)
}

// admitLate takes in new elements, whose numbers late has, as far as there is room for them.
func (in *Intake) admitLate(k *kind, sc *scope, u *Update, late []int32, out *Result) {
	if len(late) == 0 {
		return
	}
	var changed []string
	at := int32(-1)
	for el := range u.Elements(in.limits.MaxResourceBytes) {
		if len(late) == 0 {
			break
		}
		if at++; at != late[0] {
			continue
		}
		late = late[1:]
		name, err := in.peekName(sc.Kind, el)
		if err != nil {
			continue // it had a name before
		}
		rec := sc.byName[string(name)]
		if err := in.room(sc, rec, name, el.size()); rec == nil && err != nil {
			sc.refuse(string(name), err, out)
			continue
		}
		if rec != nil {
			sc.refuse(string(name), errDuplicate, out)
			continue
		}
		rec = &record{generation: sc.generation}
		if full, differs := in.insert(sc, rec, name, el, out); differs {
			changed = append(changed, full)
		}
	}
	out.Changed += in.reconcile(k, changed)
}

// patch applies an update that is not complete to a scope.
func (in *Intake) patch(sc *scope, u *Update, out *Result) {
	in.nextGeneration(sc)
	changed := in.makeRoom(sc, u)
	seen := map[string]bool{}
	for el := range u.Elements(in.limits.MaxResourceBytes) {
		name, err := in.peekName(sc.Kind, el)
		if err == nil && sc.Kind != mirror.MeshConfig && el.Resource == nil && string(name) != string(el.Name) {
			err = fmt.Errorf("the element is named %q and the resource in it %q", el.Name, name)
		}
		if err != nil {
			sc.refuse(string(el.Name), err, out)
			continue
		}
		full := string(name)
		if seen[full] {
			sc.refuse(full, errDuplicate, out)
			continue
		}
		rec := sc.byName[full]
		if err := in.room(sc, rec, name, el.size()); err != nil {
			sc.refuse(full, err, out)
			if rec != nil {
				rec.hash, seen[full] = xxh3.Uint128{}, true
			}
			continue
		}
		seen[full] = true // no name for which there is no room: there may be millions
		delete(sc.refused, full)
		switch {
		case rec == nil:
			if full, differs := in.insert(sc, &record{generation: sc.generation}, name, el, out); differs {
				changed = append(changed, full)
			}
		case in.isSame(rec, el): // an istiod's delta sends everything again on each push
			rec.setVersion(el.version())
		case in.accept(sc, rec, full, el, out):
			changed = append(changed, full)
		}
	}
	k := in.kind(sc.Kind)
	out.Changed += in.reconcile(k, changed)
	out.Gone += in.removeNamed(k, sc, u, seen)
}

// removeNamed deletes the records that an update names as gone, but for those that it also has.
func (in *Intake) removeNamed(k *kind, sc *scope, u *Update, seen map[string]bool) int {
	if u.Removed == nil {
		return 0
	}
	var gone []string
	for name := range u.Removed {
		if sc.Kind == mirror.MeshConfig {
			name = []byte(mirror.MeshConfigName)
		}
		if rec := sc.byName[string(name)]; rec != nil && !seen[string(name)] && in.delete(sc, string(name), rec) {
			gone = append(gone, string(name))
		}
		delete(sc.refused, string(name))
	}
	in.reconcile(k, gone)
	return len(gone)
}

func (in *Intake) nextGeneration(sc *scope) {
	if sc.generation++; sc.generation == unconfirmed {
		sc.generation++
	}
}

func (in *Intake) makeRoom(sc *scope, u *Update) (changed []string) {
	if len(sc.byName) > 0 {
		return nil
	}
	sc.byName = make(map[string]*record, u.Room)
	return make([]string, 0, u.Room)
}

// isSame reports whether an element is what a record was made of.
func (in *Intake) isSame(rec *record, el Element) bool {
	return rec.accepted() && rec.hash == el.hash() && rec.relayed == in.believe
}

// insert makes a record of a name that is new. Record and resource share the name, unless it is
// another here.
func (in *Intake) insert(sc *scope, rec *record, name []byte, el Element, out *Result) (full string, differs bool) {
	full = string(name)
	differs = in.accept(sc, rec, full, el, out)
	if rec.resource != nil && rec.resource.FullName() == full {
		full = rec.resource.FullName()
	}
	sc.byName[full] = rec
	return full, differs
}

// accept takes over a new or changed element and reports whether the record's content is another
// now. A bad element leaves the last good content as it is. So does one over which the code panics:
// that costs this element only, and it is not tried again.
func (in *Intake) accept(sc *scope, rec *record, name string, el Element, out *Result) bool {
	rec.hash, rec.relayed = el.hash(), in.believe
	rec.setVersion(el.version())
	before := rec.size()
	defer func() { in.account(before, rec.size()) }()
	err := errPanicked
	if sc.panicked[name] != rec.hash {
		var differs bool
		if differs, err = in.decode(sc, rec, name, el); err == nil {
			delete(sc.panicked, name)
			rec.at = in.now.Unix()
			return differs
		}
	}
	var p *mirror.Panic
	if errors.As(err, &p) && len(sc.panicked) < maxKeptRefused {
		sc.panicked[name] = rec.hash
	}
	sc.refuse(name, err, out)
	rec.hash = xxh3.Uint128{} // looked at again, and reported, each time it comes
	return false
}

// decode takes over the content of an element, or returns what is wrong with it.
func (in *Intake) decode(sc *scope, rec *record, name string, el Element) (differs bool, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			differs, err = false, in.panicked(name, p)
		}
	}()
	stamp := in.rules.stampFor(in.believe)
	if el.Resource != nil {
		return in.importRecord(sc, rec, el.Resource.Stamped(stamp), nil)
	}
	r, path, err := mirror.DecodeStamped(sc.Kind, el.Raw, in.name, stamp)
	if err != nil {
		return false, err
	}
	if rec.version == r.SourceVersion() {
		rec.version = r.SourceVersion() // a relay gives both the same: held once
	}
	return in.importRecord(sc, rec, r, path)
}

// peek returns what the name can be read from.
func (el Element) peek() []byte {
	if el.Head != nil {
		return el.Head
	}
	return el.Raw
}

func (el Element) hash() xxh3.Uint128 {
	if el.Resource != nil {
		return hashOf(el.Resource.Digest())
	}
	return xxh3.Hash128(el.Raw)
}

func (el Element) size() int {
	if el.Resource != nil {
		return len(el.Resource.DeltaEntry())
	}
	return max(el.Size, len(el.Raw))
}

func (el Element) version() []byte {
	if el.Resource != nil {
		return []byte(el.Resource.SourceVersion())
	}
	return el.Version
}

// peekName returns the name of an element. One without a name is an error: it may be what is left
// of any.
func (in *Intake) peekName(kind mirror.Kind, el Element) ([]byte, error) {
	if el.Resource != nil {
		in.nameBuffer = append(in.nameBuffer[:0], el.Resource.FullName()...)
		return in.nameBuffer, nil
	}
	name, err := mirror.PeekName(kind, el.peek())
	if err == nil && len(name) == 0 {
		err = errNoName
	}
	return name, err
}

// isMCP reports whether an element is of the type in which mirror.PeekName looks for a name.
func isMCP(kind mirror.Kind, element []byte) bool {
	if kind == mirror.MeshConfig {
		return true
	}
	return bytes.HasSuffix(wire.Last(element, 1), []byte("/istio.mcp.v1alpha1.Resource"))
}

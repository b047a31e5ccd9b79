package records

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// MaxReason is the length of the reason of a refusal, in bytes.
const MaxReason = 512

const (
	maxKeptRefused = 10_000  // refused names of one scope
	maxNotes       = 1 << 20 // bytes of all refused names and reasons, or an eighth of limits.maxBytes if that is less
	maxKeptName    = 1024    // bytes of a name: a namespace and a name have 253 characters at most
)

// kind is one kind of resource.
type kind struct {
	kind   mirror.Kind
	scopes []*scope // by rank
	// While a scope is awaited, names that no scope has are pending: after a rollback, an istiod answers the newest version
	// with nothing before an older version brings everything.
	pending map[string]struct{}
	// graceUntil: until then names are pending, because one of several scopes became empty. Zero:
	// none.
	graceUntil time.Time
}

// waits reports whether it is too early to count missing names of the kind as gone.
func (k *kind) waits() bool { return !k.graceUntil.IsZero() || k.awaits() }

// awaits reports whether a scope of the kind has still to answer.
func (k *kind) awaits() bool {
	return slices.ContainsFunc(k.scopes, func(sc *scope) bool { return sc.awaited })
}

// scope is a Scope with its records. Most scopes stay empty, and there may be hundreds of sources:
// maps are made when the first element comes.
type scope struct {
	Scope
	awaited    bool // the present stream has still to answer the scope
	answered   bool // the present source has answered the scope
	silent     bool // the present source does not offer the scope
	owed       bool // the source is asked to repeat the scope, and has not yet
	byName     map[string]*record
	groups     groups         // of the marks of the records
	marked     int            // number of records with a mark
	kept       int            // number of records that the source does not have any more
	generation uint32         // of the newest update
	parts      *counted       // counts the parts of a complete answer until the last part; nil otherwise
	torn       bool           // the present stream has sent elements without a readable name
	leftOut    map[string]int // number of records, by reason
	// refused has the errors by name; moreRefused counts those beyond maxKeptRefused and maxNotes.
	refused map[string]string
	// told are the refusals that the event journal has. reported is how many were refused at the
	// last look, or -1 after a new refusal.
	told        map[string]string
	reported    int
	moreRefused int
}

// unconfirmed is the generation of records that the present source has not sent, or has still to repeat.
const unconfirmed = 0

// kind returns the entry of a kind, and makes one if there is none.
func (rs *Records) kind(of mirror.Kind) *kind {
	k := rs.kinds[of]
	if k == nil {
		k = &kind{kind: of}
		rs.kinds[of] = k
	}
	return k
}

// scope returns the entries of a scope and of its kind, and makes them if there are none.
func (rs *Records) scope(s Scope) (*kind, *scope) {
	k := rs.kind(s.Kind)
	sc := rs.scopes[s.Name]
	if sc == nil {
		sc = &scope{Scope: s, byName: map[string]*record{}}
		rs.scopes[s.Name] = sc
		k.scopes = append(k.scopes, sc)
		slices.SortStableFunc(k.scopes, func(a, b *scope) int { return a.Rank - b.Rank })
	}
	return k, sc
}

// place is a name in a scope.
type place struct {
	*scope
	name string
}

func (p place) key() (mirror.Key, bool) { return keyOf(p.Kind, p.name) }

// all has the records of these kinds, or of every kind, those of the lowest rank first.
func (rs *Records) all(of ...mirror.Kind) iter.Seq2[place, *record] {
	return func(yield func(place, *record) bool) {
		for _, k := range rs.kinds {
			if len(of) > 0 && !slices.Contains(of, k.kind) {
				continue
			}
			for _, sc := range k.scopes {
				for name, rec := range sc.byName {
					if !yield(place{sc, name}, rec) {
						return
					}
				}
			}
		}
	}
}

// Size returns about how many bytes limits.maxBytes counts.
func (rs *Records) Size() int { return rs.bytes + rs.notes + rs.beside }

// Keep adds to the bytes that the source keeps. It reports whether all of them fit limits.maxBytes.
func (rs *Records) Keep(n int) (fits bool) {
	rs.beside = max(rs.beside+n, 0) // after a panic, a former source may still free what it has kept
	return rs.limits.MaxBytes == 0 || rs.Size() <= rs.limits.MaxBytes
}

// find returns the record from which a name is served, and its scope: that of the lowest rank, and one that the
// source has before one that is kept.
func (k *kind) find(name string) (found *record, in *scope) {
	for _, sc := range k.scopes {
		rec := sc.byName[name]
		switch {
		case rec == nil || rec.resource == nil:
		case rec.kept == 0:
			return rec, sc
		case found == nil:
			found, in = rec, sc
		}
	}
	return found, in
}

// setLeftOut sets why a record is left out, and counts it. why may be imported.
func (sc *scope) setLeftOut(rec *record, why leftOut) {
	if rec.leftOut != imported {
		sc.leftOut[rec.leftOut.Value().reason]--
	}
	if why != imported {
		if sc.leftOut == nil {
			sc.leftOut = map[string]int{}
		}
		sc.leftOut[why.Value().reason]++
	}
	rec.leftOut = why
}

// refuse notes that the newest content of a name is refused.
func (rs *Records) refuse(sc *scope, name string, err error, out *Result) {
	if len(out.Refused) < maxNamed {
		out.Refuse(sc.Name+" "+text.Abbreviate(name), err)
	} else {
		out.RefusedTotal++ // format nothing: there may be millions
	}
	if len(name) > maxKeptName {
		name = text.Abbreviate(name)
	}
	rs.forgive(sc, name)
	reason := text.Shorten(err.Error(), MaxReason)
	cost, most := noteBytes+len(name)+len(reason), maxNotes
	if l := rs.limits.MaxBytes; l > 0 {
		most = min(most, l/8)
	}
	if len(sc.refused) >= maxKeptRefused || rs.notes+cost > most {
		sc.moreRefused++
		return
	}
	if sc.refused == nil {
		sc.refused = map[string]string{}
	}
	sc.refused[name] = reason
	rs.notes += cost
	sc.reported = -1
}

// noteBytes is about what the note of a refused name takes in addition to its texts, in bytes.
const noteBytes = 64

// forgive drops the note that a name was refused.
func (rs *Records) forgive(sc *scope, name string) {
	if reason, is := sc.refused[name]; is {
		rs.notes -= noteBytes + len(name) + len(reason)
		delete(sc.refused, name)
	}
}

// forgiveAll drops the notes of all refused names.
func (rs *Records) forgiveAll(sc *scope) {
	for name := range sc.refused {
		rs.forgive(sc, name)
	}
	sc.moreRefused = 0
}

// dropUnopened deletes the records of scopes that the open stream does not have, once it has
// answered the others. A relay is asked for one version: records in others came from another
// server.
func (rs *Records) dropUnopened(k *kind) {
	if !rs.open || len(rs.opened) == 0 || k.awaits() {
		return
	}
	for _, sc := range k.scopes {
		if len(sc.byName) > 0 && !slices.Contains(rs.opened, sc) && sc.Name != extensions.Name {
			rs.touch(k, false, rs.deleteAll(sc)...)
		}
	}
}

// HasUnconfirmed reports whether the present source has not sent some of the records.
func (rs *Records) HasUnconfirmed() bool {
	for _, sc := range rs.scopes {
		if sc.hasUnconfirmed() {
			return true
		}
	}
	return false
}

func (sc *scope) hasUnconfirmed() bool {
	for _, rec := range sc.byName {
		if rec.generation == unconfirmed && rec.kept == 0 {
			return true
		}
	}
	return false
}

// IsTorn reports whether the source has sent elements without a readable name. A name that seems
// gone may be theirs.
func (rs *Records) IsTorn() bool {
	for _, sc := range rs.scopes {
		if sc.torn {
			return true
		}
	}
	return false
}

// settle reconciles the pending names of a kind, unless it still waits.
func (rs *Records) settle(k *kind) {
	if len(k.pending) == 0 || k.waits() {
		return
	}
	names := slices.Collect(maps.Keys(k.pending))
	clear(k.pending)
	rs.touch(k, false, names...)
}

// Pending returns the names of the opened scopes that the source has never answered, and may offer.
func (rs *Records) Pending() (names []string) {
	for _, sc := range rs.opened {
		if !sc.answered && !sc.silent {
			names = append(names, sc.Name)
		}
	}
	return names
}

// Versions returns the names in a scope, each with the version that the source gave. The version of
// content that was not accepted is empty, so that the source sends it again.
func (rs *Records) Versions(scope Scope) map[string]string {
	sc := rs.scopes[scope.Name]
	if sc == nil || len(sc.byName) == 0 || sc.Kind == mirror.MeshConfig {
		return nil // an istiod's MeshConfig has no name
	}
	out := make(map[string]string, len(sc.byName))
	for name, rec := range sc.byName {
		version := rec.version
		if !rec.accepted() {
			version = ""
		}
		out[name] = version
	}
	return out
}

// Holds reports whether the accepted content of a name has this digest and size (Element.Digest).
func (rs *Records) Holds(scope Scope, name string, digest xxh3.Uint128, size int) bool {
	sc := rs.scopes[scope.Name]
	if sc == nil {
		return false
	}
	rec := sc.byName[name]
	return rec != nil && rs.isAsItWas(rec, digest, size)
}

func (rs *Records) want(w Want) { rs.touched = append(rs.touched, touched{want: &w}) }

func (rs *Records) touch(k *kind, endpoints bool, names ...string) {
	rs.touched = slices.Grow(rs.touched, len(names))
	for _, name := range names {
		rs.touched = append(rs.touched, touched{kind: k, name: name, endpoints: endpoints})
	}
}

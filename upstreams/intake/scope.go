package intake

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	maxKeptRefused = 10_000 // refused names of one scope
	maxReason      = 512    // bytes of why a resource is refused
	maxKeptName    = 1024   // bytes of a name: a namespace and a name have 253 characters at most
)

// records are what the source has.
type records struct {
	scopes           map[string]*scope
	kinds            map[mirror.Kind]*kind
	resources, bytes int // that the records hold
	discovery        *discovery
	believe          bool // the source is a relay, whose word on the way of a resource counts
}

func newRecords() records {
	return records{scopes: map[string]*scope{}, kinds: map[mirror.Kind]*kind{}, discovery: newDiscovery()}
}

// kind is one kind of resources.
type kind struct {
	kind   mirror.Kind
	scopes []*scope // by rank
	// unanswered names the scopes without an answer of the present stream. While there are any,
	// names that no scope has are pending: after a rollback, an istiod answers the newest version
	// with nothing before an older one brings all that it had.
	unanswered map[string]bool
	pending    map[string]struct{}
	// graceUntil: until then names are pending, too, because a scope has become empty while there
	// are others. Zero when none has.
	graceUntil time.Time
}

// waits reports whether it is too early to tell that a name of the kind is gone.
func (k *kind) waits() bool { return len(k.unanswered) > 0 || !k.graceUntil.IsZero() }

// scope is a Scope and what the source has of it. Most scopes are empty, so that maps are made when the first
// element comes; there may be hundreds of sources.
type scope struct {
	Scope
	answered   bool // the present source has told what the scope has
	byName     map[string]*record
	groups     groups         // of the marks of the records
	marked     int            // records that have one
	generation uint32         // of the newest update
	parts      *told          // of a complete answer whose last part has not come; nil while there is none
	torn       bool           // the present stream has elements without a readable name
	leftOut    map[string]int // records, by reason
	// refused has the errors by name; moreRefused counts those beyond maxKeptRefused.
	refused map[string]string
	// told are those of refused that are in the journal of events. reported is how many were refused when
	// that was looked at, -1 when one was refused since.
	told        map[string]string
	reported    int
	moreRefused int
	// panicked are the elements that have made the code panic. It does not try them again.
	panicked map[string]xxh3.Uint128
}

// unconfirmed is the generation of records that the present source has not told of.
const unconfirmed = 0

// record is one name of one scope.
type record struct {
	hash     xxh3.Uint128     // of the element as received; zero when that was not accepted
	resource *mirror.Resource // last good content, as it is held here; nil when there is none, or when it is left out
	// original is the content as received, and stamped, when that was reshaped.
	original   *mirror.Resource
	version    string // that the source gave
	mark       uint64 // of the element as received, zero for none
	leftOut    leftOut
	at         uint32 // when the content came, in seconds since the epoch, up to the year 2106
	generation uint32 // of the update that it was last part of
	relayed    bool   // hash was a relay's: what it told of its way is believed
	lacks      bool   // fields of the element are left out
}

// accepted reports whether what was received last was accepted.
func (r *record) accepted() bool { return r.hash != xxh3.Uint128{} }

// seconds returns a time as records have it, zero for unknown.
func seconds(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// since returns when the content came, the zero time when that is not known.
func (r *record) since() time.Time {
	if r.at == 0 {
		return time.Time{}
	}
	return time.Unix(int64(r.at), 0)
}

// name returns the name of what a record holds, as the source has it.
func (r *record) name() string {
	if r.original != nil {
		return r.original.FullName()
	}
	return r.resource.FullName()
}

// size returns what a record holds, in bytes.
func (r *record) size() (n int) {
	if r.resource != nil {
		n = len(r.resource.DeltaEntry())
	}
	if r.original != nil {
		n += len(r.original.DeltaEntry())
	}
	return n
}

// kept returns what the disk, or the next source, keeps of a record that holds something. Without the
// hash, the content is decoded when it comes again.
func (im *Rules) kept(sc *scope, r *record) state.Record {
	out := state.Record{Resource: r.resource, Original: r.original, Version: r.version, Hash: r.hash.Bytes(), At: r.since()}
	if r.lacks {
		out.Hash = [16]byte{}
	}
	if im.relayed || sc.Name == DerivedScope(sc.Kind).Name {
		out.TypeURL = sc.Name
	}
	return out
}

// setVersion takes over the version that the source gives the content: none on a SotW stream. A
// version of earlier content would, on resuming, claim what is not held.
func (r *record) setVersion(version []byte) {
	if string(version) != r.version {
		r.version = string(version)
	}
}

// kind returns what is known of a kind, and makes it known.
func (rs *records) kind(of mirror.Kind) *kind {
	k := rs.kinds[of]
	if k == nil {
		k = &kind{kind: of, unanswered: map[string]bool{}}
		rs.kinds[of] = k
	}
	return k
}

// scope returns what is known of a scope and its kind, and makes it known.
func (rs *records) scope(s Scope) (*kind, *scope) {
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

func (rs *records) all(f func(*scope, string, *record)) {
	for _, sc := range rs.scopes {
		for name, rec := range sc.byName {
			f(sc, name, rec)
		}
	}
}

func (rs *records) account(before, after int) {
	rs.bytes += after - before
	switch {
	case before == 0 && after > 0:
		rs.resources++
	case before > 0 && after == 0:
		rs.resources--
	}
}

// find returns the record from which a name is served, and its scope: that of the lowest rank.
func (k *kind) find(name string) (*record, *scope) {
	for _, sc := range k.scopes {
		if rec := sc.byName[name]; rec != nil && rec.resource != nil {
			return rec, sc
		}
	}
	return nil, nil
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

// refuse notes that what was received of a name is not accepted.
func (sc *scope) refuse(name string, err error, out *Result) {
	if len(out.Refused) < maxNamed {
		out.Refuse(sc.Name+" "+abbreviate(name), err)
	} else {
		out.RefusedTotal++ // nothing is formatted: there may be millions
	}
	if len(name) > maxKeptName {
		name = abbreviate(name)
	}
	if _, known := sc.refused[name]; !known && len(sc.refused) >= maxKeptRefused {
		sc.moreRefused++
		return
	}
	if sc.refused == nil {
		sc.refused = map[string]string{}
	}
	sc.refused[name] = text.Shorten(err.Error(), maxReason)
	sc.reported = -1
}

// dropUnopened drops the scopes of a kind that the present stream does not have, once it has
// answered the others. A relay is asked for one version, and what another server told under the
// others is void.
func (in *Intake) dropUnopened(k *kind) {
	if !in.open || len(k.unanswered) > 0 || len(in.opened) == 0 {
		return
	}
	for _, sc := range k.scopes {
		if len(sc.byName) > 0 && !slices.Contains(in.opened, sc.Name) {
			in.reconcile(k, in.deleteAll(sc))
		}
	}
}

// hasUnconfirmed reports whether there are records that the present source has not told of.
func (in *Intake) hasUnconfirmed() bool {
	for _, sc := range in.scopes {
		for _, rec := range sc.byName {
			if rec.generation == unconfirmed {
				return true
			}
		}
	}
	return false
}

// isTorn reports whether the source has elements without a readable name. They may be what seems to
// be gone.
func (in *Intake) isTorn() bool {
	for _, sc := range in.scopes {
		if sc.torn {
			return true
		}
	}
	return false
}

// settle reconciles the names that were pending, once the kind does not wait any more.
func (in *Intake) settle(k *kind) {
	if len(k.pending) == 0 || k.waits() {
		return
	}
	names := slices.Collect(maps.Keys(k.pending))
	clear(k.pending)
	in.reconcile(k, names)
}

// Pending returns the names of the scopes that the source was asked for and has never answered.
func (in *Intake) Pending() (names []string) {
	for _, name := range in.opened {
		if in.pends(name) {
			names = append(names, name)
		}
	}
	return names
}

func (in *Intake) pends(name string) bool {
	sc := in.scopes[name]
	return sc == nil || !sc.answered
}

// Versions returns the names that are held of a scope, each with the version that the source gave
// it. A name whose newest content was not accepted has an empty one: it is asked for again.
func (in *Intake) Versions(name string) map[string]string {
	sc := in.scopes[name]
	if sc == nil || len(sc.byName) == 0 || sc.Kind == mirror.MeshConfig {
		return nil // an istiod's MeshConfig has no name to speak of it by
	}
	out := make(map[string]string, len(sc.byName))
	for name, rec := range sc.byName {
		version := rec.version
		if !rec.accepted() {
			version = "" // ask for it again
		}
		out[name] = version
	}
	return out
}

// Holds reports whether what was accepted last of a name of a scope is an element with Decode of that
// digest and size.
func (in *Intake) Holds(scope, name string, digest xxh3.Uint128, size int) bool {
	sc := in.scopes[scope]
	if sc == nil {
		return false
	}
	rec := sc.byName[name]
	return rec != nil && in.isAsItWas(rec, digest, size)
}

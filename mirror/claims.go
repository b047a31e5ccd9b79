package mirror

import (
	"hash/maphash"
	"slices"
	"strings"
	"time"
	"unique"
)

const (
	// maxScopes bounds the scopes by which a claim is found. One of more scopes is found by all, and then compared.
	maxScopes = 16
	// maxScoped bounds the claims of a resource, times its scopes. Above it, its claims are found by all.
	maxScoped = 4096
	// maxLooks bounds the claims of others that are looked at for one resource. With more, it is not served. A claim of many
	// scopes counts several times: for each maxScopes to compare once more.
	maxLooks = 4096
)

// Claims is what a resource claims for itself, such as hosts.
type Claims struct {
	What   []string // sorted, each once
	Scopes []string // who sees the resource, sorted; nil means everyone
}

// Yielding tells which of the sources that claim the same are served.
type Yielding int

// The values of Yielding.
const (
	NoneYields Yielding = iota // all are
	LaterYield                 // the first one is
	AllYield                   // none is
)

// Owners finds what resources claim, and decides between those of different keys and sources that claim the same. Its methods
// run on any goroutine. They must be pure functions.
type Owners interface {
	// Owns reports whether resources of a kind claim something.
	Owns(Kind) bool
	// Claims returns what a resource claims. That may follow from what served resources of other keys claim, which of
	// returns. These must not follow others.
	Claims(r *Resource, of func(Key) []string) Claims
	Yielding() Yielding
	// Yields reports whether a resource of a kind yields to one of another source and perhaps of another kind.
	Yields(kind, to Kind) bool
	// Reason tells in a few words that a resource yields to other.
	Reason(other *Resource, what string) string
}

// SetOwners sets the Owners, nil for none. They must be comparable. It may be called at any time.
func (a *Aggregate) SetOwners(by Owners) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.claims == nil && by == nil || a.claims != nil && a.claims.by == by {
		return
	}
	if a.claims = nil; by != nil {
		a.claims = newClaims(by, false)
	}
	a.markAll()
}

func newClaims(by Owners, mutual bool) *claims {
	return &claims{
		by: by, mutual: mutual, round: 1, seed: maphash.MakeSeed(), single: map[uint64]*claimant{}, buckets: map[bucket][]sourceClaims{},
		copies: map[uint64]*claimant{}, follow: map[ref]map[ref]bool{}, several: map[contested]struct{}{},
	}
}

// claims finds the claims of all copies.
type claims struct {
	by      Owners
	mutual  bool // those of one source are rivals, too; then a key is judged once more after its claims have changed
	seed    maphash.Seed
	single  map[uint64]*claimant      // of buckets with one claim, by hash: nearly all are there
	buckets map[bucket][]sourceClaims // the others
	copies  map[uint64]*claimant      // with claims, the first by a hash of the key
	follow  map[ref]map[ref]bool      // by key, those whose claims follow from its own
	round   uint64                    // number of the batch
	several map[contested]struct{}
	marks   int // for tests: how often a key was queued
}

// contested is what several keys of a kind claim, served or not, whoever sees them; without kind, what several kinds and several
// sources claim.
type contested struct {
	kind unique.Handle[Kind]
	what string
}

// bucket has the claims of the same thing, which somebody sees: a scope, bucketWide or bucketScoped.
type bucket struct{ what, seenBy string }

// sourceClaims are the claims of one source and kind in a bucket, sorted by name. In the batch of the number marked, all of
// them were queued: they wait until the next one.
type sourceClaims struct {
	source string
	kind   unique.Handle[Kind]
	of     []*claimant
	marked uint64
}

// claimant is a copy with claims. Only its resource changes, to one with the same claims, and next.
type claimant struct {
	resource *Resource
	what     []string
	rest     *claimRest   // nil where everyone sees the claims, and they follow from no others
	since    int64        // Unix time in nanoseconds
	next     *claimant    // of the same key, or hash
	self     [1]*claimant // a list of one
}

type claimRest struct {
	scopes  []string
	follows []ref
}

func (c *claimant) claims() Claims {
	if c.rest == nil {
		return Claims{What: c.what}
	}
	return Claims{What: c.what, Scopes: c.rest.scopes}
}

func (c *claimant) follows() []ref {
	if c.rest == nil {
		return nil
	}
	return c.rest.follows
}

func compareClaimants(a, b *claimant) int { return strings.Compare(a.resource.name, b.resource.name) }

// has reports whether s has the claims of the source and kind of c.
func (s *sourceClaims) has(c *claimant) bool {
	return s.source == c.resource.Source() && s.kind == c.resource.kind()
}

// at returns the claims of a bucket. It may put them into room.
func (x *claims) at(in bucket, room *[1]sourceClaims) []sourceClaims {
	if b := x.buckets[in]; b != nil {
		return b
	}
	c := x.single[maphash.Comparable(x.seed, in)]
	if c == nil || !c.isIn(in) {
		return nil
	}
	room[0] = sourceClaims{source: c.resource.Source(), kind: c.resource.kind(), of: c.self[:]}
	return room[:]
}

// isIn reports whether a bucket holds a claim: two may have the same hash.
func (c *claimant) isIn(in bucket) bool {
	_, is := slices.BinarySearch(c.what, in.what)
	if all := c.claims(); all.isWide() || in.seenBy == bucketWide {
		return is && all.isWide() && in.seenBy == bucketWide
	} else if in.seenBy != bucketScoped {
		_, seen := slices.BinarySearch(all.Scopes, in.seenBy)
		is = is && seen
	}
	return is
}

// of returns the claimants of a key.
func (x *claims) of(k ref) (all []*claimant) {
	for c := x.copies[maphash.Comparable(x.seed, k)]; c != nil; c = c.next {
		if c.resource.ref() == k {
			all = append(all, c)
		}
	}
	return all
}

// keep replaces the claimants of a key.
func (x *claims) keep(k ref, now []*claimant) {
	hash := maphash.Comparable(x.seed, k)
	var all, next *claimant
	for c := x.copies[hash]; c != nil; c = next {
		if next = c.next; c.resource.ref() != k {
			c.next, all = all, c
		}
	}
	for _, c := range slices.Backward(now) {
		c.next, all = all, c
	}
	if x.copies[hash] = all; all == nil {
		delete(x.copies, hash)
	}
}

// The buckets of a claim: everyone sees it; of some scopes, all of them and each of them.
const (
	bucketWide   = "\x00wide"
	bucketScoped = "\x00scoped"
)

// bucketsOfAll have, together, each claim once.
var bucketsOfAll = [...]string{bucketWide, bucketScoped}

func (c Claims) isWide() bool {
	return c.Scopes == nil || len(c.Scopes) > maxScopes || len(c.What)*len(c.Scopes) > maxScoped
}

// held returns the buckets that hold a claim.
func (c Claims) held() []string {
	if c.isWide() {
		return []string{bucketWide}
	}
	return append([]string{bucketScoped}, c.Scopes...)
}

// equal reports whether two claimants claim the same.
func (c *claimant) equal(o *claimant) bool {
	mine, others := c.claims(), o.claims()
	return slices.Equal(c.what, o.what) && (mine.Scopes == nil) == (others.Scopes == nil) && slices.Equal(mine.Scopes, others.Scopes) &&
		slices.Equal(c.follows(), o.follows())
}

// met returns the buckets with the claims that may meet a claim.
func (c Claims) met() []string {
	if c.isWide() {
		return []string{bucketWide, bucketScoped}
	}
	return append([]string{bucketWide}, c.Scopes...)
}

// Meets reports whether somebody sees both claims.
func (c Claims) Meets(o Claims) bool {
	return c.Scopes == nil || o.Scopes == nil || slices.ContainsFunc(c.Scopes, func(scope string) bool {
		_, both := slices.BinarySearch(o.Scopes, scope)
		return both
	})
}

// claimed returns what the served resource of a key claims without regard to others.
func (a *Aggregate) claimed(key Key) []string {
	if r := a.index.get(refOf(key)); r != nil {
		return a.claims.by.Claims(r, func(Key) []string { return nil }).What
	}
	return nil
}

// judges reports whether claims have keys not served.
func (x *claims) judges() bool { return x.mutual || x.by.Yielding() != NoneYields }

// isJudged reports whether Owners may have a key not served.
func (a *Aggregate) isJudged(k ref) bool {
	return a.claims != nil && a.claims.judges() && a.claims.by.Owns(k.kind.Value())
}

func (a *Aggregate) newClaimant(x *claims, r *Resource) *claimant {
	var follows []ref
	made := x.by.Claims(r, func(key Key) []string {
		follows = append(follows, refOf(key))
		return a.claimed(key)
	})
	c := &claimant{resource: r, what: made.What, since: time.Now().UnixNano()}
	c.self[0] = c
	if made.Scopes != nil || follows != nil {
		c.rest = &claimRest{made.Scopes, follows}
	}
	return c
}

// reclaim updates the claims of a key. If a copy has changed, or anew, it queues the keys of others that claim the same, where
// that may have them served or not.
func (a *Aggregate) reclaim(x *claims, k ref, anew bool) {
	copies, was := a.copies(k, everything), x.of(k)
	now := make([]*claimant, 0, len(copies))
	same, claiming := len(copies) == len(was), false
	for _, c := range copies {
		i := slices.IndexFunc(was, func(o *claimant) bool { return o.resource.Source() == c.Source })
		var kept *claimant
		if i >= 0 {
			kept = was[i]
		}
		if kept == nil || anew || !kept.resource.Equal(c.Resource) || kept.resource.Cluster() != c.Resource.Cluster() {
			made := a.newClaimant(x, c.Resource)
			if kept != nil && !x.mutual && made.equal(kept) {
				same = same && !x.judges()
			} else {
				kept, same = made, false
			}
		}
		kept.resource = c.Resource // an equal one is not held twice
		now = append(now, kept)
		claiming = claiming || len(kept.what)+len(kept.follows()) > 0
	}
	if same || !claiming && len(was) == 0 {
		return
	}
	if !claiming {
		now = nil
	}
	// Any change of a copy may have another copy of the key served: the rivals of all copies are judged.
	for _, c := range was {
		if a.markRivals(x, c); !slices.Contains(now, c) {
			x.each(c, x.drop)
		}
		for _, of := range c.follows() {
			if delete(x.follow[of], k); len(x.follow[of]) == 0 {
				delete(x.follow, of)
			}
		}
	}
	for _, c := range now {
		for _, of := range c.follows() {
			if x.follow[of] == nil {
				x.follow[of] = map[ref]bool{}
			}
			x.follow[of][k] = true
		}
		if a.markRivals(x, c); !slices.Contains(was, c) {
			x.each(c, x.insert)
		}
	}
	x.keep(k, now)
	if x.mutual {
		a.queue.mark(k, nil)
	}
	a.queue.extend()
}

// each calls f, which is insert or drop, for the buckets of a claimant.
func (x *claims) each(c *claimant, f func(in bucket, c *claimant)) {
	held := c.claims().held()
	for _, what := range c.what {
		for _, seenBy := range held {
			f(bucket{what, seenBy}, c)
		}
		if x.mutual {
			continue
		}
		k := contested{c.resource.kind(), what}
		several, mixed := x.areSeveral(k)
		x.contest(k, several)
		x.contest(contested{what: what}, mixed)
	}
}

func (x *claims) contest(k contested, is bool) {
	if delete(x.several, k); is {
		x.several[k] = struct{}{}
	}
}

// areSeveral reports whether several keys of a kind claim the same, and whether several kinds and several sources do. It looks at
// one claim of each source and kind.
func (x *claims) areSeveral(k contested) (several, mixed bool) {
	one, first, kinds, sources := "", sourceClaims{}, false, false
	for _, all := range bucketsOfAll {
		for _, s := range x.at(bucket{k.what, all}, &[1]sourceClaims{}) {
			if first.of == nil {
				first = s
			}
			kinds, sources = kinds || s.kind != first.kind, sources || s.source != first.source
			if s.kind == k.kind {
				several = several || len(s.of) > 1 || one != "" && one != s.of[0].resource.name
				one = s.of[0].resource.name
			}
		}
	}
	return several, kinds && sources
}

func (x *claims) insert(in bucket, c *claimant) {
	b, hash := x.buckets[in], maphash.Comparable(x.seed, in)
	if one := x.single[hash]; one == nil && b == nil {
		x.single[hash] = c
		return
	} else if one != nil && one.isIn(in) {
		delete(x.single, hash)
		b = []sourceClaims{{source: one.resource.Source(), kind: one.resource.kind(), of: []*claimant{one}}}
	}
	i := slices.IndexFunc(b, func(s sourceClaims) bool { return s.has(c) })
	if i < 0 {
		x.buckets[in] = append(b, sourceClaims{source: c.resource.Source(), kind: c.resource.kind(), of: []*claimant{c}})
		return
	}
	x.buckets[in] = b
	at, _ := slices.BinarySearchFunc(b[i].of, c, compareClaimants)
	if b[i].of = slices.Insert(b[i].of, at, c); !x.mutual {
		b[i].marked = 0
	}
}

// drop ends what insert began.
func (x *claims) drop(in bucket, c *claimant) {
	b, hash := x.buckets[in], maphash.Comparable(x.seed, in)
	if b == nil {
		delete(x.single, hash)
		return
	}
	i := slices.IndexFunc(b, func(s sourceClaims) bool { return s.has(c) })
	at, _ := slices.BinarySearchFunc(b[i].of, c, compareClaimants)
	if b[i].of = slices.Delete(b[i].of, at, at+1); len(b[i].of) == 0 {
		b = slices.Delete(b, i, i+1)
		x.buckets[in] = b
	}
	switch {
	case len(b) == 0:
		delete(x.buckets, in)
	case len(b) == 1 && len(b[0].of) == 1 && x.single[hash] == nil:
		x.single[hash] = b[0].of[0]
		delete(x.buckets, in)
	}
}

// markRivals queues the keys of other sources whose claims a claim may meet; with mutual, also of other clusters of its source.
func (a *Aggregate) markRivals(x *claims, c *claimant) {
	if !x.judges() {
		return
	}
	for _, what := range c.what {
		for _, seenBy := range c.claims().met() {
			b := x.at(bucket{what, seenBy}, &[1]sourceClaims{})
			for i := range b {
				s := &b[i]
				own := s.source == c.resource.Source()
				if own && !x.mutual || !own && s.marked == x.round {
					continue
				}
				s.marked = x.round
				for _, o := range s.of {
					switch {
					case own && o.resource.Cluster() == c.resource.Cluster():
						continue
					case o.resource.ref() == c.resource.ref() && !x.mutual:
						s.marked = 0 // it is judged now, and does not wait
						continue
					}
					a.queue.mark(o.resource.ref(), nil)
					x.marks++
				}
			}
		}
	}
}

// yields returns why a resource is not served, if clients see only the copies that accept accepts: one of another key
// and source claims the same, and would be served if there were no Owners. It is empty if the resource is served. united are
// the keys whose parts are in the resource.
func (a *Aggregate) yields(k ref, r *Resource, accept func(*Resource) bool, united []Key) string {
	x, looks := a.claims, 0
	mine := a.claimsOf(k, r)
	place := a.holders.named
	for _, what := range mine.What {
		for _, seenBy := range mine.met() {
			for _, s := range x.at(bucket{what, seenBy}, &[1]sourceClaims{}) {
				if s.source == r.Source() || x.by.Yielding() == LaterYield && place[s.source] > place[r.Source()] || !x.by.Yields(k.kind.Value(), s.kind.Value()) {
					continue
				}
				for _, o := range s.of {
					if a.mainOf(o.resource.ref()) == a.mainOf(k) || slices.Contains(united, o.resource.Key()) {
						continue
					}
					if looks += 1 + (len(mine.Scopes)+len(o.claims().Scopes))/maxScopes; looks > maxLooks || mine.Meets(o.claims()) && a.servesCopy(o, accept) {
						return x.by.Reason(o.resource, what)
					}
				}
			}
		}
	}
	return ""
}

// claimsOf returns the claims of a resource of an owned kind that is served under a key.
func (a *Aggregate) claimsOf(k ref, r *Resource) Claims {
	for _, c := range a.claims.of(k) {
		if c.resource == r {
			return c.claims()
		}
	}
	return a.claims.by.Claims(r, a.claimed)
}

// servesCopy reports whether the key of a claimant would serve the copy of that source.
func (a *Aggregate) servesCopy(c *claimant, accept func(*Resource) bool) bool {
	copies := a.copies(c.resource.ref(), accept)
	if len(copies) == 0 {
		return false
	}
	v, ok := mergeOthers(a.policy(c.resource.Kind()), copies)
	return ok && v.Served != nil && v.Served.Source() == c.resource.Source()
}

// Contest is what the served resources of several keys of a kind claim; without Kind, of several kinds.
type Contest struct {
	Kind   Kind
	What   string
	Claims []Claimed // in no order
}

// Claimed is a served resource with a claim.
type Claimed struct {
	*Resource
	Scopes []string  // as in Claims
	Since  time.Time // when the copy began to claim what it claims now
}

// Contests returns what several keys of a kind or, with mixed, several kinds and several sources claim, in no order, without
// siblings of other keys. Whether anybody sees several of the claims is not judged.
func (a *Aggregate) Contests(mixed bool) (all []Contest) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.claims == nil {
		return nil
	}
	for k := range a.claims.several {
		if mixed != (k.kind == unique.Handle[Kind]{}) {
			continue
		}
		c := Contest{What: k.what}
		if !mixed {
			c.Kind = k.kind.Value()
		}
		for _, seenBy := range bucketsOfAll {
			for _, s := range a.claims.at(bucket{k.what, seenBy}, &[1]sourceClaims{}) {
				if s.kind != k.kind && !mixed {
					continue
				}
				for _, o := range s.of {
					if r := a.index.get(o.resource.ref()); r != nil && r.Source() == s.source && !r.HasAnnotation(SiblingAnnotation) {
						c.Claims = append(c.Claims, Claimed{r, o.claims().Scopes, time.Unix(0, o.since)})
					}
				}
			}
		}
		if len(c.Claims) > 1 {
			all = append(all, c)
		}
	}
	return all
}

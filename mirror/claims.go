package mirror

import (
	"cmp"
	"maps"
	"slices"
	"strings"
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

// Owners decides between resources of different keys and sources that claim the same. Its methods run on any goroutine.
// They must be pure functions.
type Owners interface {
	// Claims returns what a resource claims. That may follow from what served resources of other keys claim, which of
	// returns. These must not follow others.
	Claims(r *Resource, of func(Key) []string) Claims
	// OnlyEarlier: a resource yields to sources that come first only.
	OnlyEarlier() bool
	// Yields reports whether a resource of a kind yields to one of another source and perhaps of another kind.
	Yields(kind, to Kind) bool
	// Reason tells in a few words that r yields to other.
	Reason(r, other *Resource, what string) string
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
	return &claims{by: by, mutual: mutual, round: 1, buckets: map[bucket][]sourceClaims{}, copies: map[ref][]*claimant{}, follow: map[ref]map[ref]bool{}}
}

// claims finds the claims of all copies.
type claims struct {
	by      Owners
	mutual  bool // those of one source are rivals, too; then a key is judged once more after its claims have changed
	buckets map[bucket][]sourceClaims
	copies  map[ref][]*claimant  // with claims
	follow  map[ref]map[ref]bool // by key, those whose claims follow from its own
	round   uint64               // number of the batch
	marks   int                  // for tests: how often a key was queued
}

// bucket has the claims of the same thing, which somebody sees: a scope, bucketWide or bucketScoped.
type bucket struct{ what, seenBy string }

// sourceClaims are the claims of one source in a bucket, sorted by key. In the batch of the number marked, all of them
// were queued: they wait until the next one.
type sourceClaims struct {
	source string
	of     []*claimant
	marked uint64
}

// claimant is a copy with claims. It is immutable.
type claimant struct {
	ref
	source   string
	resource *Resource
	Claims
	follows []ref
}

func compareClaimants(a, b *claimant) int {
	return cmp.Or(strings.Compare(a.name, b.name), CompareKinds(a.kind.Value(), b.kind.Value()))
}

// The buckets of a claim: everyone sees it; of some scopes, all of them and each of them.
const (
	bucketWide   = "\x00wide"
	bucketScoped = "\x00scoped"
)

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

// met returns the buckets with the claims that may meet a claim.
func (c Claims) met() []string {
	if c.isWide() {
		return []string{bucketWide, bucketScoped}
	}
	return append([]string{bucketWide}, c.Scopes...)
}

// meets reports whether somebody sees both claims.
func (c Claims) meets(o Claims) bool {
	if c.Scopes == nil || o.Scopes == nil {
		return true
	}
	for i, j := 0, 0; i < len(c.Scopes) && j < len(o.Scopes); {
		switch d := strings.Compare(c.Scopes[i], o.Scopes[j]); {
		case d == 0:
			return true
		case d < 0:
			i++
		default:
			j++
		}
	}
	return false
}

// claimed returns what the served resource of a key claims without regard to others.
func (a *Aggregate) claimed(key Key) []string {
	if r := a.index.get(refOf(key)); r != nil {
		return a.claims.by.Claims(r, func(Key) []string { return nil }).What
	}
	return nil
}

// reclaimFollowing updates the claims that follow from those of a key.
func (a *Aggregate) reclaimFollowing(k ref) {
	for _, f := range slices.Collect(maps.Keys(a.claims.follow[k])) { // reclaim changes it
		a.queue.mark(f, nil)
		a.reclaim(a.claims, f, true)
	}
}

// reclaim updates the claims of a key. If a copy has changed, or anew, it queues the keys of others that claim the same.
func (a *Aggregate) reclaim(x *claims, k ref, anew bool) {
	copies, was := a.copies(k, everything), x.copies[k]
	now := make([]*claimant, 0, len(copies))
	same, claiming := len(copies) == len(was), false
	for _, c := range copies {
		i := slices.IndexFunc(was, func(o *claimant) bool {
			return !anew && o.source == c.Source && o.resource.Equal(c.Resource) && o.resource.Cluster() == c.Resource.Cluster()
		})
		if i >= 0 {
			now = append(now, was[i])
		} else {
			made := &claimant{ref: k, source: c.Source, resource: c.Resource}
			made.Claims = x.by.Claims(c.Resource, func(key Key) []string {
				made.follows = append(made.follows, refOf(key))
				return a.claimed(key)
			})
			now, same = append(now, made), false
		}
		claiming = claiming || len(now[len(now)-1].What)+len(now[len(now)-1].follows) > 0
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
			c.eachBucket(x.drop)
		}
		for _, of := range c.follows {
			if delete(x.follow[of], k); len(x.follow[of]) == 0 {
				delete(x.follow, of)
			}
		}
	}
	for _, c := range now {
		for _, of := range c.follows {
			if x.follow[of] == nil {
				x.follow[of] = map[ref]bool{}
			}
			x.follow[of][k] = true
		}
		if a.markRivals(x, c); !slices.Contains(was, c) {
			c.eachBucket(x.insert)
		}
	}
	if x.copies[k] = now; len(now) == 0 {
		delete(x.copies, k)
	}
	if x.mutual {
		a.queue.mark(k, nil)
	}
	a.queue.extend()
}

func (c *claimant) eachBucket(f func(in bucket, c *claimant)) {
	for _, what := range c.What {
		for _, seenBy := range c.held() {
			f(bucket{what, seenBy}, c)
		}
	}
}

func (x *claims) insert(in bucket, c *claimant) {
	b := x.buckets[in]
	i := slices.IndexFunc(b, func(s sourceClaims) bool { return s.source == c.source })
	if i < 0 {
		x.buckets[in] = append(b, sourceClaims{source: c.source, of: []*claimant{c}})
		return
	}
	at, _ := slices.BinarySearchFunc(b[i].of, c, compareClaimants)
	if b[i].of = slices.Insert(b[i].of, at, c); !x.mutual {
		b[i].marked = 0
	}
}

// drop ends what insert began.
func (x *claims) drop(in bucket, c *claimant) {
	b := x.buckets[in]
	i := slices.IndexFunc(b, func(s sourceClaims) bool { return s.source == c.source })
	at, _ := slices.BinarySearchFunc(b[i].of, c, compareClaimants)
	if b[i].of = slices.Delete(b[i].of, at, at+1); len(b[i].of) > 0 {
		return
	}
	if b = slices.Delete(b, i, i+1); len(b) == 0 {
		delete(x.buckets, in)
	} else {
		x.buckets[in] = b
	}
}

// markRivals queues the keys of other sources whose claims a claim may meet; with mutual, also of other clusters of its source.
func (a *Aggregate) markRivals(x *claims, c *claimant) {
	for _, what := range c.What {
		for _, seenBy := range c.met() {
			b := x.buckets[bucket{what, seenBy}]
			for i := range b {
				s := &b[i]
				own := s.source == c.source
				if own && !x.mutual || !own && s.marked == x.round {
					continue
				}
				s.marked = x.round
				for _, o := range s.of {
					switch {
					case own && o.resource.Cluster() == c.resource.Cluster():
						continue
					case o.ref == c.ref && !x.mutual:
						s.marked = 0 // it is judged now, and does not wait
						continue
					}
					a.queue.mark(o.ref, nil)
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
			for _, s := range x.buckets[bucket{what, seenBy}] {
				if s.source == r.Source() || x.by.OnlyEarlier() && place[s.source] > place[r.Source()] {
					continue
				}
				for _, o := range s.of {
					if a.mainOf(o.ref) == a.mainOf(k) || !x.by.Yields(k.kind.Value(), o.kind.Value()) || slices.Contains(united, o.key()) {
						continue
					}
					if looks += 1 + (len(mine.Scopes)+len(o.Scopes))/maxScopes; looks > maxLooks || mine.meets(o.Claims) && a.servesCopy(o, accept) {
						return x.by.Reason(r, o.resource, what)
					}
				}
			}
		}
	}
	return ""
}

// claimsOf returns the claims of a resource that is served under a key.
func (a *Aggregate) claimsOf(k ref, r *Resource) Claims {
	for _, c := range a.claims.copies[k] {
		if c.resource == r {
			return c.Claims
		}
	}
	return a.claims.by.Claims(r, a.claimed)
}

// servesCopy reports whether the key of a claimant would serve the copy of that source.
func (a *Aggregate) servesCopy(c *claimant, accept func(*Resource) bool) bool {
	copies := a.copies(c.ref, accept)
	if len(copies) == 0 {
		return false
	}
	v, ok := mergeOthers(a.policy(c.kind.Value()), copies)
	return ok && v.Served != nil && v.Served.Source() == c.source
}

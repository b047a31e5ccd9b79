package intake

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation/rewrite"
	"meshrelay/mirror"
)

// StaleAnnotation is the annotation of resources whose source is out of contact, if the config asks
// for it. Its value is the last contact in RFC 3339.
const StaleAnnotation = "meshrelay.io/stale-since"

// staleness is the time since the last contact with a source, and its consequences.
type staleness struct {
	rule     staleRule
	byKind   map[mirror.Kind]staleRule
	annotate bool

	inContact bool
	// since is the last contact, zero if there was none. lasted is set if there was a later contact: a former
	// process was killed before it wrote the time.
	since   time.Time
	lasted  bool
	isStale bool
	// told has the kinds that a stream has answered before the source came in contact. The time is zero while
	// the stream is open, and otherwise the end of the stream.
	told     map[mirror.Kind]time.Time
	withheld map[mirror.Kind]struct{} // kinds that are not served

	// marked is set if served resources have the annotation. unmarked has the same resources without it.
	marked   bool
	unmarked map[mirror.Key]*mirror.Resource
}

type staleRule struct {
	staleAfter, expireAfter time.Duration // expireAfter 0 is never
	drop                    bool
}

// ends returns the time from the last contact until resources expire. ok is false if they never expire.
func (r staleRule) ends() (after time.Duration, ok bool) {
	switch {
	case r.drop && r.expireAfter > 0:
		return min(r.staleAfter, r.expireAfter), true
	case r.drop:
		return r.staleAfter, true
	}
	return r.expireAfter, r.expireAfter > 0
}

func (s *staleness) setRules(c config.Staleness) {
	of := func(after config.Duration, onStale string, expire config.OpenEnded) staleRule {
		return staleRule{staleAfter: after.D(), expireAfter: expire.D(), drop: onStale == config.OnStaleDrop}
	}
	s.rule, s.annotate = of(c.StaleAfter, c.OnStale, c.ExpireAfter), c.Annotate
	s.byKind = map[mirror.Kind]staleRule{}
	for _, k := range c.Kinds {
		for _, word := range k.Kinds {
			kinds, err := mirror.ParseKinds(word)
			if err != nil {
				continue // the config has been checked
			}
			for _, kind := range kinds {
				if _, taken := s.byKind[kind]; !taken {
					s.byKind[kind] = of(k.StaleAfter, k.OnStale, k.ExpireAfter)
				}
			}
		}
	}
	if s.withheld == nil {
		s.told, s.withheld = map[mirror.Kind]time.Time{}, map[mirror.Kind]struct{}{}
		s.unmarked = map[mirror.Key]*mirror.Resource{}
	}
}

func (s *staleness) ruleOf(kind mirror.Kind) staleRule {
	if r, ok := s.byKind[kind]; ok {
		return r
	}
	return s.rule
}

// withholds reports whether a kind is not served because it has expired.
func (s *staleness) withholds(kind mirror.Kind) bool {
	_, ok := s.withheld[kind]
	return ok
}

// restore makes restored resources stale until the source has given all its content.
func (s *staleness) restore(lastContact time.Time, lasted bool, now time.Time, expire bool) {
	if lastContact.After(now) {
		lastContact = now // the clock was set back
	}
	s.since, s.lasted, s.isStale = lastContact, lasted && !lastContact.IsZero(), true
	if lastContact.IsZero() {
		s.since = now
	}
	s.marked = s.marks()
	if !expire {
		return
	}
	for _, info := range mirror.Kinds() {
		s.expires(info.Kind, now)
	}
	for kind := range s.byKind {
		s.expires(kind, now)
	}
}

// lose notes the end of the contact, or the end of a stream that did not bring contact.
func (s *staleness) lose(now time.Time) {
	if s.inContact {
		s.inContact, s.since = false, now
	}
	for kind, ended := range s.told {
		if ended.IsZero() {
			s.told[kind] = now
			if s.since.IsZero() {
				s.since = now // the stream did not give all its content
			}
		}
	}
}

// freshen notes that a stream has answered a kind. It reports whether the kind was withheld.
func (s *staleness) freshen(kind mirror.Kind) (back bool) {
	if s.inContact {
		return false
	}
	s.told[kind] = time.Time{}
	_, back = s.withheld[kind]
	delete(s.withheld, kind)
	return back
}

func (s *staleness) regain() {
	s.inContact, s.isStale, s.lasted, s.since = true, false, false, time.Time{}
	clear(s.withheld)
	clear(s.told)
}

// expires reports whether a kind has expired. If it has, its resources are withheld.
func (s *staleness) expires(kind mirror.Kind, now time.Time) bool {
	over := s.isOver(kind, now)
	if over {
		s.withheld[kind] = struct{}{}
	}
	return over
}

// isOver reports whether the rule of a kind lets its resources expire.
func (s *staleness) isOver(kind mirror.Kind, now time.Time) bool {
	after, ok := s.ruleOf(kind).ends()
	if !ok || s.inContact || s.since.IsZero() {
		return false
	}
	since := s.since
	if ended, told := s.told[kind]; told && ended.IsZero() {
		return false
	} else if ended.After(since) {
		since = ended
	}
	return now.Sub(since) >= after
}

// reconsider ends the withholding of kinds that have not expired by the present rules. It reports
// whether there were any.
func (s *staleness) reconsider(now time.Time) (back bool) {
	for kind := range s.withheld {
		if !s.isOver(kind, now) {
			delete(s.withheld, kind)
			back = true
		}
	}
	return back
}

// plan passes the next deadlines to later.
func (s *staleness) plan(later func(time.Time)) {
	if s.inContact || s.since.IsZero() {
		return
	}
	later(s.since.Add(s.rule.staleAfter))
	for _, r := range s.rules() {
		if after, ok := r.ends(); ok {
			later(s.since.Add(after))
		}
	}
	for kind, ended := range s.told {
		if after, ok := s.ruleOf(kind).ends(); ok && !ended.IsZero() {
			later(ended.Add(after))
		}
	}
}

func (s *staleness) rules() []staleRule { return append(slices.Collect(maps.Values(s.byKind)), s.rule) }

// mayExpire reports whether a rule lets resources expire. It allocates nothing.
func (s *staleness) mayExpire() bool {
	_, ends := s.rule.ends()
	for _, r := range s.byKind {
		_, also := r.ends()
		ends = ends || also
	}
	return ends
}

// grain returns the precision with which the disk must have the last contact. counts is false if no rule
// and no annotation uses the last contact.
func (s *staleness) grain() (grain time.Duration, counts bool) {
	grain, counts = contactGrain, s.annotate
	for _, r := range s.rules() {
		if after, ok := r.ends(); ok {
			grain, counts = min(grain, after/10), true
		}
	}
	return grain, counts
}

// marks reports whether served resources must have the annotation.
func (s *staleness) marks() bool { return s.annotate && s.isStale && !s.inContact }

// annotated returns r with the annotation, if it must have it.
func (s *staleness) annotated(key mirror.Key, r *mirror.Resource) *mirror.Resource {
	delete(s.unmarked, key)
	if !s.marked || key.Kind == mirror.MeshConfig || r.HasAnnotation(StaleAnnotation) {
		return r
	}
	since := map[string]string{StaleAnnotation: s.since.UTC().Format(time.RFC3339)}
	rw, err := rewrite.New(rewrite.Rules{Annotations: rewrite.Edit{Set: since}})
	if err != nil {
		return r
	}
	out, err := rw.Rewrite(r)
	if err != nil {
		return r // better without the annotation than not at all
	}
	s.unmarked[key] = r
	return out
}

// plain returns the served resource of a key, without the annotation of staleness.
func (s *staleness) plain(served *mirror.Store, key mirror.Key) *mirror.Resource {
	if r := s.unmarked[key]; r != nil {
		return r
	}
	return served.Get(key)
}

// expire reports a source that has become stale, and removes expired resources.
func (in *Intake) expire() {
	if in.stale.inContact {
		return
	}
	if s := &in.stale; !s.isStale && !s.since.IsZero() && in.now.Sub(s.since) >= s.rule.staleAfter {
		s.isStale = true
		in.note(slog.LevelWarn, "upstream is stale", "since", s.since.UTC().Format(time.RFC3339), "staleAfter", s.rule.staleAfter)
		in.tell(events.Event{
			Type: events.Stale, By: events.ByStaleness, Text: "out of contact since " + s.since.UTC().Format(time.RFC3339),
			Reason: fmt.Sprintf("staleAfter is %v", s.rule.staleAfter), Command: "relay upstreams " + in.name,
		})
	}
	if in.stale.marks() && !in.stale.marked {
		in.stale.marked = true
		in.eachServed(func(r *mirror.Resource) { in.served.Put(in.stale.annotated(r.Key(), r)) })
	}
	if in.frozen != nil || !in.stale.mayExpire() {
		return
	}
	gone := map[mirror.Kind]int{}
	for _, kind := range in.served.Kinds() {
		if !in.stale.expires(kind, in.now) {
			continue
		}
		for _, r := range in.served.List(kind, "") {
			key := r.Key()
			in.stay(key)
			in.drop(key)
			gone[kind]++
		}
	}
	if len(gone) > 0 {
		in.tallies.forget()
		in.because(events.ByStaleness, "staleness")
		in.noteExpired(gone)
	}
}

// expired counts, by kind, the resources of the source that are not served because they have
// expired.
func (in *Intake) expired() map[string]int {
	out := map[string]int{}
	for kind := range in.stale.withheld {
		if in.kinds[kind] == nil {
			continue
		}
		keys := map[mirror.Key]struct{}{}
		for _, sc := range in.kinds[kind].scopes {
			for _, rec := range sc.byName {
				if rec.resource != nil && in.served.Get(rec.resource.Key()) == nil {
					keys[rec.resource.Key()] = struct{}{}
				}
			}
		}
		if len(keys) > 0 {
			out[kind.String()] = len(keys)
		}
	}
	return out
}

func (in *Intake) noteExpired(gone map[mirror.Kind]int) {
	total, kinds := 0, make([]string, 0, len(gone))
	for kind, n := range gone {
		total += n
		kinds = append(kinds, fmt.Sprintf("%s (%d)", kind, n))
	}
	slices.Sort(kinds)
	in.tell(events.Event{
		Type: events.Expired, By: events.ByStaleness, Command: "relay upstreams " + in.name,
		Text:   fmt.Sprintf("%d resources expired: %s", total, strings.Join(kinds, ", ")),
		Reason: "out of contact since " + in.stale.since.UTC().Format(time.RFC3339),
	})
	in.note(slog.LevelWarn, "resources expired",
		"resources", total, "kinds", strings.Join(kinds, ", "), "since", in.stale.since.UTC().Format(time.RFC3339))
}

func (in *Intake) showPlain() {
	for _, r := range in.stale.unmarked {
		in.served.Put(r)
	}
	in.stale.marked = false
	clear(in.stale.unmarked)
}

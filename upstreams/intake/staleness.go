package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/mirror"
)

// staleness is the time since the last contact with a source, and its consequences.
type staleness struct {
	staleAfter, expireAfter time.Duration // expireAfter 0 is never

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
}

func (s *staleness) setRule(c config.Staleness) {
	s.staleAfter, s.expireAfter = c.StaleAfter.D(), c.ExpireAfter.D()
	if s.withheld == nil {
		s.told, s.withheld = map[mirror.Kind]time.Time{}, map[mirror.Kind]struct{}{}
	}
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
	for _, info := range mirror.Kinds() {
		if expire {
			s.expires(info.Kind, now)
		}
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

// isOver reports whether the resources of a kind have expired.
func (s *staleness) isOver(kind mirror.Kind, now time.Time) bool {
	if s.expireAfter == 0 || s.inContact || s.since.IsZero() {
		return false
	}
	since := s.since
	if ended, told := s.told[kind]; told && ended.IsZero() {
		return false
	} else if ended.After(since) {
		since = ended
	}
	return now.Sub(since) >= s.expireAfter
}

// reconsider ends the withholding of kinds that have not expired by the present rule. It reports
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
	later(s.since.Add(s.staleAfter))
	if s.expireAfter == 0 {
		return
	}
	later(s.since.Add(s.expireAfter))
	for _, ended := range s.told {
		if !ended.IsZero() {
			later(ended.Add(s.expireAfter))
		}
	}
}

// expire reports a source that has become stale, and removes expired resources.
func (in *Intake) expire() {
	if in.stale.inContact {
		return
	}
	if s := &in.stale; !s.isStale && !s.since.IsZero() && in.now.Sub(s.since) >= s.staleAfter {
		s.isStale = true
		in.note(slog.LevelWarn, "upstream is stale", "since", s.since.UTC().Format(time.RFC3339), "staleAfter", s.staleAfter)
		in.tell(events.Event{
			Type: events.Stale, By: events.ByStaleness, Text: "out of contact since " + s.since.UTC().Format(time.RFC3339),
			Reason: fmt.Sprintf("staleAfter is %v", s.staleAfter), Command: "relay upstreams " + in.name,
		})
	}
	if in.frozen != nil || in.stale.expireAfter == 0 {
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

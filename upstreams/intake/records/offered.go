package records

import (
	"cmp"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/mirror"
)

// Asked returns whether a server is asked for a kind: import.profile and import.kinds have it, services.mode needs it, or it is
// MeshConfig, the first type of each stream.
func Asked(u config.Upstream) func(mirror.Kind) bool {
	asked := map[mirror.Kind]bool{
		mirror.MeshConfig:       true,
		federation.ServiceEntry: u.Services.Mode == config.ServicesGateway || u.Services.Mode == config.ServicesDiscover,
	}
	passes, err := filter.New(filter.Rules{Profile: u.Import.Profile, Kinds: u.Import.Kinds})
	return func(kind mirror.Kind) bool { return err != nil || passes.PassesKind(kind) || asked[kind] } // validation reports err
}

// Silent notes that the open stream gives no answer for some scopes. It returns those that are awaited all the same, and the
// kinds that need not wait any more. waits tells of which kinds deletions wait.
func (rs *Records) Silent(scopes []Scope, waits func(mirror.Kind) bool) (awaited []string, settled []mirror.Kind) {
	for _, s := range scopes {
		k, sc := rs.scope(s)
		if sc.silent = !rs.mayConfirm(k, sc, waits); !sc.silent {
			awaited = append(awaited, s.Name)
			continue
		}
		sc.awaited = false
		rs.settle(k)
		settled = append(settled, k.kind)
	}
	rs.ReportNotOffered()
	return awaited, settled
}

// mayConfirm reports whether resources are served that the answer for a scope may confirm: its records, those
// of a version of the kind that is not opened, or deletions that wait.
func (rs *Records) mayConfirm(k *kind, sc *scope, waits func(mirror.Kind) bool) bool {
	return sc.answered && waits(k.kind) || slices.ContainsFunc(k.scopes, func(other *scope) bool {
		return len(other.byName) > 0 && (other == sc || !slices.Contains(rs.opened, other))
	})
}

// ReportNotOffered reports which types the source does not offer, after a change.
func (rs *Records) ReportNotOffered() {
	var now []string
	for _, sc := range rs.opened {
		if sc.silent {
			now = append(now, sc.Name)
		}
	}
	if slices.Equal(now, rs.notOffered) {
		return
	}
	rs.notOffered = now
	rs.tell.Tell(events.Event{Type: events.NotOffered, By: events.ByUpstream, Text: "types not offered: " + cmp.Or(strings.Join(now, ", "), "none"), Command: "relay upstreams " + rs.name})
}

// Repeat notes that the source is asked to repeat all that it offers. again: it was asked before, and what it has repeated since
// counts.
func (rs *Records) Repeat(again bool) {
	if !rs.open || again && rs.repeating {
		return
	}
	rs.repeating = true
	for _, sc := range rs.opened {
		if sc.owed = !sc.silent; sc.parts != nil {
			continue // the rest of the answer confirms the scope
		}
		for _, rec := range sc.byName {
			rec.generation = unconfirmed
		}
	}
}

// Owed returns the names of the scopes that the source has still to repeat. A complete answer repeats a scope. Other answers come
// in parts, and after a push: they have repeated it once each of its names has been sent or removed.
func (rs *Records) Owed() (names []string) {
	for _, sc := range rs.opened {
		if sc.owed {
			names = append(names, sc.Name)
		}
	}
	return names
}

// Repeated reports, once, that the source has repeated all that it was asked to.
func (rs *Records) Repeated() bool {
	done := rs.repeating && len(rs.Owed()) == 0
	rs.repeating = rs.repeating && !done
	return done
}

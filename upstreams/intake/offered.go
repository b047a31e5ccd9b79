package intake

import (
	"cmp"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
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

// Silent is the event that the open stream gives no answer for some scopes. The source does not offer them,
// except those in Result.Awaited.
type Silent struct{ Scopes []Scope }

func (e Silent) step(in *Intake, out *Output) {
	in.gate.BeginUpdate()
	back := false
	for _, s := range e.Scopes {
		k, sc := in.scope(s)
		if sc.silent = !in.mayConfirm(k, sc); !sc.silent {
			out.Awaited = append(out.Awaited, s.Name)
			continue
		}
		delete(k.unanswered, s.Name)
		in.settle(k)
		back = in.freshen(k) || back
	}
	in.reportNotOffered()
	out.Deleted = in.end(in.unsettled())
	in.touch(false, back)
}

// mayConfirm reports whether resources are served that the answer for a scope may confirm: its records, those
// of a version of the kind that is not opened, or deletions that wait.
func (in *Intake) mayConfirm(k *kind, sc *scope) bool {
	waits := false
	in.gate.Each(func(key mirror.Key, s gate.State) {
		waits = waits || key.Kind == k.kind && (s == gate.Departing || s == gate.Held)
	})
	return waits && sc.answered || slices.ContainsFunc(k.scopes, func(other *scope) bool {
		return len(other.byName) > 0 && (other == sc || !slices.Contains(in.opened, other.Name))
	})
}

// reportNotOffered reports which types the source does not offer, after a change.
func (in *Intake) reportNotOffered() {
	now := slices.DeleteFunc(slices.Clone(in.opened), func(name string) bool {
		sc := in.scopes[name]
		return sc == nil || !sc.silent
	})
	if slices.Equal(now, in.notOffered) {
		return
	}
	in.notOffered = now
	in.tell(events.Event{Type: events.NotOffered, By: events.ByUpstream, Text: "types not offered: " + cmp.Or(strings.Join(now, ", "), "none"), Command: "relay upstreams " + in.name})
}

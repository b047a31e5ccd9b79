package relay

import (
	"meshrelay/events"
	"meshrelay/upstreams"
)

// lasting returns a function that reports whether what an event has begun lasts now: of an upstream, or
// of none.
func (r *Relay) lasting() func(begun events.Type, upstream string) bool {
	byName := map[string]upstreams.Status{}
	for _, u := range r.upstreams() {
		byName[u.Name] = u
	}
	reload := r.options.Watcher.Status()
	return func(begun events.Type, name string) bool {
		if begun == events.ConfigRefused {
			return reload.Error != ""
		}
		u, known := byName[name]
		return known && lastsFor(&u, begun)
	}
}

// lastsFor reports whether what an event of an upstream has begun lasts.
func lastsFor(u *upstreams.Status, begun events.Type) bool {
	switch begun {
	case events.Held:
		return u.Held != nil
	case events.Frozen:
		return u.Frozen != nil && u.Frozen.Revision == 0
	case events.RolledBack:
		return u.Frozen != nil && u.Frozen.Revision != 0
	case events.Stale:
		return u.Stale
	case events.Expired:
		return len(u.Expired) > 0
	case events.Lost, events.Denied, events.Failed:
		return !u.InContact
	}
	return false
}

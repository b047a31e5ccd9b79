package intake

import (
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

// Renewed returns an Intake that begins with what in holds and serves, as after a restart of the relay. It is for an
// Intake whose Step has panicked, and which is not used any more. It deletes nothing: deletions that waited are judged
// again, with all content of the next source.
func (in *Intake) Renewed(now time.Time) *Intake {
	next := New(config.Upstream{Name: in.name, Limits: in.limits}, in.served, in.rules, in.keeps)
	in.advance(now)
	next.now, next.gate = now, in.gate.Renewed(watcher{next})
	next.registry, next.staleAfter, next.contact, next.report.events = in.registry, in.staleAfter, in.contact, in.report.events
	next.frozen, next.told, next.without = in.frozen, in.told, in.without
	next.lastUpdate, next.identity, next.panics, next.root, next.server = in.lastUpdate, in.identity, in.panics, in.root, in.server
	next.journal.whole, next.journal.causes = in.keeps, in.journal.causes
	next.eachServed(func(r *mirror.Resource) { next.empty += empty(r) })
	next.former, next.discovery = in.former, in.discovery
	next.adopt(in.kept(), true)
	return next
}

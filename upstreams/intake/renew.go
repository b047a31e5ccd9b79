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
	next := New(config.Upstream{Name: in.name, Limits: in.limits, Guard: in.guard}, in.served, in.rules, in.keeps)
	in.now, next.now = now, now
	next.stale, next.contact, next.report.events = in.stale, in.contact, in.report.events
	next.frozen, next.differing, next.outdated = in.frozen, in.differing, in.outdated
	next.synced, next.told, next.without = in.synced, in.told, in.without
	next.lastUpdate, next.identity, next.panics, next.root, next.server = in.lastUpdate, in.identity, in.panics, in.root, in.server
	meta := in.meta(true)
	next.before = hold{since: meta.HeldSince, ran: meta.HeldRan, of: meta.Held}
	next.journal.whole, next.journal.causes = in.keeps, in.journal.causes
	for kind, n := range in.served.Counts() {
		next.tallies.add(kind, n)
	}
	next.eachServed(func(r *mirror.Resource) { next.empty += empty(r) })
	next.former, next.discovery = in.former, in.discovery
	next.adopt(in.kept(), true)
	return next
}

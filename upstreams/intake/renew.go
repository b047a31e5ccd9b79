package intake

import (
	"time"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// Renewed returns an Intake that begins with what in holds and serves, as after a restart of the relay. It is for an
// Intake whose Step has panicked, and which is not used any more. It deletes nothing: deletions that waited are judged
// again, with all content of the next source.
func (in *Intake) Renewed(now time.Time) *Intake {
	in.advance(now)
	next := &Intake{
		cfg: in.cfg, served: in.served, now: now, frozen: in.frozen, contact: in.contact, report: report{events: in.report.events},
		journal:  journal{dirty: map[mirror.Key]records.Origin{}, whole: in.cfg.keeps, causes: in.journal.causes},
		progress: progress{told: in.told, unswept: true, lastUpdate: in.lastUpdate, connected: in.connected, without: in.without, identity: in.identity},
	}
	next.gate, next.records = in.gate.Renewed(watcher{next}), in.records.Renewed(next)
	next.gate.Unopen()
	next.eachServed(func(r *mirror.Resource) { next.empty += empty(r) })
	return next
}

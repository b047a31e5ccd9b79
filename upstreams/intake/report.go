package intake

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/events"
	"meshrelay/internal/text"
	"meshrelay/upstreams/intake/records"
)

// report has the events of one step. The driver adds the name of the upstream and writes them to
// the event journal.
type report struct {
	events  []events.Event
	changes events.Resources // of served resources
	by      events.By        // the cause of the changes; empty means the upstream
	reason  string
}

// contact is the state of the contact with the source, as the event journal has it.
type contact struct {
	lost     time.Time     // zero while in contact, or before the first contact
	troubles []events.Type // reported since the contact was lost
	address  string        // of the last contact; empty if the source has only one address
	next     string        // of the open stream
}

// tellOrder adds the event of an operator's order, which causes the changes of the step. cause is that of the revision, empty
// for an order that makes none.
func (in *Intake) tellOrder(o Order, cause string, e events.Event) {
	if cause != "" {
		in.journal.because(strings.TrimSuffix(cause+" ("+o.Reason+")", " ()"))
	}
	e.By, e.Reason = events.ByOperator, o.Reason
	in.report.by, in.report.reason = e.By, o.Reason
	in.Tell(e)
}

// because sets the cause of the following changes of the step, if it is not the source. cause is the cause of
// the revision.
func (in *Intake) because(by events.By, cause string) {
	in.journal.because(cause)
	if in.report.by == "" {
		in.report.by = by
	}
}

// reported returns the events of the step. The changes come last.
func (in *Intake) reported() []events.Event {
	in.reportChanges()
	out := in.report.events
	in.report = report{}
	return out
}

// reportChanges reports the changes so far. Later changes of the step may have another cause.
func (in *Intake) reportChanges() {
	r := in.report
	if in.report = (report{events: r.events}); r.changes.Total() > 0 {
		changes := r.changes
		in.Tell(events.Event{Type: events.Changed, By: cmp.Or(r.by, events.ByUpstream), Reason: r.reason, Resources: &changes})
	}
}

// reportHold reports a hold with its start, which is earlier than the event.
func (in *Intake) reportHold() {
	h := in.namedHold()
	hold, _ := in.gate.Hold()
	lasts := "forever"
	if hold.Ends {
		lasts = hold.Left.Round(time.Second).String()
	}
	r := &events.Resources{}
	for _, key := range h.keys {
		r.Note(events.Removal, key)
	}
	in.Tell(events.Event{
		Type: events.Held, By: events.ByGuard, Hold: h.id, Resources: r, Reason: hold.Why, Command: "relay upstreams --held " + in.cfg.name,
		Text: fmt.Sprintf("%d deletions of %d resources held since %s, for %s", len(h.keys), hold.Of, hold.Since.UTC().Format(time.RFC3339), lasts),
	})
	in.Note(slog.LevelWarn, "deletions held by guard", "held", len(h.keys), "of", hold.Of, "reason", hold.Why, "for", lasts, "see", "relay upstreams --held "+in.cfg.name)
}

// reportClosed reports that the source is out of contact: each kind of trouble once until the next
// contact, because two addresses may fail in turn, each in its own way.
func (in *Intake) reportClosed(e Closed, was bool) {
	t, what := events.Lost, "not reached"
	switch {
	case e.Denied:
		t, what = events.Denied, "the upstream refuses the relay's identity"
	case e.Failed:
		t, what = events.Failed, "the upstream can not be used"
	case was:
		what = "contact lost, what it had is served"
	}
	if was {
		in.contact.lost = in.now
	}
	if e.Planned || slices.Contains(in.contact.troubles, t) {
		return
	}
	in.contact.troubles = append(in.contact.troubles, t)
	in.Tell(events.Event{Type: t, By: events.ByUpstream, Text: what, Reason: text.Shorten(e.Reason, records.MaxReason), Command: "relay upstreams " + in.cfg.name})
}

// reportContact reports that the source is in contact again, or at another address.
func (in *Intake) reportContact() {
	c := &in.contact
	if !c.lost.IsZero() {
		after := in.now.Sub(c.lost).Round(time.Millisecond)
		in.Tell(events.Event{Type: events.Regained, By: events.ByUpstream, Text: fmt.Sprintf("in contact again after %v", after)})
	}
	if c.address != "" && c.next != "" && c.next != c.address {
		in.Tell(events.Event{Type: events.Moved, By: events.ByUpstream, Text: "from " + c.address + " to " + c.next})
	}
	*c = contact{address: c.next, next: c.next}
}

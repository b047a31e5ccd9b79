package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"meshrelay/events"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

func (e Opened) step(in *Intake, _ *Output) {
	in.open, in.contact.next = true, e.Address
	in.opened = in.opened[:0]
	for _, k := range in.kinds {
		clear(k.unanswered)
	}
	for _, sc := range in.scopes {
		sc.parts, sc.torn = nil, false // of the former stream
	}
	for _, s := range e.Scopes {
		in.opened = append(in.opened, s.Name)
		in.kind(s.Kind).unanswered[s.Name] = true
	}
	in.gate.Open()
}

func (e Closed) step(in *Intake, _ *Output) { in.closed(e) }

func (in *Intake) closed(e Closed) {
	in.open = false
	was := in.gate.Lose()
	in.reportClosed(e, was)
	if was {
		in.journal.reported = time.Time{}
	}
}

// unsettled reports whether more names may still come, because a scope is not answered, or has become empty a
// moment ago. Then it is too early to count deletions.
func (in *Intake) unsettled() bool {
	for _, k := range in.kinds {
		if k.waits() {
			return true
		}
	}
	return false
}

// touch marks the source as in contact if it has given all its content. live is set if the source has
// declared that. back is set if kinds are no longer withheld.
func (in *Intake) touch(live, back bool) {
	live = live || in.open && len(in.opened) > 0 && !in.unsettled() && len(in.discovery.waiting) == 0
	in.noteComplete(live)
	sweeps := live && in.open && in.unswept
	if live {
		back = in.regain() || back
	}
	if !sweeps && (!back || in.frozen != nil) {
		return
	}
	if sweeps {
		in.sweep()
	} else {
		in.reconcileAll()
	}
	in.end(in.unsettled())
}

// sweep removes all that the present source did not confirm. It has given all its content.
func (in *Intake) sweep() {
	in.unswept = false
	for _, sc := range in.scopes {
		if !sc.answered {
			in.deleteAll(sc)
		}
	}
	in.reconcileAll()
}

// freshen notes that the open stream has answered a kind. It reports whether that was withheld.
func (in *Intake) freshen(k *kind) (back bool) {
	return in.open && !k.waits() && in.gate.Freshen(k.kind)
}

// noteComplete notes that the source has given all its content for the first time.
func (in *Intake) noteComplete(live bool) {
	if in.complete || !live && (len(in.opened) == 0 || slices.ContainsFunc(in.opened, in.pends) || len(in.discovery.waiting) > 0) {
		return
	}
	in.complete, in.completeAt, in.told = true, in.now, true
	in.served.SetSynced()
	in.note(slog.LevelInfo, "upstream has synced")
	in.tell(events.Event{Type: events.Synced, By: events.ByUpstream, Text: fmt.Sprintf("resources: %d", in.gate.Size())})
}

// regain marks the source as in contact. It reports whether kinds were withheld.
func (in *Intake) regain() (back bool) {
	before := in.gate.Contact()
	if before.Has {
		return false
	}
	in.journal.reported = time.Time{}
	in.reportContact()
	if in.gate.Synced, in.told = true, true; in.frozen == nil || !in.frozen.Empty { // else clients still wait for it
		in.without = time.Time{}
	}
	if before.Stale {
		in.note(slog.LevelInfo, "upstream is no longer stale", "since", before.Since)
	}
	return in.gate.Regain()
}

func (e Endpoints) step(in *Intake, out *Output) {
	in.discovery.from = e.From
	in.gate.BeginUpdate()
	in.reimportServices(e.Clusters, &out.Result)
	out.Deleted = in.end(in.unsettled())
	in.touch(false, false)
	out.Clusters = in.discovery.ask()
}

// EndGraces is the event that ends all graces before their time, for tests.
type EndGraces struct{}

func (EndGraces) step(in *Intake, _ *Output) { in.endGraces(longestSleep) }

// endGraces ends graces that are over after so long: names that are still missing are gone.
func (in *Intake) endGraces(after time.Duration) {
	back, ended := false, false
	for _, k := range in.kinds {
		if k.graceUntil.IsZero() || in.now.Add(after).Before(k.graceUntil) {
			continue
		}
		in.gate.BeginUpdate()
		k.graceUntil, ended = time.Time{}, true
		in.settle(k)
		back = in.freshen(k) || back
		in.end(in.unsettled())
	}
	if ended {
		in.touch(false, back)
	}
}

// panicked counts and logs a panic over a resource, and returns it as an error.
func (in *Intake) panicked(name string, p *mirror.Panic) error {
	in.panics++
	if in.panics <= maxLoggedPanics || in.panics%maxLoggedPanics == 0 {
		in.note(slog.LevelError, "panic while handling a resource", "resource", text.Abbreviate(name), "panic", p.Value, "panics", in.panics, "stack", p.Stack)
	}
	return p
}

// maxLoggedPanics is how many panics are logged with their stacks. After that, one in maxLoggedPanics is
// logged.
const maxLoggedPanics = 20

// Panicked is the event that the source's code panicked outside the intake.
type Panicked struct {
	What  string
	Panic *mirror.Panic
}

func (e Panicked) step(in *Intake, _ *Output) {
	_ = in.panicked(e.What, e.Panic)
}

func (Repeated) step(in *Intake, out *Output) { out.Deleted = in.gate.Repeated() }

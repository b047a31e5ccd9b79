package ledger

import (
	"slices"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/object"
)

// refusal returns a result that refuses an object because of err. It returns nil if err is nil.
func refusal(err error, e *Entry, o *object.Object) []intake.Result {
	if err == nil {
		return nil
	}
	var r intake.Result
	r.Refuse(e.Kind.String()+" "+o.FullName(), err)
	return []intake.Result{r}
}

// replaceInputs passes all inputs of an entry to a Deriver. Once all inputs were listed, it feeds the outputs to the
// intake.
func (l *Ledger) replaceInputs(d Deriver, e *Entry, all []*object.Object) (results []intake.Result) {
	if refused := d.Replace(e.Kind, e.Namespace, all); refused.RefusedTotal > 0 {
		results = append(results, refused)
	}
	if !slices.ContainsFunc(l.entries[e.Kind], func(other *Entry) bool { return !other.listed }) {
		d.Synced(e.Kind)
	}
	if l.awaitsInputs(d) {
		return results
	}
	return append(results, l.tell(l.derive(d.Answer))...)
}

// changes returns the changes of the outputs of a Deriver.
func (l *Ledger) changes(d Deriver) []intake.Update {
	return l.derive(func() []intake.Update { return d.Changes(l.awaitsInputs(d)) })
}

// derive returns the updates that f makes. If f panics, it returns nothing: the former outputs stay served,
// and their scopes stay unanswered.
func (l *Ledger) derive(f func() []intake.Update) (updates []intake.Update) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			l.feed.Tell(intake.Panicked{What: "what is made of other objects", Panic: p})
			updates = nil
		}
	}()
	return f()
}

// Change calls change, which sets options of a Deriver.
func (l *Ledger) Change(d Deriver, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.tell(l.changes(d))
}

// Settle calls change, which sets options of Derivers. It notes that the entry with these options can be read.
func (l *Ledger) Settle(e *Entry, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	followed := e.ok
	e.listed, e.ok = true, true
	_, waits := l.awaited[e]
	switch {
	case !l.open && !followed:
		l.begin(nil)
	case waits:
		l.answer(e)
	default:
		for _, d := range l.taking(e.Kind) {
			l.tell(l.changes(d))
		}
	}
}

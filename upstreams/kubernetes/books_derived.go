package kubernetes

import (
	"strings"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
)

// refusal returns a result that refuses an object, nil without an error.
func refusal(err error, t *target, o *object) []intake.Result {
	if err == nil {
		return nil
	}
	var r intake.Result
	r.Refuse(t.kind.String()+" "+o.fullName(), err)
	return []intake.Result{r}
}

// replaceInputs takes over all inputs that a target has. When all inputs have come, it tells what is
// made of them.
func (l *ledger) replaceInputs(t *target, all []*object) (results []intake.Result) {
	var refused intake.Result
	for _, r := range l.ingresses.list(t, all) {
		refused.Refused = append(refused.Refused, r)
		refused.RefusedTotal++
	}
	if refused.RefusedTotal > 0 {
		results = append(results, refused)
	}
	listed := true
	for _, other := range l.targets[t.kind] {
		listed = listed && other.listed
	}
	if listed {
		l.ingresses.synced(t.kind)
	}
	if l.awaitsInputs() {
		return results
	}
	return append(results, l.tell(l.convert(l.converted))...)
}

// convert returns what f makes of the Ingresses. Where the code panics over them, that is nothing: what was
// made before is served, and the scopes wait.
func (l *ledger) convert(f func() []intake.Update) (updates []intake.Update) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			l.ingresses.panicked("the Ingresses", p)
			updates = nil
		}
	}()
	return f()
}

// changed is what has changed of what is made of the Ingresses.
func (l *ledger) changed() []intake.Update { return l.ingresses.changes(l.awaitsInputs()) }

// settle takes over the options of a MeshConfig, and notes that it can be read.
func (l *ledger) settle(t *target, o ingress.Options) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ingresses.settle(o)
	followed := t.ok
	t.listed, t.ok = true, true
	_, waits := l.awaited[t]
	switch {
	case !l.open && !followed:
		l.begin(nil)
	case waits:
		l.answer(t)
	default:
		l.tell(l.convert(l.changed))
	}
}

// converted is the answer of the scopes of what is made of Ingresses.
func (l *ledger) converted() []intake.Update {
	if l.ingresses.owes() {
		return l.ingresses.complete()
	}
	if changes := l.ingresses.changes(false); len(changes) > 0 {
		return changes
	}
	updates := make([]intake.Update, len(ingressOutputs))
	for i, kind := range ingressOutputs {
		updates[i] = unchanged(kind)
		updates[i].Scope = intake.DerivedScope(kind)
	}
	return updates
}

// choose takes over namespaces. What is in those that are not mirrored any more is gone, in one step.
func (l *ledger) choose(all bool, namespaces []*object) []intake.Result {
	gained, lost := l.choice.set(all, namespaces)
	for _, t := range l.choice.lacking(gained) {
		t.restart()
	}
	var refused intake.Result
	for _, ns := range namespaces {
		if ns.err != nil {
			refused.Refuse("Namespace "+ns.name, ns.err)
		}
	}
	results := l.leave(lost)
	if refused.RefusedTotal > 0 {
		results = append(results, refused)
	}
	return results
}

// leave takes over that namespaces are not mirrored any more.
func (l *ledger) leave(lost []string) []intake.Result {
	if len(lost) == 0 {
		return nil
	}
	var updates []intake.Update
	for _, kind := range l.kinds {
		if gone := l.within(kind.String(), lost); len(gone) > 0 {
			u := unchanged(kind)
			u.Removed, u.Part = names(gone), l.awaits(kind)
			updates = append(updates, u)
			l.passOver(l.targets[kind], lost)
		}
	}
	if l.ingresses != nil {
		l.ingresses.leave(lost)
		for kind := range ingressInputs {
			l.passOver(l.targets[kind], lost)
		}
		updates = append(updates, l.convert(l.changed)...)
	}
	return l.tell(updates)
}

// passOver notes that targets were passed over in namespaces.
func (l *ledger) passOver(targets []*target, namespaces []string) {
	for _, t := range targets {
		for _, ns := range namespaces {
			l.choice.note(t, ns)
		}
	}
}

// within returns the names of a scope that are in one of some namespaces.
func (l *ledger) within(scope string, namespaces []string) (all []string) {
	in := make(map[string]bool, len(namespaces))
	for _, ns := range namespaces {
		in[ns] = true
	}
	for name := range l.feed.Versions(scope) {
		if namespace, _, _ := strings.Cut(name, "/"); in[namespace] {
			all = append(all, name)
		}
	}
	return all
}

// converting returns what becomes of the Ingresses.
func (l *ledger) converting() *IngressDetail {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := &IngressDetail{Refused: len(l.ingresses.undone[ingressKind])}
	i.Problems, i.ProblemsTotal = l.ingresses.problems()
	i.Ingresses, i.Converted = l.ingresses.state.Counts()
	return i
}

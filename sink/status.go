package sink

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
)

// Status is the state of a sink. Counters are since its start.
type Status struct {
	Name string `json:"name"`
	View string `json:"view"`
	Mode string `json:"mode"`
	// Server is the URL of the API server, Cluster the UID of its namespace kube-system, empty while unknown.
	Server  string `json:"server,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	// State is starting, following, writing, standby, promoted, blocked, frozen or failed. Problems are why, and what to do.
	State    string   `json:"state"`
	Problems []string `json:"problems,omitempty"`
	// Leader is set while this process writes. Holder is the process that does.
	Leader bool   `json:"leader"`
	Holder string `json:"holder,omitempty"`
	// Frozen and Promoted are who has frozen or promoted it.
	Frozen   *lease.Note `json:"frozen,omitempty"`
	Promoted *lease.Note `json:"promoted,omitempty"`
	// Desired counts the resources that the sink writes, Objects those of the sink in the cluster.
	Desired int `json:"desired"`
	Objects int `json:"objects"`
	// Todo counts what is not as desired, by what is to be done: create, apply, delete, held or left.
	Todo map[string]int `json:"todo,omitempty"`
	// Examples are some of them.
	Examples []Todo `json:"examples,omitempty"`
	// NeverWritten counts resources of the view that no sink writes, by reason.
	NeverWritten map[string]int `json:"neverWritten,omitempty"`
	// Troubles are objects that can not be written, at most a hundred. TroublesByState counts all.
	Troubles        []Trouble      `json:"troubles,omitempty"`
	TroublesByState map[string]int `json:"troublesByState,omitempty"`
	Held            *plan.Held     `json:"held,omitempty"`
	// Drifted counts changes by others. Drifts are the newest, at most a hundred.
	Drifted uint64  `json:"drifted,omitempty"`
	Drifts  []Drift `json:"drifts,omitempty"`
	// Added counts objects with fields that others have added at the site. They stay.
	Added int `json:"added,omitempty"`
	// Unwritten counts objects that are to be written, and that nobody has written for a minute.
	Unwritten int `json:"unwritten,omitempty"`
	// Complete is when the cluster last had all that is desired, nothing was to be deleted, and all its kinds were followed.
	Complete time.Time `json:"complete,omitzero"`

	suspended bool // it is not to write
}

// Todo is what is to be done with an object, or why it is left as it is.
type Todo struct {
	Resource string `json:"resource"`
	Do       string `json:"do"`
	Reason   string `json:"reason,omitempty"`
}

// Status returns the state of all sinks, or of one if it has a name, sorted by name.
func (s *Set) Status(name string) (all []Status) {
	for _, e := range s.running() {
		if name == "" || e.spec.Name == name {
			all = append(all, e.status())
		}
	}
	return all
}

// Problems returns a line for each sink that nobody writes, though there is something to write.
func (s *Set) Problems() (lines []string) {
	for _, e := range s.running() {
		e.mu.Lock()
		late := time.Since(e.idle) >= unwrittenAfter && !e.suspended()
		e.mu.Unlock()
		if !late {
			continue
		}
		if st := e.status(); st.Unwritten > 0 {
			lines = append(lines, fmt.Sprintf("sink %s: %s", st.Name, strings.Join(st.Problems[:min(2, len(st.Problems))], "; ")))
		}
	}
	return lines
}

func (e *engine) status() Status {
	ls := e.lease.Status()
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Status{
		Name: e.spec.Name, View: e.spec.View, Mode: e.spec.Mode, Server: e.client.Current().Server(), Cluster: e.uid,
		Leader: ls.Held, Holder: ls.Holder, Complete: e.complete, Drifted: e.drift,
		Frozen: noteOf(e.frozen()), Promoted: noteOf(e.promoted()),
		Todo: map[string]int{}, NeverWritten: map[string]int{}, TroublesByState: map[string]int{},
	}
	st.suspended = e.suspended()
	st.Desired, st.Objects = e.core.Counts()
	problems, listed := e.kindProblems()
	for _, what := range slices.Sorted(maps.Keys(e.errs)) {
		if err := e.errs[what]; err != nil {
			problems = append(problems, err.Error())
		}
	}
	if st.State = "following"; e.applies() {
		st.State = "standby"
	}
	if ls.Problem != "" && !slices.Contains(problems, ls.Problem) {
		problems = append(problems, ls.Problem)
	}
	p := e.failure.Load()
	switch {
	case p != nil:
		st.State = "failed"
		problems = append(problems, "the code for it has panicked: "+text.Abbreviate(p.Error())+": report it, and restart the relay")
	case e.other != nil:
		st.State, st.Objects = "blocked", 0
		problems = append(problems, e.other.Error())
	case e.same != "":
		st.State = "blocked"
		problems = append(problems, e.same)
	case st.Promoted != nil:
		st.State = "promoted"
	case !listed || !e.read:
		st.State = "starting"
	case ls.Lost:
		st.State = "blocked"
	case st.Frozen != nil:
		st.State = "frozen"
	case ls.Held && e.applies():
		st.State = "writing"
	}
	for _, why := range e.excluded {
		st.NeverWritten[why]++
	}
	other, written := ls.Other, 0
	e.core.Keys(func(key mirror.Key) {
		l := e.core.Live(key)
		if l != nil && l.Added && !l.Drifted { // one that was edited may not be added
			st.Added++
		}
		if l != nil && l.Relay != "" {
			other = l.Relay
			written++
		}
		if a := e.core.Next(key); a.Verb != plan.Nothing {
			if a.Verb.Writes() && e.due(key) {
				st.Unwritten++
			}
			st.Todo[words[a.Verb]]++
			if len(st.Examples) < maxListed {
				st.Examples = append(st.Examples, Todo{key.String(), words[a.Verb], a.Reason})
			}
		}
	})
	if now := time.Now(); now.Sub(e.idle) < unwrittenAfter || st.suspended {
		st.Unwritten = 0
	} else if st.Unwritten > 0 {
		problems = append([]string{fmt.Sprintf("nobody has written since %s, with %d to be written", e.idle.UTC().Format(time.RFC3339), st.Unwritten)}, problems...)
	}
	if other != "" {
		problems = append(problems, fmt.Sprintf("the relay %s has a sink of this name in this cluster, too (%d of the objects are its): give one of both another name, or one provenance.relay to all replicas", text.Abbreviate(other), written))
	}
	st.Problems = problems
	slices.SortFunc(st.Examples, func(a, b Todo) int { return cmp.Compare(a.Resource, b.Resource) })
	for _, t := range e.troubles {
		st.TroublesByState[t.State]++
		if len(st.Troubles) < maxListed {
			st.Troubles = append(st.Troubles, *t)
		}
	}
	slices.SortFunc(st.Troubles, func(a, b Trouble) int { return cmp.Compare(a.Resource, b.Resource) })
	for _, d := range e.drifts {
		if d.Times > 0 {
			st.Drifts = append(st.Drifts, *d)
		}
	}
	slices.SortFunc(st.Drifts, func(a, b Drift) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Resource, b.Resource)) })
	st.Drifts = st.Drifts[:min(maxListed, len(st.Drifts))]
	if h := e.core.Held(); h.ID != "" {
		st.Held = &h
	}
	return st
}

func noteOf(n lease.Note) *lease.Note {
	if n == (lease.Note{}) {
		return nil
	}
	return &n
}

// words are the verbs in a Status.
var words = map[plan.Verb]string{plan.Create: "create", plan.Apply: "apply", plan.Delete: "delete", plan.Hold: "held", plan.Skip: "left"}

// applied returns the state of a resource.
func (e *engine) applied(key mirror.Key) Applied {
	e.reading.Lock() // a key has no mark while it is read
	defer e.reading.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Applied{Sink: e.spec.Name}
	d := e.core.Wanted(key)
	a := e.core.Next(key)
	t := e.troubles[key]
	switch {
	case e.other != nil:
		out.State, out.Reason = stateFailed, e.other.Error()
	case e.excluded[key] != "":
		out.State, out.Reason = "excluded", e.excluded[key]
	case !e.read || e.marked(key):
		out.State, out.Reason = "pending", plan.ReasonStarting
	case t != nil:
		out.State, out.Reason = t.State, t.Reason
	case a.Verb != plan.Nothing:
		out.State, out.Reason = "pending", cmp.Or(a.Reason, "to "+words[a.Verb])
	case d != nil && *d == e.core.Live(key).Digest:
		out.State = "applied"
	default:
		out.State = Absent
	}
	return out
}

// marked reports whether a key is to be read again. The caller holds reading.
func (e *engine) marked(key mirror.Key) bool {
	e.marks.Lock()
	defer e.marks.Unlock()
	return e.marks.all || e.marks.keys.Has(key)
}

package sink

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"meshrelay/internal/text"
	"meshrelay/mirror"
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
	// State is starting, following, writing, standby, blocked, frozen, pruning or failed. Problems are why, and what to do.
	State    string   `json:"state"`
	Problems []string `json:"problems,omitempty"`
	// Leader is set while this process writes. Holder is the process that does.
	Leader bool    `json:"leader"`
	Holder string  `json:"holder,omitempty"`
	Frozen *Frozen `json:"frozen,omitempty"`
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
	Held            *Held          `json:"held,omitempty"`
	// Drifted counts changes by others. Drifts are the newest, at most a hundred.
	Drifted uint64  `json:"drifted,omitempty"`
	Drifts  []Drift `json:"drifts,omitempty"`
	// Writes counts requests by result, Deletes deletions.
	Writes  map[string]uint64 `json:"writes,omitempty"`
	Deletes uint64            `json:"deletes,omitempty"`
	// Complete is when the cluster last had all that is desired, and nothing else of the sink.
	Complete time.Time `json:"complete,omitzero"`
}

// Todo is what is to be done with an object, or why it is left as it is.
type Todo struct {
	Resource string `json:"resource"`
	Do       string `json:"do"`
	Reason   string `json:"reason,omitempty"`
}

// Trouble is an object that is not as desired. State is conflict, foreign, refused, namespaceMissing, kindNotServed or
// failed.
type Trouble struct {
	Resource string    `json:"resource"`
	State    string    `json:"state"`
	Reason   string    `json:"reason"`
	Since    time.Time `json:"since"`
	Retry    time.Time `json:"retry,omitzero"`
}

// Held are the deletions that the guard of a sink holds. Examples are some of them.
type Held struct {
	ID       string   `json:"id"`
	Reason   string   `json:"reason"`
	Removals int      `json:"removals"`
	Examples []string `json:"examples"`
}

// Drift is an object that others have changed or deleted.
type Drift struct {
	Resource string    `json:"resource"`
	Manager  string    `json:"manager,omitempty"`
	What     string    `json:"what"` // changed or deleted
	Times    int       `json:"times"`
	At       time.Time `json:"at"`
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

func (e *engine) status() Status {
	same, ls := e.blocked(), e.lease.Status()
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Status{
		Name: e.spec.Name, View: e.spec.View, Mode: e.spec.Mode, Server: e.server, Cluster: e.uid, Frozen: e.frozen,
		Leader: ls.Held, Holder: ls.Holder, Complete: e.complete,
		Drifted: e.counts.drift, Deletes: e.counts.deletes, Writes: maps.Clone(e.counts.writes),
	}
	st.Desired, st.Objects = e.core.Counts()
	problems, listed := e.kindProblems()
	for _, err := range e.errs {
		if err != nil {
			problems = append(problems, err.Error())
		}
	}
	if ls.Problem != "" && e.writes() {
		problems = append(problems, ls.Problem)
	}
	st.State = "following"
	switch p := e.failure.Load(); {
	case p != nil:
		st.State = "failed"
		problems = append(problems, "the code for it has panicked: "+text.Abbreviate(p.Error())+": report it, and restart the relay")
	case same != "":
		st.State = "blocked"
		problems = append(problems, same)
	case !listed || !e.read:
		st.State = "starting"
	case e.frozen != nil:
		st.State = "frozen"
	case e.spec.emptied:
		st.State = "pruning"
	case ls.Held && e.writes():
		st.State = "writing"
	case e.writes():
		st.State = "standby"
	}
	st.Problems = problems
	e.describe(&st)
	return st
}

// words are the verbs in a Status.
var words = map[plan.Verb]string{plan.Create: "create", plan.Apply: "apply", plan.Delete: "delete", plan.Hold: "held", plan.Skip: "left"}

// describe adds what is to be done. The caller holds mu.
func (e *engine) describe(st *Status) {
	st.Todo, st.NeverWritten, st.TroublesByState = map[string]int{}, map[string]int{}, map[string]int{}
	for _, why := range e.excluded {
		st.NeverWritten[why]++
	}
	e.core.Keys(func(key mirror.Key) {
		a := e.core.Next(key)
		if a.Verb == plan.Nothing {
			return
		}
		do := words[a.Verb]
		if st.Todo[do]++; len(st.Examples) < maxListed {
			st.Examples = append(st.Examples, Todo{key.String(), do, a.Reason})
		}
	})
	slices.SortFunc(st.Examples, func(a, b Todo) int { return cmp.Compare(a.Resource, b.Resource) })
	for _, key := range slices.SortedFunc(maps.Keys(e.troubles), compareKeys) {
		t := e.troubles[key]
		if st.TroublesByState[t.state]++; len(st.Troubles) < maxListed {
			st.Troubles = append(st.Troubles, Trouble{key.String(), t.state, t.reason, t.since, t.retry})
		}
	}
	if h := e.core.Held(); h.ID != "" {
		st.Held = &Held{ID: h.ID, Reason: h.Reason, Removals: len(h.Keys)}
		for _, key := range h.Keys[:min(maxListed, len(h.Keys))] {
			st.Held.Examples = append(st.Held.Examples, key.String())
		}
	}
	all := sortedDrifts(e.drifts)
	for i := len(all) - 1; i >= 0 && len(st.Drifts) < maxListed; i-- {
		d := all[i]
		st.Drifts = append(st.Drifts, Drift{d.key.String(), d.manager, d.what, d.times, d.at})
	}
}

func compareKeys(a, b mirror.Key) int { return cmp.Compare(a.String(), b.String()) }

type keyedDrift struct {
	key mirror.Key
	*drift
}

// sortedDrifts returns drifts, the oldest first.
func sortedDrifts(in map[mirror.Key]*drift) []keyedDrift {
	all := make([]keyedDrift, 0, len(in))
	for key, d := range in {
		all = append(all, keyedDrift{key, d})
	}
	slices.SortFunc(all, func(a, b keyedDrift) int { return cmp.Or(a.at.Compare(b.at), compareKeys(a.key, b.key)) })
	return all
}

// applied returns the state of a resource.
func (e *engine) applied(key mirror.Key) Applied {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Applied{Sink: e.spec.Name}
	d, wanted := e.core.Wanted(key)
	a := e.core.Next(key)
	t := e.troubles[key]
	switch {
	case e.excluded[key] != "":
		out.State, out.Reason = "excluded", e.excluded[key]
	case !e.read || e.marked(key):
		out.State, out.Reason = "pending", plan.ReasonStarting
	case t != nil:
		out.State, out.Reason = t.state, t.reason
	case a.Verb != plan.Nothing:
		out.State, out.Reason = "pending", cmp.Or(a.Reason, "to "+words[a.Verb])
	case wanted && d.Digest == e.core.Live(key).Digest:
		out.State = "applied"
	default:
		out.State = "absent"
	}
	return out
}

// marked reports whether a key is to be read again.
func (e *engine) marked(key mirror.Key) bool {
	e.marks.Lock()
	defer e.marks.Unlock()
	_, is := e.marks.keys[key]
	_, kind := e.marks.kinds[key.Kind]
	return is || kind || e.marks.all
}

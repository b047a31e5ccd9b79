// Package registry decides which clusters are followed, from the entries of a hub.
//
// It handles new clusters, clusters that are gone, several entries for one cluster, and kubeconfigs that are
// new or can not be used. It does no I/O, and has no goroutine, lock or clock.
//
// The package must not know how kubeconfigs are read, or how an upstream uses them.
package registry

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Policy has the settings of a part, and the clusters of other parts.
type Policy struct {
	// RemoveAfter is the time until an orphaned cluster is removed; 0 means never.
	RemoveAfter time.Duration
	// Clusters that are gone are held if they are more than Percent of all clusters and more than Count.
	Percent, Count int
	// Max bounds the clusters.
	Max    int
	Ignore []string // IDs
	// Names are the names of the upstreams in the config, and IDs their clusters. The values are for messages.
	// Clusters with these names or IDs are not followed any more.
	Names, IDs map[string]string
	// Others are the clusters that other registries follow, by Cluster.Name. This registry does not follow
	// them.
	Others map[string]Other
}

// Other is a cluster that another registry follows.
type Other struct{ ID, By, Origin string }

// Entry is one kubeconfig of a hub.
type Entry struct {
	ID     string // of the cluster; empty if the whole origin can not be used
	Origin string // the place of the kubeconfig, for example "secret istio-system/east"
	// Kubeconfig is empty if it can not be used. Problem is then the reason.
	Kubeconfig []byte
	Problem    string
	Priority   int
	Note       string // a remark about the cluster, from the origin
}

// State is the state of a followed cluster.
type State string

// The states of a cluster. In each state, the resources of the cluster are served.
const (
	Found State = "found"
	// Orphaned: its kubeconfig is gone. The cluster is removed after Policy.RemoveAfter.
	Orphaned State = "orphaned"
	// Held: its kubeconfig is gone, with many others. It waits for an operator.
	Held State = "held"
)

// States returns all states of a cluster, in the order of the documents.
func States() []State { return []State{Found, Orphaned, Held} }

// Cluster is a followed cluster. The disk keeps it without its kubeconfig.
type Cluster struct {
	ID string `json:"id"`
	// Name is the name of its upstream.
	Name   string    `json:"name"`
	Origin string    `json:"origin"`
	State  State     `json:"state"`
	Since  time.Time `json:"since"` // of the state
	// Released is set when an operator has released the cluster, so that it is not held again.
	Released bool `json:"released,omitempty"`
	Priority int  `json:"priority,omitempty"`
	// Problem is the reason why its newest kubeconfig is not used.
	Problem string `json:"problem,omitempty"`
	Note    string `json:"note,omitempty"`
	// Rotations counts the kubeconfigs after the first one since the start.
	Rotations uint64 `json:"rotations,omitempty"`
	// Kubeconfig is the last good one. It is empty until one is found after a start.
	Kubeconfig []byte `json:"-"`
}

// Refused is an entry that is not followed.
type Refused struct {
	ID     string `json:"id"`
	Origin string `json:"origin"`
	Reason string `json:"reason"`
}

// Event is one of Restored, Listed, Failed, SetPolicy, Release, Remove and Tick.
type Event any

type (
	// Restored has the clusters from disk. If it comes, it is the first event.
	Restored struct{ Clusters []Cluster }
	// Listed has all entries.
	Listed struct{ Entries []Entry }
	// Failed means that the entries can not be read.
	Failed struct{ Err error }
	// SetPolicy replaces the policy.
	SetPolicy struct{ Policy Policy }
	// Release makes held clusters orphaned.
	Release struct{}
	// Remove removes an orphaned or held cluster.
	Remove struct{ ID string }
	// Tick runs expired timers. It may come at any time, and must come at Output.Wake.
	Tick struct{}
)

// Output is the result of a step.
type Output struct {
	// Set is set when the list of followed clusters or its order has changed.
	Set bool
	// Changed is set when the file or the status must be written again. It is always set together with Set.
	Changed bool
	// Released counts the released clusters.
	Released int
	// Wake is the time of the next Tick, zero for never.
	Wake  time.Time
	Notes []Note
}

// Note is a line for the log.
type Note struct {
	Level   slog.Level
	Message string
	Args    []any
}

// ErrNotPossible matches errors of orders that can not be carried out. Their texts have the reason.
var ErrNotPossible = errors.New("not possible")

// notPossible is an ErrNotPossible with a text.
type notPossible string

func (e notPossible) Error() string { return string(e) }

// Is makes errors.Is match ErrNotPossible.
func (notPossible) Is(target error) bool { return target == ErrNotPossible }

// Registry has the followed clusters of one part of the config.
type Registry struct {
	policy     Policy
	clusters   map[string]*Cluster
	refused    []Refused // the first maxRefused
	unfollowed int       // number of all refused entries
	// read is set if the last reading of the entries succeeded.
	read    bool
	failure string

	now time.Time // of the step
	out Output
}

// New returns a Registry that knows no cluster.
func New(p Policy) *Registry {
	return &Registry{policy: p, clusters: map[string]*Cluster{}}
}

// Copy returns a copy. Later steps of the registry do not change it.
func (r *Registry) Copy() *Registry {
	own := *r
	own.clusters, own.refused = make(map[string]*Cluster, len(r.clusters)), slices.Clone(r.refused)
	for id, c := range r.clusters {
		one := *c
		own.clusters[id] = &one
	}
	return &own
}

// Step applies an event. The error is for an order, and matches ErrNotPossible.
func (r *Registry) Step(now time.Time, e Event) (Output, error) {
	r.now, r.out = now, Output{}
	before := r.order()
	var err error
	switch e := e.(type) {
	case Restored:
		for _, c := range e.Clusters {
			if c.Rotations = 0; r.elsewhere(c.ID, c.Name) == "" {
				r.clusters[c.ID] = &c
			}
		}
		r.obey()
	case Listed:
		r.listed(e.Entries)
	case Failed:
		if r.failure == "" {
			r.note(slog.LevelWarn, "clusters can not be read, all stay", "err", e.Err)
		}
		r.read, r.failure = false, e.Err.Error()
	case SetPolicy:
		r.policy = e.Policy
		r.obey()
	case Release:
		err = r.release()
	case Remove:
		err = r.remove(e.ID)
	}
	r.expire()
	r.out.Set = !slices.Equal(before, r.order())
	r.out.Changed = r.out.Changed || r.out.Set
	return r.out, err
}

// Clusters returns the followed clusters, those that are found first, sorted by priority and ID.
func (r *Registry) Clusters() (all []Cluster) {
	for _, id := range r.order() {
		all = append(all, *r.clusters[id])
	}
	return all
}

// Follows reports whether a cluster is followed.
func (r *Registry) Follows(id string) bool { return r.clusters[id] != nil }

// maxRefused bounds the refused entries that are kept.
const maxRefused = 500

// Refused returns the first refused entries, and the number of all.
func (r *Registry) Refused() (some []Refused, total int) { return r.refused, r.unfollowed }

// Failure returns the error of the last reading of the entries, empty if it succeeded.
func (r *Registry) Failure() string { return r.failure }

func (r *Registry) order() []string {
	return slices.SortedFunc(maps.Keys(r.clusters), func(a, b string) int {
		place := func(id string) int { return slices.Index(States(), r.clusters[id].State) } // of two IDs of a cluster the first counts
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(r.clusters[a].Priority, r.clusters[b].Priority), strings.Compare(a, b))
	})
}

func (r *Registry) note(level slog.Level, message string, args ...any) {
	r.out.Notes = append(r.out.Notes, Note{level, message, args})
}

// drop removes a cluster.
func (r *Registry) drop(c *Cluster, why string) {
	delete(r.clusters, c.ID)
	r.note(slog.LevelWarn, "cluster removed", "cluster", c.ID, "reason", why)
}

// obey removes clusters that the policy forbids.
func (r *Registry) obey() {
	for _, id := range r.order() {
		if c := r.clusters[id]; slices.Contains(r.policy.Ignore, id) {
			r.drop(c, "it is ignored")
		} else if why := r.taken(id, c.Name); why != "" {
			r.drop(c, why)
		}
	}
}

// taken returns why the config forbids a name or an ID, empty if it does not.
func (r *Registry) taken(id, name string) string {
	if who := r.policy.IDs[id]; who != "" {
		return who + " already"
	}
	if who := r.policy.Names[name]; who != "" {
		return fmt.Sprintf("its upstream would be %q, which is %s", name, who)
	}
	return ""
}

// elsewhere returns why a new cluster belongs to another registry, empty if it does not.
func (r *Registry) elsewhere(id, name string) string {
	switch o, is := r.policy.Others[name]; {
	case !is:
		return ""
	case o.ID == id:
		return fmt.Sprintf("%s follows that cluster already, from %s, and keeps it", o.By, o.Origin)
	default:
		return fmt.Sprintf("its upstream would be %q, which is that of cluster %s of %s", name, o.ID, o.By)
	}
}

var idShape = regexp.MustCompile(`^[-_.A-Za-z0-9]{1,253}$`)

// Valid reports whether a cluster from disk is well-formed.
func (c Cluster) Valid() bool {
	return idShape.MatchString(c.ID) && c.Name != "" && c.Name == NameOf(c.ID) && slices.Contains(States(), c.State)
}

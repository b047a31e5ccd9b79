package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// maxStatus bounds the bytes of an encoded Status.
const maxStatus = 2 << 20

// Status is what a replica tells about itself.
type Status struct {
	// Node is the node.id, Process identifies the process, and Config is the hash of the config file.
	Node    string `json:"node"`
	Version string `json:"version"`
	Process string `json:"process"`
	Config  string `json:"config,omitempty"`
	// Decisions is the number of the last decision that is in effect, but for upstreams that lack it.
	Decisions uint64 `json:"decisions,omitempty"`
	// Serving is false while the replica holds its clients. Clients counts them, and Synced those that have
	// acknowledged everything.
	Serving bool `json:"serving"`
	Clients int  `json:"clients"`
	Synced  int  `json:"synced"`
	// Time is the clock of the replica. Times of a Status are compared with this one only.
	Time      time.Time  `json:"time"`
	Upstreams []Upstream `json:"upstreams"`
}

// Upstream is what a replica has of an upstream.
type Upstream struct {
	Name string `json:"name"`
	// Content is a sum of all keys and versions. Replicas with the same Content serve the same.
	Content   string `json:"content"`
	Resources int    `json:"resources"`
	// InContact: it is connected and has told everything.
	InContact bool `json:"inContact"`
	// LastContact is the last known contact, zero if unknown.
	LastContact time.Time `json:"lastContact,omitzero"`
	// Held counts the held deletions.
	Held int `json:"held,omitempty"`
	// Lacks: the decision about it can not be carried out.
	Lacks bool `json:"lacks,omitempty"`
}

// Of returns the part of a Status about an upstream, nil for none.
func (s *Status) Of(upstream string) *Upstream {
	i := slices.IndexFunc(s.Upstreams, func(u Upstream) bool { return u.Name == upstream })
	if i < 0 {
		return nil
	}
	return &s.Upstreams[i]
}

// Replica is one replica, as this one knows it.
type Replica struct {
	// Peer is the address, empty for this replica.
	Peer string `json:"peer,omitempty"`
	// Reached is set while it answers. Problem is why it does not. Either is so since Since.
	Reached bool      `json:"reached"`
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since"`
	// Status is the last known one.
	Status Status `json:"status"`
	// Differences are the upstreams of which it serves another content than this replica.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is an upstream of which two replicas serve another content.
type Difference struct {
	Upstream string `json:"upstream"`
	// Here and There count the resources.
	Here  int `json:"here"`
	There int `json:"there"`
}

// Statuses asks all other replicas for the document "status". It returns the answers, by address, and why others give none.
func (s *Set) Statuses(ctx context.Context) (answers map[string]Status, failures []Failure) {
	var mu sync.Mutex // guards answers
	answers = map[string]Status{}
	failures = s.Each(ctx, "status", maxStatus, func(peer string, body io.Reader) error {
		var one Status
		if err := json.NewDecoder(body).Decode(&one); err != nil {
			return fmt.Errorf("its status does not decode: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		answers[peer] = one
		return nil
	})
	return answers, failures
}

// Update returns all replicas, this one first and others by address, from what Statuses returns. before is the former
// result.
func Update(now time.Time, before []Replica, own Status, answers map[string]Status, failures []Failure) (all []Replica) {
	was := map[string]Replica{}
	for _, r := range before {
		was[r.Peer] = r
	}
	add := func(peer string, s Status) {
		r := Replica{Peer: peer, Reached: true, Since: now, Status: s, Differences: differences(&own, &s)}
		if w := was[peer]; w.Reached && w.Status.Process == s.Process {
			r.Since = w.Since
		}
		all = append(all, r)
	}
	add("", own)
	for peer, s := range answers {
		add(peer, s)
	}
	for _, f := range failures {
		r := Replica{Peer: f.Peer, Problem: f.Err.Error(), Since: now, Status: was[f.Peer].Status}
		if w, known := was[f.Peer]; known && !w.Reached {
			r.Since = w.Since
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Replica) int { return cmp.Compare(a.Peer, b.Peer) })
	return all
}

// differences compares two replicas. Clients of one that does not serve yet see no difference.
func differences(own, other *Status) (out []Difference) {
	for _, u := range own.Upstreams {
		if there := other.Of(u.Name); own.Serving && other.Serving && there != nil && there.Content != u.Content {
			out = append(out, Difference{u.Name, u.Resources, there.Resources})
		}
	}
	return out
}

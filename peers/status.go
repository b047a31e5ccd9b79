// Package status has what replicas tell each other about themselves, and compares it. It has no I/O, goroutine or
// clock, and must not know how replicas are asked.
package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// MaxBytes bounds an encoded Status.
	MaxBytes = 2 << 20
	// Patience is how long replicas may differ before that counts: a change reaches them one after the other.
	Patience = 10 * time.Second

	maxUpstreams = 10_000
	maxText      = 253 // bytes
)

// Status is what a replica tells about itself.
type Status struct {
	// Node is the node.id, Process identifies the process, and Config is the hash of the config file.
	Node    string `json:"node"`
	Version string `json:"version"`
	Process string `json:"process"`
	Config  string `json:"config,omitempty"`
	// Decisions is the number of the last decision that is in effect.
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
	// Told: the upstream has told everything since the start. InContact: it is connected and has told everything.
	Told      bool `json:"told"`
	InContact bool `json:"inContact"`
	// LastContact is the last known contact, zero if unknown.
	LastContact time.Time `json:"lastContact,omitzero"`
	// Held counts the held deletions.
	Held   int  `json:"held,omitempty"`
	Frozen bool `json:"frozen,omitempty"`
}

// Decode reads a Status. The caller bounds its bytes.
func Decode(r io.Reader) (s Status, err error) {
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("its status does not decode: %w", err)
	}
	texts := []string{s.Node, s.Version, s.Process, s.Config}
	for _, u := range s.Upstreams {
		texts = append(texts, u.Name, u.Content)
	}
	long := func(text string) bool { return len(text) > maxText }
	if len(s.Upstreams) > maxUpstreams || slices.ContainsFunc(texts, long) || s.Process == "" {
		return Status{}, errors.New("its status is out of bounds: run the same release on all replicas")
	}
	return s, nil
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
	// Differences are the upstreams of which it serves another content than this replica, sorted by name.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is an upstream of which two replicas serve another content, since a time.
type Difference struct {
	Upstream string    `json:"upstream"`
	Since    time.Time `json:"since"`
	// Here and There count the resources.
	Here  int `json:"here"`
	There int `json:"there"`
}

// Table has all replicas. The zero value is empty. One goroutine at a time may use it.
type Table struct {
	own      Replica
	replicas map[string]Replica // by Peer
}

// Update takes the status of this replica, and what others have answered, or why they have not, by address.
func (t *Table) Update(now time.Time, own Status, answers map[string]Status, failures map[string]string) {
	if t.own.Since.IsZero() {
		t.own = Replica{Reached: true, Since: now}
	}
	t.own.Status = own
	next := map[string]Replica{}
	for peer, s := range answers {
		before := t.replicas[peer]
		r := Replica{Peer: peer, Reached: true, Since: now, Status: s, Differences: differences(now, &own, &s, before.Differences)}
		if before.Reached && before.Status.Process == s.Process {
			r.Since = before.Since
		}
		next[peer] = r
	}
	for peer, problem := range failures {
		r := t.replicas[peer]
		if r.Reached || r.Since.IsZero() {
			r.Since = now
		}
		r.Peer, r.Reached, r.Problem, r.Differences = peer, false, problem, nil
		next[peer] = r
	}
	t.replicas = next
}

// differences compares two replicas. Clients of one that does not serve yet see no difference.
func differences(now time.Time, own, other *Status, before []Difference) (out []Difference) {
	if !own.Serving || !other.Serving {
		return nil
	}
	theirs := map[string]Upstream{}
	for _, u := range other.Upstreams {
		theirs[u.Name] = u
	}
	for _, u := range own.Upstreams {
		there, has := theirs[u.Name]
		if !has || there.Content == u.Content {
			continue
		}
		d := Difference{Upstream: u.Name, Since: now, Here: u.Resources, There: there.Resources}
		for _, was := range before {
			if was.Upstream == u.Name {
				d.Since = was.Since
			}
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Upstream, b.Upstream) })
	return out
}

// Replicas returns all replicas, this one first and others by address. It is empty before the first Update.
func (t *Table) Replicas() (out []Replica) {
	if t.own.Since.IsZero() {
		return nil
	}
	out = append(out, t.own)
	for _, peer := range slices.Sorted(maps.Keys(t.replicas)) {
		out = append(out, t.replicas[peer])
	}
	return out
}

// Counts returns how many other replicas are reached and unreachable, and the number of upstreams of which a reached
// one has had another content for longer than Patience.
func (t *Table) Counts(now time.Time) (reached, unreachable, differ int) {
	upstreams := map[string]bool{}
	for _, r := range t.replicas {
		if !r.Reached {
			unreachable++
			continue
		}
		reached++
		for _, d := range r.Differences {
			if now.Sub(d.Since) > Patience {
				upstreams[d.Upstream] = true
			}
		}
	}
	return reached, unreachable, len(upstreams)
}

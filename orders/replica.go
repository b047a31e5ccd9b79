package orders

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	replicaKey = "replica."
	// awayAfter is how long the report of a replica that runs may be the same. It is written as often as the others tell.
	awayAfter  = 2 * time.Minute
	leastPause = 5 * time.Second
	mostPause  = 25 * time.Second
)

// Report is what a replica tells.
type Report struct {
	Process string `json:"process"`
	// Follows is the highest counter that it knows. Its orders are in force there, but for those of Lacks, which has why not,
	// by upstream.
	Follows uint64            `json:"follows"`
	Lacks   map[string]string `json:"lacks,omitempty"`
	// Holds are the IDs of the newest open holds.
	Holds []Hold `json:"holds,omitempty"`
	// Beat counts the reports of the process.
	Beat uint64 `json:"beat"`
}

// Hold names deletions that a guard holds.
type Hold struct {
	Upstream string `json:"upstream"`
	ID       string `json:"id"`
}

// Replica is a replica, as another one or itself knows it.
type Replica struct {
	Name string `json:"name"`
	Self bool   `json:"self,omitempty"`
	// Away: it was not heard of for a while. Heard is by the clock of the reader.
	Away  bool      `json:"away,omitempty"`
	Heard time.Time `json:"heard"`
	Report
}

// Roster has the reports of all replicas.
type Roster struct {
	Name, Process string
	heard         map[string]Replica
	read, wrote   time.Time // the last look, and the last report
}

func (r *Roster) twin() string { return r.Name + " (another process)" }

// Read takes the data of a ConfigMap.
func (r *Roster) Read(now time.Time, data map[string]string) {
	next, gap := map[string]Replica{}, now.Sub(r.read) >= awayAfter // in a gap, nobody could be heard of
	if r.read = now; r.Twin(now) {
		next[r.twin()] = r.heard[r.twin()] // this process has written over it
	}
	for key, text := range data {
		name, is := strings.CutPrefix(key, replicaKey)
		h := Replica{Name: name, Heard: now}
		if !is || json.Unmarshal([]byte(text), &h.Report) != nil {
			continue
		}
		switch was, known := r.heard[name]; {
		case known && !gap && textOf(was.Report) == textOf(h.Report):
			h.Heard = was.Heard
		case name != r.Name:
		case h.Process == r.Process:
			r.wrote = now
		case !r.wrote.IsZero():
			twin := h
			twin.Name = r.twin()
			next[twin.Name] = twin
		}
		next[name] = h
	}
	r.heard = next
}

// Twin reports whether another process uses the name of this replica.
func (r *Roster) Twin(now time.Time) bool { return now.Sub(r.heard[r.twin()].Heard) < awayAfter }

// Replicas returns all replicas, this one first, with the report that it is about to write.
func (r *Roster) Replicas(now time.Time, own Report) []Replica {
	all := []Replica{{Name: r.Name, Self: true, Heard: now, Report: own}}
	for _, name := range slices.Sorted(maps.Keys(r.heard)) {
		if h := r.heard[name]; name != r.Name {
			h.Away = now.Sub(h.Heard) >= awayAfter
			all = append(all, h)
		}
	}
	return all
}

// Due returns when the report is to be written, if nothing else changes.
func (r *Roster) Due(own Report) time.Time {
	is := r.heard[r.Name]
	if own.Process, own.Beat = r.Process, is.Beat; textOf(own) == textOf(is.Report) {
		return is.Heard.Add(mostPause)
	}
	return r.wrote.Add(leastPause) // each replica reads the ConfigMap when it changes
}

// Write puts the own report into the data of a ConfigMap.
func (r *Roster) Write(data map[string]string, own Report) {
	own.Process, own.Beat = r.Process, r.heard[r.Name].Beat+1
	data[replicaKey+r.Name] = textOf(own)
}

// Forget removes the reports of replicas that are away from the data of a ConfigMap.
func (r *Roster) Forget(now time.Time, data map[string]string) {
	for _, one := range r.Replicas(now, Report{}) {
		if one.Away {
			delete(data, replicaKey+one.Name)
		}
	}
}

package clusters

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// Status is the state of one part of the config.
type Status struct {
	Name string `json:"name"`
	// From is the place where the clusters are found.
	From string `json:"from"`
	// ReadAt is the time of the last successful reading. Error is the error of the newest one, empty if it
	// succeeded.
	ReadAt time.Time `json:"readAt,omitzero"`
	Error  string    `json:"error,omitempty"`
	// Clusters are the followed clusters, in the order of their upstreams. Refused are entries that are not
	// followed.
	Clusters []ClusterStatus    `json:"clusters"`
	Refused  []registry.Refused `json:"refused,omitempty"`
	// RefusedTotal counts all refused entries; Refused has only the first ones.
	RefusedTotal int `json:"refusedTotal,omitempty"`
}

// ClusterStatus is the state of a followed cluster.
type ClusterStatus struct {
	registry.Cluster
	// RemoveAt is the time when an orphaned cluster will be removed, zero for never.
	RemoveAt time.Time `json:"removeAt,omitzero"`
}

// Status returns the state of each part of the config.
func (f *Finder) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Status, 0, len(f.parts))
	for _, p := range f.parts {
		st := Status{
			Name: p.cfg.Name, From: "secrets in " + p.cfg.Secrets.Namespace, ReadAt: p.readAt, Error: p.registry.Failure(),
			Clusters: []ClusterStatus{},
		}
		st.Refused, st.RefusedTotal = p.registry.Refused()
		for _, c := range p.registry.Clusters() {
			one := ClusterStatus{Cluster: c}
			one.Kubeconfig = nil // it is a secret
			if after := p.cfg.RemoveAfter.D(); c.State == registry.Orphaned && after > 0 {
				one.RemoveAt = c.Since.Add(after)
			}
			st.Clusters = append(st.Clusters, one)
		}
		all = append(all, st)
	}
	return all
}

var (
	clustersDesc = prometheus.NewDesc("relay_clusters", "Clusters that were found, by what is the case with them.", []string{"clusters", "state"}, nil)
	readableDesc = prometheus.NewDesc("relay_clusters_readable", "Whether it can be read now which clusters there are.", []string{"clusters"}, nil)
)

// Describe implements prometheus.Collector.
func (f *Finder) Describe(ch chan<- *prometheus.Desc) {
	ch <- clustersDesc
	ch <- readableDesc
}

// Collect implements prometheus.Collector. It sends without the lock: the receiver may wait for it.
func (f *Finder) Collect(ch chan<- prometheus.Metric) {
	for _, st := range f.Status() {
		gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append([]string{st.Name}, labels...)...)
		}
		counts := map[registry.State]int{}
		for _, c := range st.Clusters {
			counts[c.State]++
		}
		for _, state := range registry.States() {
			gauge(clustersDesc, float64(counts[state]), string(state))
		}
		gauge(clustersDesc, float64(st.RefusedTotal), "refused")
		readable := 0.0
		if st.Error == "" && !st.ReadAt.IsZero() {
			readable = 1
		}
		gauge(readableDesc, readable)
	}
}

// Mark sets Found in the status of the upstreams of found clusters.
func (f *Finder) Mark(all []upstreams.Status) []upstreams.Status {
	found := map[string]*upstreams.FoundStatus{}
	for _, st := range f.Status() {
		for _, c := range st.Clusters {
			found[c.Name] = &upstreams.FoundStatus{
				Clusters: st.Name, Origin: c.Origin, State: string(c.State), Since: c.Since, RemoveAt: c.RemoveAt, Problem: c.Problem, Note: c.Note,
			}
		}
	}
	for i := range all {
		if all[i].Type == (&kubernetes.Config{}).Kind() {
			all[i].Found = found[all[i].Name]
		}
	}
	return all
}

// maxProblems bounds the listed problems of one part.
const maxProblems = 10

// Problems returns the problems with their cures, one in each line.
func (f *Finder) Problems() (lines []string) {
	for _, st := range f.Status() {
		var own []string
		add := func(format string, args ...any) {
			own = append(own, fmt.Sprintf("clusters "+st.Name+": "+format, args...))
		}
		if st.Error != "" {
			add("it can not be read which clusters there are, all that are known stay: %s", st.Error)
		}
		held := 0
		for _, c := range st.Clusters {
			switch {
			case c.State == registry.Held:
				held++
			case c.State == registry.Orphaned && c.RemoveAt.IsZero():
				add("cluster %s is orphaned since %s: %s is gone, what it gave is served until \"relay release cluster/%s/%s\"", c.ID, utc(c.Since), c.Origin, st.Name, c.ID)
			case c.State == registry.Orphaned:
				add("cluster %s is orphaned since %s: %s is gone, what it gave is served until %s", c.ID, utc(c.Since), c.Origin, utc(c.RemoveAt))
			case c.Problem != "":
				add("cluster %s: the new kubeconfig in %s is not used, the last good one is: %s", c.ID, c.Origin, c.Problem)
			}
		}
		if held > 0 {
			add("%d of %d clusters are gone together and held, all that they gave is served; if they are gone on purpose: \"relay release cluster/%s\"", held, len(st.Clusters), st.Name)
		}
		for _, r := range st.Refused {
			add("%s in %s is not followed: %s", cmp.Or(r.ID, "what is"), r.Origin, r.Reason)
		}
		if more := len(own) - maxProblems; more > 0 {
			own = append(own[:maxProblems], fmt.Sprintf("clusters %s: and %d more: \"relay clusters %[1]s\"", st.Name, more))
		}
		lines = append(lines, own...)
	}
	return lines
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

package mirror

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unique"

	"meshrelay/internal/wire"
)

// AllocatedAnnotation has the addresses, joined by commas, that the cluster of a ServiceEntry has allocated for it. It stays where
// they are left out, so that the next relay knows what the cluster has. Of other sources than relays, it names addresses of the
// entry only.
const AllocatedAnnotation = "meshrelay.io/allocated"

// MaxAllocated bounds the addresses of a resource that are looked at. A host has two.
const MaxAllocated = 16

// entryHosts and entryAddresses are the numbers of fields of a ServiceEntry.
const entryHosts, entryAddresses = 1, 2

// anyCluster stands for all clusters but that of a resource.
const anyCluster = "*"

var serviceEntry = unique.Make(Kind{networking, "ServiceEntry"})

// Allocated returns the addresses in AllocatedAnnotation of a ServiceEntry, sorted.
func (r *Resource) Allocated() []string {
	mark, _ := r.Annotation(AllocatedAnnotation)
	if len(mark) == 0 || r.kind() != serviceEntry {
		return nil
	}
	all := strings.SplitN(string(mark), ",", MaxAllocated+1)
	all = all[:min(len(all), MaxAllocated)]
	slices.Sort(all)
	return all
}

// ranged yields the addresses of the ranges from which istiods allocate, unless told otherwise.
func (r *Resource) ranged(yield func(address []byte) bool) {
	for c := wire.Fields(r.BodyValue()); c.Next() && c.Number <= entryAddresses; {
		if a := c.Value(); c.Bytes(entryAddresses) && (bytes.HasPrefix(a, []byte("240.240.")) || bytes.HasPrefix(a, []byte("2001:2:"))) && !yield(a) {
			return
		}
	}
}

// allocates reports whether a resource has Claims of allocations. It allocates nothing.
func (r *Resource) allocates() (is bool) {
	if r.kind() == serviceEntry {
		r.ranged(func([]byte) bool { is = true; return false })
		is = is || r.HasAnnotation(AllocatedAnnotation)
	}
	return is
}

// allocations has each ServiceEntry claim the addresses that were allocated for it, and others of the ranges of istiods.
type allocations struct{ Owners }

func (allocations) Claims(r *Resource, _ func(Key) []string) Claims {
	all := r.Allocated()
	r.ranged(func(a []byte) bool { all = append(all, string(a)); return len(all) < MaxAllocated })
	slices.Sort(all)
	return Claims{What: slices.Compact(all)}
}

// taken returns why clients of a cluster, who see the copies that accept accepts, are not served the allocated addresses of a
// resource, empty if they are: the cluster, seen or not, or an earlier source has one of them for another host.
func (a *Aggregate) taken(r *Resource, cluster string, accept func(*Resource) bool) string {
	all := r.Allocated()
	if len(all) == 0 {
		return ""
	}
	const start = "allocated addresses are left out"
	hosts, place, looks := wire.Texts(r.BodyValue(), entryHosts), a.holders.named, 0
	switch {
	case len(hosts) != 1:
		return start + ": it has several hosts, and each would have those of the others"
	case cluster != "" && r.Cluster() == cluster:
		return ""
	}
	for _, address := range all {
		for _, s := range a.allocated.at(bucket{address, bucketWide}, &[1]sourceClaims{}) {
			later := place[s.source] >= place[r.Source()]
			for _, o := range s.of {
				of, whose := o.resource.Cluster(), ""
				concerns := of != "" && (of == cluster || cluster == anyCluster && of != r.Cluster())
				if later && !concerns {
					continue
				}
				if looks++; looks > maxLooks {
					return start + ": too many others have them"
				}
				if later || !accept(o.resource) {
					if !concerns {
						continue
					}
					whose = " for clients of cluster " + of
				}
				other := wire.Texts(o.resource.BodyValue(), entryHosts)
				if len(other) != 1 || !strings.EqualFold(other[0], hosts[0]) {
					return fmt.Sprintf("%s%s: %s has %s for %.300s (%s)", start, whose, s.source, address, strings.Join(other, ", "), o.resource.Key())
				}
			}
		}
	}
	return ""
}

// WithoutAllocated returns a resource without the addresses that its cluster has allocated: r itself if it has none.
func (r *Resource) WithoutAllocated() (*Resource, error) {
	all := r.Allocated()
	if len(all) == 0 {
		return r, nil
	}
	s := r.Spec()
	value, had := []byte(nil), s.Body.Value
	c := wire.Fields(had)
	for c.Next() {
		if _, is := slices.BinarySearch(all, string(c.Value())); !is || !c.Bytes(entryAddresses) {
			value = append(value, c.Field()...)
		}
	}
	if len(value) == len(had) {
		return r, nil
	}
	s.Body.Value = value
	return New(s)
}

// judgeAllocated keeps why some clients are not served the allocated addresses of what a change has brought. Several hosts are no
// problem of operators: older istiods serve them so, too.
func (a *Aggregate) judgeAllocated(c *change) {
	if c.cur != nil && c.allocates && len(wire.Texts(c.cur.BodyValue(), entryHosts)) == 1 {
		if why := a.taken(c.cur, anyCluster, everything); why != "" {
			a.bare[c.ref] = why
			return
		}
	}
	delete(a.bare, c.ref)
}

// NotAllocated returns a problem for each upstream with ServiceEntries whose allocated addresses some clients are not served.
func (a *Aggregate) NotAllocated() (lines []string) {
	all := map[string][]string{} // by source
	a.mu.RLock()
	for k, why := range a.bare {
		if r := a.index.get(k); r != nil {
			all[r.Source()] = append(all[r.Source()], fmt.Sprintf("%s: %s", r.Key(), why))
		}
	}
	a.mu.RUnlock()
	for _, s := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, fmt.Sprintf("upstream %s: %d ServiceEntries are served without allocated addresses, such as %s; give each cluster ranges of its own within 240.240.0.0/16 and 2001:2::/48", s, len(all[s]), slices.Min(all[s])))
	}
	return lines
}

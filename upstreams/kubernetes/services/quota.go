package services

// A workload of a namespace is selected by usualSelections on average at most; moreSelections is what all of them may exceed
// that. Without these bounds, the endpoints of all that select would be the product of what selects and of the workloads.
// Each namespace has its own, since others write what is in others.
const usualSelections, moreSelections = 16, 1000

// quota counts the endpoints that are workloads which a cluster selects: those of selections, and WorkloadEntries that
// Services select.
type quota struct {
	taken map[string]share    // by cluster
	all   map[string]int      // by namespace
	freed map[string]struct{} // namespaces in which a cluster has fewer than at the last Flush
}

// share is what one cluster has. It is refused if it would have too many, and has none then.
type share struct {
	namespace string
	endpoints int
	refused   bool
}

func newQuota() quota { return quota{map[string]share{}, map[string]int{}, map[string]struct{}{}} }

// room returns how many endpoints a cluster may have beside those of all others of its namespace.
func (q *quota) room(namespace, cluster string, workloads int) int {
	return usualSelections*workloads + moreSelections - (q.all[namespace] - q.taken[cluster].endpoints)
}

// take notes what a cluster has.
func (q *quota) take(cluster string, now share) {
	before := q.taken[cluster]
	if now.endpoints < before.endpoints {
		q.freed[before.namespace] = struct{}{}
	}
	if q.all[now.namespace] += now.endpoints - before.endpoints; q.all[now.namespace] == 0 {
		delete(q.all, now.namespace)
	}
	if q.taken[cluster] = now; now.endpoints == 0 && !now.refused {
		delete(q.taken, cluster)
	}
}

// retry calls f with the refused clusters of namespaces in which others have fewer now.
func (q *quota) retry(f func(cluster string)) {
	if len(q.freed) == 0 {
		return
	}
	for cluster, has := range q.taken {
		if _, freed := q.freed[has.namespace]; freed && has.refused {
			f(cluster)
		}
	}
	clear(q.freed)
}

// retain forgets clusters that nobody reads any more.
func (q *quota) retain(read map[string]struct{}) {
	for cluster, has := range q.taken {
		if _, is := read[cluster]; !is {
			q.take(cluster, share{namespace: has.namespace})
		}
	}
}

// refused returns how many clusters have no endpoints because they would have too many.
func (q *quota) refused() (n int) {
	for _, has := range q.taken {
		if has.refused {
			n++
		}
	}
	return n
}

package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/upstreams"
)

// longestHost is the longest host that is looked for.
const longestHost = 255

// Services returns the services that a query selects. The parameters are those of /debug/services. It computes them, and
// keeps nothing.
func (d *Debug) Services(q url.Values) (a services.Answer, err error) {
	query := services.Query{Host: q.Get("host"), Port: q.Get("port"), Search: q.Get("search"), From: q.Get("from")}
	if max(len(query.Host), len(query.Search), len(query.From)) > longestHost {
		return a, badRequestf("host, search and from have at most %d characters", longestHost)
	}
	if limit := q.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > services.MaxLimit {
			return a, badRequestf("limit is %.32q: want a number from 1 to %d", limit, services.MaxLimit)
		}
		query.Limit = n
	}
	in, err := d.seenBy(q.Get("client"))
	if err != nil {
		return a, err
	}
	if a, err = services.Find(in, query); err != nil {
		return a, refusal{http.StatusBadRequest, err}
	}
	return a, nil
}

// seenBy returns what a connected client sees of services, or what there is if connection is empty.
func (d *Debug) seenBy(connection string) (in services.Input, err error) {
	sees := func(*mirror.Resource) bool { return true }
	list := func(kind mirror.Kind) []*mirror.Resource { return d.views.Resources.List(kind, "") }
	if connection != "" {
		cluster, shows, ok := d.clients.Shows(connection)
		if !ok {
			return in, badRequestf("no client has the connection %.64q: /debug/connections lists them", connection)
		}
		sees = shows
		list = func(kind mirror.Kind) (all []*mirror.Resource) {
			for _, key := range d.views.Resources.Keys(kind) {
				if r := d.views.Resources.Select(key, cluster, sees); r != nil {
					all = append(all, r)
				}
			}
			return all
		}
	}
	in.ContactLost = d.contactLost()
	in.Entries, in.Workloads = list(federation.ServiceEntry), list(federation.WorkloadEntry)
	for _, c := range d.views.Contests(federation.ServiceEntry) {
		s := d.views.Resources.Resolve(c.Key)
		for i, one := range s.Copies {
			if united := len(s.Decision.United) > 0 && i == s.Decision.Winner || slices.Contains(s.Decision.United, i); united && sees(one.Resource) {
				in.Copies = append(in.Copies, one.Resource)
			}
		}
	}
	return in, nil
}

// contactLost returns a function that tells since when the source of a merged resource is out of contact, zero for in
// contact: its upstream, or as relays tell, one behind that.
func (d *Debug) contactLost() func(*mirror.Resource) time.Time {
	sources := map[string]upstreams.Status{}
	for _, u := range d.views.Upstreams() {
		if !u.ContactLost.IsZero() || len(u.Told.Problems) > 0 {
			sources[u.Name] = u
		}
	}
	return func(r *mirror.Resource) time.Time {
		u, found := sources[r.Source()]
		if !found || !u.ContactLost.IsZero() {
			return u.ContactLost
		}
		from := r.Provenance()
		return u.Told.Concerning(from.Source, from.Path).ContactLost()
	}
}

package admin

import (
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/services"
)

// longestHost is the longest host that is looked for.
const longestHost = 255

// services writes the services that a query selects.
func (d *Debug) services(w io.Writer, q url.Values) error {
	answer, err := d.Services(q)
	if err != nil {
		return err
	}
	return writeJSON(w, answer)
}

// Services returns the services that a query selects. The parameters are those of /debug/services. It computes them, and
// keeps nothing.
func (d *Debug) Services(q url.Values) (a services.Answer, err error) {
	query := services.Query{
		Host: q.Get("host"), Port: q.Get("port"), Subset: q.Get("subset"), As: q.Get("as"),
		Search: q.Get("search"), From: q.Get("from"), Findings: q.Get("findings") == "true",
	}
	if max(len(query.Host), len(query.As), len(query.Search), len(query.From)) > longestHost {
		return a, badRequestf("host, as, search and from have at most %d characters", longestHost)
	}
	if query.As != "" && len(validation.IsDNS1123Label(query.As)) > 0 {
		return a, badRequestf("as is %.64q: want a namespace", query.As)
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

// maxFindings is the most services in /debug/conflicts.
const maxFindings = 1000

// ServiceFinding is a finding about a service.
type ServiceFinding struct {
	Host      string `json:"host"`
	Namespace string `json:"namespace"`
	services.Finding
}

// findings returns the findings of at most maxFindings services, and whether there may be more.
func (d *Debug) findings() (all []ServiceFinding, more bool, err error) {
	in, err := d.seenBy("")
	if err != nil {
		return nil, false, err
	}
	a, err := services.Find(in, services.Query{Findings: true, Limit: maxFindings})
	for _, s := range a.Services {
		for _, f := range s.Findings {
			all = append(all, ServiceFinding{s.Host, s.Namespace, f})
		}
	}
	return all, a.Partial || a.More > 0, err
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
	in.Entries, in.Workloads, in.Rules, in.Routes = list(federation.ServiceEntry), list(federation.WorkloadEntry), list(federation.DestinationRule), list(federation.VirtualService)
	if all := list(mirror.MeshConfig); len(all) > 0 {
		in.Mesh = all[0]
	}
	for _, c := range d.views.Contests(federation.ServiceEntry) {
		s := d.views.Resources.Resolve(c.Key)
		for i, one := range s.Copies {
			if sees(one.Resource) {
				united := len(s.Decision.United) > 0 && i == s.Decision.Winner || slices.Contains(s.Decision.United, i)
				in.Copies = append(in.Copies, services.Copy{Resource: one.Resource, United: united})
			}
		}
	}
	return in, nil
}

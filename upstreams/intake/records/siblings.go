package records

import "meshrelay/mirror"

// The siblings of a service are served beside its own key: a ServiceEntry for each other set of ports that endpoints serve.
// They come and go with the endpoints, whatever holds the config, and go with the service.

// setSiblings sets the siblings of a service. Former ones, also of its former record, are nil until a Want has told it.
func (r *record) setSiblings(all []*mirror.Resource, former *record) {
	if former == nil {
		former = r
	}
	if len(all)+len(r.siblings)+len(former.siblings) == 0 {
		return
	}
	next := map[mirror.Key]*mirror.Resource{}
	for _, was := range []*record{r, former} {
		for key := range was.siblings {
			next[key] = nil
		}
	}
	for _, s := range all {
		next[s.Key()] = s
	}
	r.siblings = next
}

// sibling returns a sibling as a record.
func (r *record) sibling(s *mirror.Resource) *record {
	return &record{resource: s, original: r.original, at: r.at, relayed: r.relayed}
}

package kubernetes

import (
	"iter"
	"strconv"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// workloadEntry is the kind whose status counts.
var workloadEntry = mirror.Kind{Group: "networking.istio.io", Kind: "WorkloadEntry"}

// healthChecks is the annotation of a WorkloadEntry whose proxy reports its health.
const healthChecks = "proxy.istio.io/health-checks-enabled"

// Add implements cache.ReflectorStore.
func (t *target) Add(o any) error { return t.Update(o) }

// Update implements cache.ReflectorStore.
func (t *target) Update(o any) error {
	if t.aside {
		t.source.definitionsChanged()
		return nil
	}
	t.source.note(t, t.source.ledger.put(t, o.(*object)))
	return nil
}

// Delete implements cache.ReflectorStore.
func (t *target) Delete(o any) error {
	if t.aside {
		t.source.definitionsChanged()
		return nil
	}
	t.source.knows(t, o.(*object))
	t.source.note(t, t.source.ledger.remove(t, o.(*object)))
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *target) Replace(list []any, _ string) error {
	all := make([]*object, len(list))
	for i := range list {
		all[i] = list[i].(*object)
	}
	if t.aside {
		t.source.following(t, len(all))
		t.source.definitionsChanged()
		return nil
	}
	results := t.source.ledger.replace(t, all)
	t.source.following(t, len(all))
	t.source.knowsOnly(t, all)
	t.source.note(t, results)
	if t.kind == namespaceKind {
		t.source.discoverSoon() // what is in them can be followed
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *target) Resync() error { return nil }

// elements returns objects for the intake, which decodes those that it does not know.
func (t *target) elements(all []*object) func(int, intake.Known) iter.Seq[intake.Element] {
	return func(int, intake.Known) iter.Seq[intake.Element] {
		return func(yield func(intake.Element) bool) {
			for _, o := range all {
				if !yield(intake.Element{
					Name: []byte(o.fullName()), Version: []byte(o.version), Size: o.size(), Digest: o.digest(t.source.settings),
					Decode: func() (*mirror.Resource, error) { return t.decode(o) },
				}) {
					return
				}
			}
		}
	}
}

// decode returns the resource of an object.
func (t *target) decode(o *object) (*mirror.Resource, error) {
	if o.err != nil {
		return nil, o.err
	}
	section := t.source.section
	if t.kind == workloadEntry && section.UnhealthyWorkloads == "drop" && unhealthy(o) {
		return nil, &intake.Omitted{Detail: "its proxy reports its health, and not that it is healthy: unhealthyWorkloads: keep mirrors such entries"}
	}
	s := kube.Served{
		Key: mirror.Key{Kind: t.kind, Namespace: o.namespace, Name: o.name}, ResourceVersion: o.version,
		Created: o.created, Labels: o.labels, Annotations: o.annotations, Spec: o.spec,
	}
	r, unknown, err := s.Resource(t.source.name, section.UnknownFields == "refuse")
	t.source.unknown(t, o, unknown)
	return r, err
}

// unhealthy reports whether an istiod that reads a WorkloadEntry itself would not serve it.
func unhealthy(o *object) bool {
	checked, err := strconv.ParseBool(o.annotations[healthChecks])
	return err == nil && checked && (o.health == nil || !*o.health)
}

// note looks at what has become of something that was told.
func (s *Source) note(t *target, results []intake.Result) {
	for _, result := range results {
		if err := result.Err(); err != nil {
			s.complaints.Warn(s.log, "objects refused, last good content served", "kind", t.kind, "err", err)
		}
		if result.Relist {
			t.restart() // there may be room now
		}
	}
}

package kubernetes

import (
	"errors"
	"iter"
	"maps"
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
					Decode: func() (*mirror.Resource, bool, error) { return t.decode(o) },
				}) {
					return
				}
			}
		}
	}
}

// fold makes the resource of an object while others are still on their way, unless the intake holds just
// that: no list is in memory beside what is mirrored.
func (t *target) fold(o *object) {
	defer func() {
		_ = recover() // the object is as it came: the intake meets the panic, too, and refuses that one
	}()
	f := &folded{digest: o.digest(t.source.settings), size: o.size()}
	if f.held = t.source.ledger.holds(t, o.fullName(), f.digest, f.size); f.held {
		o.folded, o.spec, o.labels, o.annotations = f, nil, nil, nil
		return
	}
	t.make(o, f)
}

// make makes the resource of an object.
func (t *target) make(o *object, f *folded) {
	f.resource, f.unknown, f.err = t.resource(o)
	o.folded, o.spec, o.labels, o.annotations = f, nil, nil, nil
}

// errLetGo is the error of an object that the intake held when it came, and does not hold any more.
var errLetGo = errors.New("it has gone from the mirror while its kind was listed, and is asked for again")

// decode returns the resource of an object. lacks reports whether it had fields that this build does not know.
func (t *target) decode(o *object) (r *mirror.Resource, lacks bool, err error) {
	if o.folded == nil {
		t.make(o, &folded{digest: o.digest(t.source.settings), size: o.size()})
	}
	if o.folded.held {
		t.restart()
		return nil, false, errLetGo
	}
	if len(o.folded.unknown) > 0 {
		t.source.unknown(t, o, o.folded.unknown)
	}
	return o.folded.resource, len(o.folded.unknown) > 0, o.folded.err
}

func (t *target) keyOf(o *object) mirror.Key {
	return mirror.Key{Kind: t.kind, Namespace: o.namespace, Name: o.name}
}

// resource makes the resource of an object, and returns the fields that this build does not know.
func (t *target) resource(o *object) (r *mirror.Resource, unknown []string, err error) {
	if o.err != nil {
		return nil, nil, o.err
	}
	section, annotations := t.source.section, o.annotations
	if t.kind == workloadEntry && section.UnhealthyWorkloads == "drop" && reportsHealth(o) {
		if o.health == nil || !*o.health {
			return nil, nil, &intake.LeftOutError{Detail: "its proxy reports its health, and not that it is healthy: unhealthyWorkloads: keep mirrors such entries"}
		}
		// An istiod that sees the annotation, and no status, takes the entry for unhealthy.
		annotations = maps.Clone(annotations)
		delete(annotations, healthChecks)
	}
	if t.source.fault != nil {
		t.source.fault(o)
	}
	s := kube.Served{
		Key: t.keyOf(o), ResourceVersion: o.version,
		Created: o.created, Labels: o.labels, Annotations: annotations, Spec: o.spec,
	}
	return s.Resource(t.source.name, section.UnknownFields == "refuse")
}

// reportsHealth reports whether an istiod that reads a WorkloadEntry itself would give it traffic only
// when its status has it as healthy.
func reportsHealth(o *object) bool {
	checked, err := strconv.ParseBool(o.annotations[healthChecks])
	return err == nil && checked
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

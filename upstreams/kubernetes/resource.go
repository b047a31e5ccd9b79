package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/kube"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/object"
)

// converter makes resources of the objects of one kind. Its methods may be called from any goroutine.
type converter struct {
	kind     mirror.Kind
	upstream string
	// holds reports whether the intake holds this content of an object.
	holds func(name string, digest xxh3.Uint128, size int) bool
	// unknown is called for objects with fields that this build does not know.
	unknown func(o *object.Object, fields []string)
	fault   func(*object.Object) // of tests: it panics
}

// convert sets Made of an object, and clears its content. It makes no resource if the intake already holds
// the content.
func (c *converter) convert(o *object.Object) {
	m := &object.Made{Digest: c.digest(o), Size: o.Size()}
	if !c.holds(o.FullName(), m.Digest, m.Size) {
		m.Resource, m.Err = panics.Value(func() (*mirror.Resource, error) { return c.make(o, m) })
		if len(m.Unknown) > 0 {
			c.unknown(o, m.Unknown)
		}
	}
	o.Made = m
	o.Clear()
}

// make makes the resource of an object, and sets Made.Unknown.
func (c *converter) make(o *object.Object, m *object.Made) (r *mirror.Resource, err error) {
	annotations := o.Annotations
	switch {
	case o.Err != nil:
		return nil, o.Err
	case c.kind == federation.WorkloadEntry && o.ReportsHealth():
		if o.IsUnhealthy() {
			return nil, &records.LeftOutError{Detail: "its proxy reports its health, and not that it is healthy"}
		}
		// An istiod that sees the annotation and no status takes the workload for unhealthy.
		annotations = maps.Clone(annotations)
		delete(annotations, federation.HealthChecksAnnotation)
	}
	if c.fault != nil {
		c.fault(o)
	}
	s := kube.Served{
		Key:             mirror.Key{Kind: c.kind, Namespace: o.Namespace, Name: o.Name},
		ResourceVersion: o.ResourceVersion, Created: o.CreationTimestamp.Time, Labels: o.Labels, Annotations: annotations, Spec: o.Spec,
	}
	if r, m.Unknown, err = s.Resource(c.upstream); err == nil && len(o.Allocated) > 0 {
		return services.WithAllocated(r, o.Allocated)
	}
	return r, err
}

// decoderVersion is part of each digest. It depends on this code and on the known messages. When it changes,
// the resources on disk are decoded again.
var decoderVersion = "3 " + buildinfo.Module("istio.io/api")

// digest returns a hash of everything in an object that changes its resource. It leaves out the resource
// version, which changes with each write of a status.
func (c *converter) digest(o *object.Object) xxh3.Uint128 {
	if c.kind == federation.ServiceEntry {
		o.SetAllocated()
	}
	h := xxh3.New()
	write := func(s string) {
		h.WriteString(s)   //nolint:errcheck // it never fails
		h.Write([]byte{0}) //nolint:errcheck // it never fails
	}
	write(decoderVersion)
	write(o.CreationTimestamp.Format(time.RFC3339))
	for _, m := range []map[string]string{o.Labels, o.Annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			write(k)
			write(m[k])
		}
		write("")
	}
	if o.Healthy != nil {
		write(fmt.Sprint(*o.Healthy))
	}
	if o.Err != nil {
		write(o.Err.Error())
	}
	if len(o.Allocated) > 0 { // of the status, nothing else counts
		write(fmt.Sprint(o.Allocated))
	}
	h.Write(o.Spec) //nolint:errcheck // it never fails
	return h.Sum128()
}

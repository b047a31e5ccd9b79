// Package object decodes the objects that an API server lists and watches, one at a time.
//
// It decides which parts of an object are kept, and bounds the memory of the objects of lists.
//
// The package must not know how requests are sent, or how objects are used.
package object

import (
	"encoding/json"
	"strconv"

	"github.com/zeebo/xxh3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// Object is the part of an object that the relay uses. Of the metadata, it has name, namespace, version,
// creation time, labels, and annotations other than kubectl's copy of the object; UID and managedFields only if the
// Decoder wants them. DeletionTimestamp is set, to no time, if
// the object is being deleted.
type Object struct {
	metav1.ObjectMeta

	Spec         []byte // JSON in one line, nil for none; of an EndpointSlice, its addressType, endpoints and ports
	Status, Data []byte // JSON, nil for none
	Healthy      *bool  // condition Healthy of a WorkloadEntry, nil without one
	Err          error  // the mistake in the object
	// Allocated are the addresses that the cluster has allocated for hosts of a ServiceEntry.
	Allocated []services.Allocated
	// Unselected is set if the namespace was not selected when the object came. A list does not keep the object.
	// The object of an event then has no content, and the name AnyName.
	Unselected bool
	// Made is the result of the conversion. The object then has no content any more.
	Made *Made
}

// AnyName is the name of each object in a namespace that is not selected: client-go collects the objects of a list
// by their names.
const AnyName = "*"

// Made is the resource of an object, with the digest of its content. Neither Resource nor Err is set if the intake holds this
// content.
type Made struct {
	Digest   xxh3.Uint128
	Size     int // bytes, about
	Resource *mirror.Resource
	Unknown  []string // fields that this build does not know
	Err      error    // the mistake in the object, or a records.LeftOutError
	// Input is set for an object that other resources are made from. InputErr is why there is none.
	Input    Input
	InputErr error
}

// Input is what is kept of an object that other resources are made from.
type Input interface {
	// Size returns about how many bytes it takes.
	Size() int
}

// GetObjectKind implements runtime.Object.
func (*Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. It returns the object itself, because nobody changes it.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// FullName returns "namespace/name", or "/name" of an object without a namespace.
func (o *Object) FullName() string { return o.Namespace + "/" + o.Name }

// Size returns about the size of the object's resource, in bytes.
func (o *Object) Size() int {
	if o.Made != nil {
		return o.Made.Size
	}
	n := len(o.Spec) + len(o.Name) + len(o.Namespace)
	for _, m := range []map[string]string{o.Labels, o.Annotations} {
		for k, v := range m {
			n += len(k) + len(v)
		}
	}
	return n
}

// Clear drops the content.
func (o *Object) Clear() {
	o.Spec, o.Status, o.Data, o.Labels, o.Annotations, o.Allocated = nil, nil, nil, nil, nil, nil
}

// SetHealthy sets Healthy from the conditions of the status.
func (o *Object) SetHealthy() {
	var s struct {
		Conditions []struct{ Type, Status string } `json:"conditions"`
	}
	if len(o.Status) == 0 || json.Unmarshal(o.Status, &s) != nil {
		return
	}
	for _, c := range s.Conditions {
		if c.Type == "Healthy" {
			is := c.Status == "True"
			o.Healthy = &is
			return
		}
	}
}

// SetAllocated sets Allocated from the addresses of the status.
func (o *Object) SetAllocated() {
	var s struct{ Addresses []services.Allocated }
	if len(o.Status) > 0 && json.Unmarshal(o.Status, &s) == nil {
		o.Allocated = s.Addresses
	}
}

// ReportsHealth reports whether the object is a WorkloadEntry with health checks: an istiod that reads it itself gives it
// traffic only while its status is healthy.
func (o *Object) ReportsHealth() bool {
	checked, err := strconv.ParseBool(o.Annotations[federation.HealthChecksAnnotation])
	return err == nil && checked
}

// IsUnhealthy reports whether an object reports its health, and not that it is healthy. SetHealthy was called before.
func (o *Object) IsUnhealthy() bool { return o.ReportsHealth() && (o.Healthy == nil || !*o.Healthy) }

// List is a list of objects.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*Object
}

// DeepCopyObject implements runtime.Object. It returns the list itself, because nobody changes it.
func (l *List) DeepCopyObject() runtime.Object { return l }

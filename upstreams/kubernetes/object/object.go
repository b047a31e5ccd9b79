// Package object decodes the objects that an API server lists and watches, one at a time.
//
// It decides which parts of an object are kept, and limits the memory of the objects in a list.
//
// The package must not know how requests are sent, or how objects are used.
package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/zeebo/xxh3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshrelay/mirror"
)

// Overhead is about how much memory an object takes in addition to its content, in bytes.
const Overhead = 512

// OverLimit is a part of each error because of a limit.
const OverLimit = "over the limit: "

// Object is the part of an object that the relay uses. Of the metadata, it has name, namespace, version,
// creation time, labels, and annotations other than kubectl's copy of the object.
type Object struct {
	metav1.ObjectMeta

	Spec         []byte // JSON in one line, nil for none
	Status, Data []byte // JSON, nil for none
	Healthy      *bool  // condition Healthy of a WorkloadEntry, nil without one
	Err          error  // the mistake in the object
	// Unselected is set if the namespace was not selected when the object came. The object then has no
	// content.
	Unselected bool
	// Made is the result of the conversion. The object then has no content any more.
	Made *Made
}

// Made is the resource of an object, with the digest of its content.
type Made struct {
	Digest xxh3.Uint128
	Size   int // bytes, about
	// Held is set if the intake already holds this content. Resource is then nil.
	Held     bool
	Resource *mirror.Resource
	Unknown  []string // fields that this build does not know
	Err      error    // the mistake in the object; there is no resource then
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
func (o *Object) Clear() { o.Spec, o.Status, o.Data, o.Labels, o.Annotations = nil, nil, nil, nil, nil }

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

// List is a list of objects.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []*Object
}

// DeepCopyObject implements runtime.Object. It returns the list itself, because nobody changes it.
func (l *List) DeepCopyObject() runtime.Object { return l }

// Budget bounds the memory of the objects of one list, until the intake has them. Any goroutine may call its
// methods.
type Budget struct {
	most  int // bytes, 0 for no bound
	whole bool

	mu            sync.Mutex // guards the next two
	objects, used int        // used is in bytes
}

// NewBudget returns a budget of some bytes, 0 for no limit. With whole, objects always keep their content,
// and too much content is an error.
func NewBudget(most int, whole bool) *Budget { return &Budget{most: most, whole: whole} }

// Admit reserves memory for an object. If the budget is used up, it drops the object's content and sets Err:
// the intake then refuses the object, and keeps its last good content. Objects that the intake holds need no
// memory. Too many objects are an error.
func (b *Budget) Admit(o *Object) error {
	if b.most <= 0 || o.Unselected {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := o.Size()
	taken := (b.objects + 1) * Overhead
	if b.whole {
		taken += b.used + n
	}
	if b.objects++; taken > 2*b.most {
		return fmt.Errorf("the server has more objects of the kind than limits.maxBytes of the upstream (%d) has room for", b.most)
	}
	if o.Made != nil && o.Made.Held {
		return nil
	}
	if b.whole || b.used+n <= b.most {
		b.used += n
		return nil
	}
	o.Clear()
	o.Err = errors.New(OverLimit + "the objects of its kind have more than limits.maxBytes")
	o.Made = &Made{Digest: xxh3.HashString128(o.Err.Error()), Size: o.Size(), Err: o.Err}
	return nil
}

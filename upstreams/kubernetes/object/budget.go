package object

import (
	"errors"
	"fmt"
	"sync"

	"github.com/zeebo/xxh3"
)

const (
	// Overhead is about how many bytes an object takes in addition to its names and its content.
	Overhead = 384
	// Entry is about how many bytes an entry of a map takes in addition to its texts.
	Entry = 96
	// OverLimit is a part of each error because of a limit.
	OverLimit = "over the limit: "
)

// Budget bounds the memory of all lists of one source that are being read. Any goroutine may call its methods, and
// those of its Readings.
type Budget struct {
	mu         sync.Mutex // guards all below, and the fields of Readings
	most, used int        // bytes; most is limits.maxBytes, 0 for no limit
}

// NewBudget returns a Budget for limits.maxBytes, in bytes; 0 means no limit.
func NewBudget(most int) *Budget { return &Budget{most: most} }

// Set sets limits.maxBytes, in bytes; 0 means no limit. Objects that were admitted stay.
func (b *Budget) Set(most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = most
}

// Reading counts the objects of one list, until the intake has them.
type Reading struct {
	budget        *Budget
	whole         bool
	contents, all int // bytes
	closed        bool
}

// Begin returns a Reading for a new list. With whole, objects always keep their content, and too much content is an
// error.
func (b *Budget) Begin(whole bool) *Reading { return &Reading{budget: b, whole: whole} }

// Close frees the memory of the objects. It may be called more than once, and for nil.
func (r *Reading) Close() {
	if r == nil {
		return
	}
	r.budget.mu.Lock()
	defer r.budget.mu.Unlock()
	r.budget.used -= r.all
	r.all, r.closed = 0, true
}

// Admit reserves memory for an object. The contents of a list may take limits.maxBytes: Admit drops the content of an
// object above that, and sets Err. The intake then refuses the object, and keeps its last good content. All lists of
// the source, with names and versions, may take twice limits.maxBytes. Admit returns an error above that: a list that
// lacks a name would delete the object.
func (r *Reading) Admit(o *Object) error {
	b := r.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.closed {
		return errors.New("the list has ended")
	}
	bare, content := o.costs()
	if r.whole {
		bare, content = bare+content, 0
	}
	fits := func(n int) bool { return b.most == 0 || b.used+n <= 2*b.most }
	if !fits(bare) {
		return fmt.Errorf("the server has more objects of the kind than limits.maxBytes of the upstream (%d) has room for", b.most)
	}
	switch {
	case b.most == 0:
	case r.contents+content <= b.most && !fits(bare+content):
		return fmt.Errorf("lists that are being read have more than twice limits.maxBytes of the upstream (%d): this one is tried again", b.most)
	case r.contents+content > b.most:
		content = 0
		o.Clear()
		o.Err = errors.New(OverLimit + "the objects of its kind have more than limits.maxBytes")
		o.Made = &Made{Digest: xxh3.HashString128(o.Err.Error()), Size: o.Size(), Err: o.Err, InputErr: o.Err}
	}
	r.contents, r.all, b.used = r.contents+content, r.all+bare+content, b.used+bare+content
	return nil
}

// costs returns about how many bytes an object takes without its content, and how many the content takes.
func (o *Object) costs() (bare, content int) {
	bare = Overhead + 2*len(o.FullName()) + len(o.ResourceVersion)
	content = len(o.Spec) + len(o.Status) + len(o.Data)
	for _, m := range []map[string]string{o.Labels, o.Annotations} {
		for k, v := range m {
			content += Entry + len(k) + len(v)
		}
	}
	if m := o.Made; m != nil {
		for _, field := range m.Unknown {
			content += Entry + len(field)
		}
		if m.Resource != nil {
			content += Entry + len(m.Resource.DeltaEntry())
		}
		if m.Input != nil {
			content += m.Input.Size()
		}
	}
	return bare, content
}

// Package replay serves a recording as the upstream that was recorded would.
//
// It owns what a server has at each time of a recording, and the streams to clients: first answers,
// changes, nonces. It must not know files, the config of a relay, nor what the resources mean.
package replay

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/mem"

	"meshrelay/adsclient"
	"meshrelay/internal/recording"
	"meshrelay/mirror"
)

// resource is one resource, as it is sent.
type resource struct {
	name, version string
	body          []byte // an encoded Any
}

// typeState is all that a server has of a type. It never changes.
type typeState struct {
	url       string
	version   string // of the response that brought it
	resources []resource
}

// fold makes the states of a server from its responses. It has no clock and does no I/O.
type fold struct {
	types map[string]*typeState
	// answered has the types that the present delta stream has answered in full.
	answered map[string]bool
	parts    map[string]*part // answers that have more to come
	order    []string         // the types of parts
}

// part is what has come of an answer in parts.
type part struct {
	resources []resource
	removed   map[string]bool
}

func newFold() *fold {
	return &fold{types: map[string]*typeState{}, answered: map[string]bool{}, parts: map[string]*part{}}
}

// step takes a record in. It returns the new state of the type that changed, nil when none did.
func (f *fold) step(rec recording.Record) (*typeState, error) {
	switch rec.Kind {
	case recording.Opened:
		// A new stream brings everything again, and the end of an answer that was cut never comes.
		clear(f.answered)
		clear(f.parts)
		f.order = nil
	case recording.Response:
		resp, err := adsclient.Parse(mem.BufferSlice{mem.SliceBuffer(rec.Data)}, rec.Delta)
		if err != nil {
			return nil, err
		}
		return f.response(resp), nil
	}
	return nil, nil
}

func (f *fold) response(resp *adsclient.Response) *typeState {
	p := f.parts[resp.TypeURL]
	if p == nil {
		p = &part{removed: map[string]bool{}}
		f.parts[resp.TypeURL] = p
		f.order = append(f.order, resp.TypeURL)
	}
	for raw := range resp.Resources(0) {
		p.resources = append(p.resources, resourceOf(resp.TypeURL, raw))
	}
	for name := range resp.Removed() {
		p.removed[string(name)] = true
	}
	if resp.Part {
		return nil
	}
	delete(f.parts, resp.TypeURL)
	f.order = slices.DeleteFunc(f.order, func(url string) bool { return url == resp.TypeURL })
	next := &typeState{url: resp.TypeURL, version: resp.Version, resources: p.resources}
	if before := f.types[resp.TypeURL]; resp.Delta && f.answered[resp.TypeURL] && before != nil {
		next.resources = patched(before.resources, *p)
	}
	f.answered[resp.TypeURL] = true
	f.types[resp.TypeURL] = next
	return next
}

// finish returns the types whose last answer has come in part only, as if it were whole.
func (f *fold) finish() (changed []*typeState) {
	for _, url := range slices.Clone(f.order) {
		p := f.parts[url]
		next := &typeState{url: url, version: "cut", resources: p.resources}
		if before := f.types[url]; before != nil {
			next.resources = patched(before.resources, *p)
		}
		f.types[url] = next
		changed = append(changed, next)
	}
	clear(f.parts)
	f.order = nil
	return changed
}

// patched returns resources with those of a part in place of the old ones, and the new ones after them.
func patched(before []resource, p part) []resource {
	at := make(map[string]int, len(p.resources))
	for i, r := range p.resources {
		at[r.name] = i
	}
	out := make([]resource, 0, len(before)+len(p.resources))
	for _, r := range before {
		i, changed := at[r.name]
		if changed {
			out = append(out, p.resources[i])
			delete(at, r.name)
		} else if !p.removed[r.name] {
			out = append(out, r)
		}
	}
	for i, r := range p.resources {
		if last, isNew := at[r.name]; isNew && last == i {
			out = append(out, r)
		}
	}
	return out
}

// resourceOf returns a resource of a response. Of a SotW response, which has no names and versions,
// it finds the name in the resource, and makes the version of the content.
func resourceOf(typeURL string, raw adsclient.RawResource) resource {
	r := resource{name: string(raw.Name), version: string(raw.Version), body: bytes.Clone(raw.Any)}
	if r.name == "" {
		r.name = nameOf(typeURL, raw.Any)
	}
	if r.version == "" {
		sum := xxh3.Hash128(raw.Any).Bytes()
		r.version = hex.EncodeToString(sum[:])
	}
	if r.name == "" { // it does not decode, and its receiver shall see that
		r.name = fmt.Sprintf("unreadable-%s", r.version)
	}
	return r
}

func nameOf(typeURL string, encoded []byte) string {
	kind, _, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return ""
	}
	name, err := mirror.PeekName(kind, encoded)
	if err != nil {
		return ""
	}
	return string(name)
}

package main

import (
	"bytes"
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
)

// lie is something wrong with the responses of an upstream; the empty one is the truth. None
// of them is to change what clients hold: what a lie is about keeps its last good content.
type lie string

// The lies.
const (
	// lieDuplicates gives some names a second time, with contents that were never made.
	lieDuplicates lie = "duplicate names"
	// lieTypes gives some elements another type, and some bodies.
	lieTypes lie = "wrong types"
	// lieTruncated cuts some elements in half.
	lieTruncated lie = "truncated elements"
	// lieUTF8 has strings that are not UTF-8.
	lieUTF8 lie = "invalid UTF-8"
	// lieUnnamed adds elements without a name.
	lieUnnamed lie = "elements without a name"
	// lieLong adds elements with names of 64k characters.
	lieLong lie = "64k-character names"
	// lieBackwards has versions that go down.
	lieBackwards lie = "versions going back"
	// lieURL sends everything once more as a type that was not asked for.
	lieURL lie = "types that were not asked for"
	// lieHuge makes responses of 100 MB, of one name again and again.
	lieHuge lie = "100 MB responses"
)

var lies = []lie{lieDuplicates, lieTypes, lieTruncated, lieUTF8, lieUnnamed, lieLong, lieBackwards, lieURL}

// notAskedFor is a type that no client asks for.
const notAskedFor = "networking.istio.io/v1/NotAskedFor"

// hugeBytes is the size of a huge response.
const hugeBytes = 100 << 20

// about reports whether the lie spoils the element of a key.
func (l lie) about(key int) bool {
	switch l {
	case lieTypes, lieTruncated, lieUTF8:
		return key/len(kinds)%3 == 0
	}
	return false
}

// version returns the version of a response that is made of a commit.
func (l lie) version(commit uint64) string {
	if l == lieBackwards {
		return fmt.Sprint(1<<40 - commit)
	}
	return fmt.Sprint(commit)
}

// spoil makes a response of the truth a lie. The elements are in the order of the answer's
// keys.
func (l lie) spoil(resp *discoveryv3.DiscoveryResponse, a answer) {
	for i, key := range a.keys {
		if l.about(key) {
			resp.Resources[i] = l.spoilt(key, a.has[key].element)
		}
	}
	resp.Resources = append(resp.Resources, l.more(a)...)
}

func (l lie) spoilDelta(resp *discoveryv3.DeltaDiscoveryResponse, a answer) {
	for _, r := range resp.Resources {
		if key, ok := parseKeyName(r.Name); ok && l.about(key) {
			r.Resource = l.spoilt(key, r.Resource)
		}
	}
	for i, e := range l.more(a) {
		name := fmt.Sprintf("team-00/extra-%d", i)
		switch l {
		case lieDuplicates, lieHuge:
			if len(resp.Resources) == 0 {
				return // else the second would be the first
			}
			name, e = resp.Resources[0].Name, resp.Resources[0].Resource
			if l == lieDuplicates {
				key, _ := parseKeyName(name)
				e = neverMade(a.has[key].element)
			}
		case lieUnnamed:
			name = ""
		case lieLong:
			name = longName
		}
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "lie", Resource: e})
	}
}

// spoilt returns what is left of an element.
func (l lie) spoilt(key int, element *anypb.Any) *anypb.Any {
	switch l {
	case lieTypes:
		if key%2 == 0 {
			return &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Struct", Value: element.Value}
		}
		return edited(element, func(r *resource) { r.Body.TypeUrl = "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig" })
	case lieTruncated:
		return &anypb.Any{TypeUrl: element.TypeUrl, Value: element.Value[:len(element.Value)/2]}
	case lieUTF8:
		return &anypb.Any{TypeUrl: element.TypeUrl, Value: bytes.ReplaceAll(element.Value, []byte("app-"), []byte("a\xffp-"))}
	}
	return element
}

var longName = "team-00/" + strings.Repeat("x", 64<<10)

// more returns the elements that a lie adds.
func (l lie) more(a answer) (out []*anypb.Any) {
	if len(a.keys) == 0 {
		return nil
	}
	some := a.has[a.keys[0]].element
	switch l {
	case lieDuplicates:
		for _, key := range a.keys[:min(5, len(a.keys))] {
			out = append(out, neverMade(a.has[key].element))
		}
	case lieUnnamed:
		out = append(out, edited(some, func(r *resource) { r.Metadata.Name = "" }))
	case lieLong:
		out = append(out, edited(some, func(r *resource) { r.Metadata.Name = longName }))
	case lieHuge:
		for size := 0; size < hugeBytes; size += len(some.Value) {
			out = append(out, some)
		}
	}
	return out
}

// neverMade returns an element with a content that its source never made.
func neverMade(element *anypb.Any) *anypb.Any {
	return edited(element, func(r *resource) {
		parts := strings.Split(r.Metadata.Annotations[markerAnnotation], "/")
		r.Metadata.Annotations[markerAnnotation] = strings.Join(append(parts[:len(parts)-1], "999999999"), "/")
	})
}

// resource is what an element holds.
type resource = mcp.Resource

func edited(element *anypb.Any, edit func(*resource)) *anypb.Any {
	r := &resource{}
	if err := proto.Unmarshal(element.Value, r); err != nil {
		return &anypb.Any{TypeUrl: element.TypeUrl} // as good a lie as any
	}
	edit(r)
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return &anypb.Any{TypeUrl: element.TypeUrl}
	}
	return &anypb.Any{TypeUrl: element.TypeUrl, Value: value}
}

package discovery

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/jsonstream"
)

// A cluster with 5,000 definitions has answers of 5 MiB. A server of metrics may have a kind for each metric.
const (
	maxAnswer = 32 << 20 // bytes
	maxPart   = 64 << 10 // bytes of a kind
	maxParts  = 200_000  // groups, versions, kinds, and the fields of groups and versions
	maxKept   = 10_000   // versions of kinds that have the name of a wanted one
)

// reader reads an answer part by part. Its fields are those of the types in k8s.io/api/apidiscovery/v2, in any
// order.
type reader struct {
	*jsonstream.Decoder
	wanted []mirror.Kind
	Answer
	kept  int
	found []Resource // of the present group, those with the name of a wanted kind
}

// read returns what an answer has of the wanted kinds.
func read(body io.Reader, wanted []mirror.Kind) (*Answer, error) {
	r := &reader{Decoder: jsonstream.New(body, maxPart, maxParts), wanted: wanted, Answer: Answer{Kinds: map[mirror.Kind][]Resource{}, unsure: map[string]bool{}}}
	aggregated, named := false, false
	err := r.Object(func(key string) error {
		switch key {
		case "items":
			return r.Array(func() error { aggregated = true; return r.group() })
		case "groups":
			return r.Array(func() error { named = true; return r.Skip() })
		}
		return r.Skip()
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("discovery of the API server: %w: look at kubectl get --raw /apis", err)
	case named && !aggregated:
		return nil, errTooOld
	}
	return &r.Answer, nil
}

// group reads a group.
func (r *reader) group() error {
	var metadata struct {
		Name string `json:"name"`
	}
	stale := false
	r.found = r.found[:0]
	err := r.Object(func(key string) error {
		switch key {
		case "metadata":
			return r.Decode(&metadata)
		case "versions":
			return r.Array(func() error { return r.version(&stale) })
		}
		return r.Skip()
	})
	name := metadata.Name
	r.complete = r.complete || name == definitions
	if stale && slices.ContainsFunc(r.wanted, func(k mirror.Kind) bool { return k.Group == name }) {
		r.unsure[name] = true
	}
	for _, one := range r.found {
		if one.Kind.Group = name; slices.Contains(r.wanted, one.Kind) {
			r.Kinds[one.Kind] = append(r.Kinds[one.Kind], one)
		}
	}
	return err
}

// version reads a version of a group. It sets stale if the version may be old.
func (r *reader) version(stale *bool) error {
	from := len(r.found)
	var version, freshness string
	err := r.Object(func(key string) error {
		switch key {
		case "version":
			return r.Decode(&version)
		case "freshness":
			return r.Decode(&freshness)
		case "resources":
			return r.Array(r.resource)
		}
		return r.Skip()
	})
	*stale = *stale || freshness == "Stale"
	for i := range r.found[from:] {
		if r.found[from+i].Version = version; err == nil {
			err = label(version)
		}
	}
	return err
}

// resource reads a kind.
func (r *reader) resource() error {
	var one struct {
		Resource     string `json:"resource"`
		ResponseKind struct {
			Kind string `json:"kind"`
		} `json:"responseKind"`
		Scope string   `json:"scope"`
		Verbs []string `json:"verbs"`
	}
	if err := r.Decode(&one); err != nil {
		return err
	}
	kind := one.ResponseKind.Kind
	named := slices.ContainsFunc(r.wanted, func(k mirror.Kind) bool { return k.Kind == kind })
	if !named || strings.Contains(one.Resource, "/") || !slices.Contains(one.Verbs, "list") || !slices.Contains(one.Verbs, "watch") {
		return nil // not wanted, a subresource, or nothing that can be mirrored
	}
	if r.kept++; r.kept > maxKept {
		return fmt.Errorf("there are more than %d versions of kinds", maxKept)
	}
	r.found = append(r.found, Resource{Kind: mirror.Kind{Kind: kind}, Plural: one.Resource, Namespaced: one.Scope == "Namespaced", Selected: true})
	return label(one.Resource)
}

// label returns an error for a text that can not be part of the path of a collection.
func label(text string) error {
	if len(validation.IsDNS1035Label(text)) > 0 {
		return errors.New("a version or a plural is not 1 to 63 lower-case letters, digits and dashes")
	}
	return nil
}

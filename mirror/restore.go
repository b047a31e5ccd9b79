package mirror

import (
	"errors"
	"fmt"

	"meshrelay/internal/text"
)

// Restore builds a resource from what was written down of it: its kind, its Any, and what
// that does not carry. The result equals the one that Any was taken from, and has its
// Digest. It copies data, which the caller may reuse.
//
// It fails as Decode does: what this build would not take from a source, because receivers
// could not decode it, it does not take from a disk either.
func Restore(kind Kind, data []byte, source, cluster, sourceVersion string) (*Resource, error) {
	typeURL, value, err := splitAny(data)
	if err != nil {
		return nil, err
	}
	f := from{source: source, cluster: cluster}
	if kind == MeshConfig {
		if err := checkBody(kind, typeURL, value); err != nil {
			return nil, err
		}
		return newBare(kind, data, f, sourceVersion), nil
	}
	if !hasMessageName(typeURL, "istio.mcp.v1alpha1.Resource") {
		return nil, fmt.Errorf("element is a %q, want %q", text.Abbreviate(string(typeURL)), resourceURL)
	}
	meta, body, err := splitResource(value)
	if err != nil {
		return nil, err
	}
	md, err := parseMetadata(meta)
	if err != nil {
		return nil, err
	}
	name := text.Abbreviate(string(md.name))
	if !md.validText() {
		return nil, errors.New("the name, a label or an annotation is not valid UTF-8")
	}
	bodyURL, bodyValue, err := splitAny(body)
	if err != nil {
		return nil, fmt.Errorf("%s: body: %w", name, err)
	}
	if err := checkBody(kind, bodyURL, bodyValue); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// The version in the metadata is ours, made of the content.
	md.version = []byte(sourceVersion)
	return newWrapped(kind, md, body, f)
}

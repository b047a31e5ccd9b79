package records

import (
	"cmp"
	"encoding/base32"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// ContentOf identifies the keys and versions of records, alike on all replicas. Addresses are no part of it, and neither are
// siblings, which come with them.
func (im *Rules) ContentOf(all []state.Record) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b state.Record) int { return mirror.CompareKeys(a.Resource.Key(), b.Resource.Key()) })
	sum := NewSum()
	for _, rec := range all {
		r, original := rec.Resource, cmp.Or(rec.Original, rec.Resource)
		if r.HasAnnotation(mirror.SiblingAnnotation) {
			continue
		}
		if im.isAddressed(r, original, im.believed(original)) {
			if im.isMade(original) {
				r = original // its ports go with the endpoints
			}
			if bare, err := services.Without(r); err == nil {
				r = bare
			}
		}
		sum.Add(rec.Resource.Key(), r.Version())
	}
	return sum.String()
}

// Sum identifies a content: keys with their versions.
type Sum struct{ *xxh3.Hasher }

// NewSum returns the Sum of nothing.
func NewSum() Sum { return Sum{xxh3.New()} }

// Add adds a resource.
func (sum Sum) Add(key mirror.Key, version string) {
	for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, version} {
		_, _ = sum.WriteString(part) // it never fails
		_, _ = sum.Write([]byte{0})
	}
}

// String returns the sum in 26 letters and digits.
func (sum Sum) String() string {
	digest := sum.Sum128().Bytes()
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:]))
}

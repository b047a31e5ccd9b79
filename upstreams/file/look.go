package file

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"meshrelay/config"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
)

// Read reads a file, or every YAML and JSON file below a directory, as a Source does. problems are
// about files and documents, at most a hundred; err is about the path. It sorts the resources by
// kind and name. mixed passes over objects of kinds that the relay does not serve.
func Read(path, source string, mixed bool) (resources []*mirror.Resource, problems []records.Refusal, err error) {
	s := newScanner(source)
	s.mixed = mixed
	if err := s.scan(path); err != nil {
		return nil, nil, err
	}
	merged, problems, _ := s.merge()
	return sorted(merged), problems, nil
}

// sorted returns the resources sorted by kind and name.
func sorted(merged map[mirror.Key]*mirror.Resource) []*mirror.Resource {
	return slices.SortedFunc(maps.Values(merged), func(a, b *mirror.Resource) int {
		return cmp.Or(mirror.CompareKinds(a.Kind(), b.Kind()), cmp.Compare(a.FullName(), b.FullName()))
	})
}

// look implements upstreams.Kind.Read.
func look(ctx context.Context, u config.Upstream) upstreams.Content {
	path := pathOf(u)
	if _, err := os.Stat(path); err != nil {
		return upstreams.Content{} // config.Check reports it
	}
	s := newScanner(u.Name)
	s.ended = ctx.Done()
	return s.look(path, u.Name)
}

// look reads a path until s.ended, and estimates what it has in all.
func (s *scanner) look(path, upstream string) (c upstreams.Content) {
	if err := s.scan(path); err != nil {
		c.Problems = append(c.Problems, fmt.Errorf("upstream %s: %w", upstream, err))
	}
	merged, bad, _ := s.merge()
	for _, b := range bad {
		c.Problems = append(c.Problems, fmt.Errorf("%s: %s", b.Resource, b.Reason))
	}
	for _, r := range sorted(merged) {
		c.Objections.Add(r.Key().String(), kube.Objection(r))
	}
	c.Resources, c.About, c.All = len(merged), len(merged), len(s.files)
	seen, left := 0, 0
	for _, f := range s.files {
		seen += f.seen
		if left += f.left; f.left == 0 {
			c.Files++
		}
	}
	if seen > 0 {
		c.About += int(float64(c.Resources) * float64(left) / float64(seen))
	}
	return c
}

package conflicts

import (
	"cmp"
	"slices"
)

// maxChunk bounds the claimants that an insertion into a claimSet moves.
const maxChunk = 512

// claimSet is a set of claimants with different keys, ordered by key. An insertion costs
// time in proportion to a chunk, and to the number of chunks when one is split.
type claimSet struct {
	chunks [][]*claimant // in order; none is empty
	len    int
	sum    uint64 // of the keys, whatever their order
}

// find returns the place of a claimant, or the place for it.
func (s *claimSet) find(c *claimant) (chunk, at int, found bool) {
	chunk, found = slices.BinarySearchFunc(s.chunks, c, func(chunk []*claimant, c *claimant) int { return compareClaimants(chunk[0], c) })
	if found {
		return chunk, 0, true
	}
	if chunk == 0 {
		return 0, 0, false
	}
	at, found = slices.BinarySearchFunc(s.chunks[chunk-1], c, compareClaimants)
	return chunk - 1, at, found
}

func (s *claimSet) insert(c *claimant) {
	s.len++
	s.sum ^= c.sum
	if len(s.chunks) == 0 {
		s.chunks = [][]*claimant{{c}}
		return
	}
	i, at, _ := s.find(c)
	s.chunks[i] = slices.Insert(s.chunks[i], at, c)
	if chunk := s.chunks[i]; len(chunk) > maxChunk {
		s.chunks[i] = slices.Clone(chunk[:maxChunk/2])
		s.chunks = slices.Insert(s.chunks, i+1, slices.Clone(chunk[maxChunk/2:]))
	}
}

func (s *claimSet) drop(c *claimant) (found bool) {
	i, at, found := s.find(c)
	if !found {
		return false
	}
	s.len--
	s.sum ^= c.sum
	if s.chunks[i] = slices.Delete(s.chunks[i], at, at+1); len(s.chunks[i]) == 0 {
		s.chunks = slices.Delete(s.chunks, i, i+1)
	}
	return true
}

// first returns the first n claimants, or all if there are fewer. The caller must not change
// the slice.
func (s *claimSet) first(n int) (out []*claimant) {
	for _, chunk := range s.chunks {
		if out == nil && (len(chunk) >= n || len(s.chunks) == 1) {
			return chunk[:min(n, len(chunk))]
		}
		out = append(out, chunk[:min(n-len(out), len(chunk))]...)
		if len(out) == n {
			break
		}
	}
	return out
}

func compareClaimants(a, b *claimant) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

package xds

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"meshrelay/adsclient"
	"meshrelay/upstreams/intake"
)

// Resync implements upstreams.Source.
func (s *Source) Resync() { s.Repeat(true) }

// Repeat implements upstreams.Source.
func (s *Source) Repeat(again bool) (repeats bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.st.Protocol == "" {
		return true
	}
	defer s.client.Relist()
	if again && s.repeating != nil {
		return true // keep the progress of a slow server
	}
	s.repeating = make(map[string]sets.Set[string], len(s.types))
	for _, url := range s.types {
		switch {
		case s.notOffered[url]:
		case s.st.Protocol == string(adsclient.Delta):
			s.repeating[url] = sets.KeySet(s.ResumeVersions(url))
		default:
			s.repeating[url] = nil
		}
	}
	return true
}

// Repeating returns the types that the server was asked to repeat, and has not repeated yet.
func (s *Source) Repeating() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.repeating))
}

// noteRepeated tells the feed when the server has repeated everything. A delta answer may come in
// parts, and after a push. So a type is repeated once each of its held names has been sent or
// removed. The caller holds mu.
func (s *Source) noteRepeated(resp *adsclient.Response, complete bool) {
	names, asked := s.repeating[resp.TypeURL]
	if !asked {
		return
	}
	if !complete {
		for raw := range resp.Resources(1) { // the names are enough
			delete(names, string(raw.Name))
		}
		for name := range resp.Removed() {
			delete(names, string(name))
		}
		if len(names) > 0 {
			return
		}
	}
	if delete(s.repeating, resp.TypeURL); len(s.repeating) == 0 {
		s.repeating = nil
		s.feed.Tell(intake.Repeated{})
	}
}

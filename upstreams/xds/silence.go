package xds

import (
	"fmt"
	"slices"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// ifSilent is what to do about a server that is silent about kinds.
const ifSilent = "if that is all it has, set xds.partial: true, or import.kinds"

// HandleSilence implements adsclient.Config.Silent. Every istiod answers a MeshConfig at once. It may take
// minutes for another kind, so that silence alone tells nothing.
func (s *Source) HandleSilence(silent []string) (awaited []string) {
	s.telling.Lock()
	defer s.telling.Unlock()
	cure := "their resources are served until it answers"
	var scopes []records.Scope
	for _, typeURL := range silent {
		if scope, err := records.TypeScope(typeURL); err == nil && (scope.Kind == mirror.MeshConfig || sectionOf(s.cfg).Partial) {
			scopes = append(scopes, scope)
		} else {
			awaited, cure = append(awaited, typeURL), ifSilent
		}
	}
	if len(scopes) > 0 {
		awaited = append(awaited, s.feed.Tell(intake.Silent{Scopes: scopes}).Awaited...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.cure = awaited, cure
	return awaited
}

// silentAbout describes a server that has answered all types but the silent ones.
func silentAbout(all, silent []string) string {
	kinds := map[bool][]mirror.Kind{} // of the silent types, and of the others
	for _, typeURL := range all {
		kind, _, _ := mirror.ParseTypeURL(typeURL) // it was asked for
		is := slices.Contains(silent, typeURL)
		kinds[is] = append(kinds[is], kind)
	}
	not := slices.DeleteFunc(slices.Compact(kinds[true]), func(k mirror.Kind) bool { return slices.Contains(kinds[false], k) })
	if len(not) == 0 {
		return fmt.Sprintf("is silent about %d types, such as %s", len(silent), silent[0])
	}
	return fmt.Sprintf("answers %d kinds and is silent about %d, such as %s", len(slices.Compact(kinds[false])), len(not), not[0].Kind)
}

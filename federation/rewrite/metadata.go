package rewrite

import (
	"slices"
	"strings"

	"meshrelay/mirror"
)

// idle reports whether there is nothing to edit in the annotations of a resource. That is the usual case: most
// resources have no annotation that is removed by default.
func (e *Edit) idle(r *mirror.Resource) bool {
	return len(e.Set) == 0 && !slices.ContainsFunc(e.Remove, func(k string) bool {
		return strings.HasSuffix(k, "*") || r.HasAnnotation(k)
	})
}

// apply rewrites the references in m, then edits m, and reports whether m changed.
func (e *Edit) apply(s *scope, m map[string]string, references map[string]*role) (map[string]string, bool) {
	changed := false
	for k, role := range references {
		if v, ok := m[k]; ok && role.sees&s.effects != 0 {
			if to := role.text(s, v); to != v {
				m[k], changed = to, true
			}
			s.blame(k)
		}
	}
	for k := range m {
		if e.removes(k) {
			delete(m, k)
			changed = true
		}
	}
	for k, v := range e.Set {
		if have, ok := m[k]; ok && have == v {
			continue
		}
		if m == nil {
			m = make(map[string]string, len(e.Set))
		}
		m[k], changed = v, true
	}
	return m, changed
}

func (e *Edit) removes(key string) bool {
	if _, set := e.Set[key]; set || key == mirror.ProvenanceAnnotation || key == mirror.AllocatedAnnotation { // apply sets the one, relays need the other
		return false
	}
	return slices.ContainsFunc(e.Remove, func(k string) bool {
		prefix, many := strings.CutSuffix(k, "*")
		return k == key || many && strings.HasPrefix(key, prefix)
	})
}

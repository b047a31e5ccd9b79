package rewrite

import (
	"maps"
	"strings"

	"meshrelay/mirror"
)

// editRules is a compiled Edit. A nil *editRules edits nothing.
type editRules struct {
	set      map[string]string
	keys     map[string]bool
	prefixes []string
}

// newEditRules returns nil when the Edit changes nothing.
func newEditRules(e Edit) *editRules {
	if len(e.Set) == 0 && len(e.Remove) == 0 {
		return nil
	}
	r := &editRules{set: maps.Clone(e.Set), keys: map[string]bool{}}
	for _, k := range e.Remove {
		if prefix, ok := strings.CutSuffix(k, "*"); ok {
			r.prefixes = append(r.prefixes, prefix)
		} else {
			r.keys[k] = true
		}
	}
	return r
}

// idle reports whether there is nothing to edit in the annotations of a resource. Most have no
// annotation that is removed by default.
func (r *editRules) idle(res *mirror.Resource) bool {
	if r == nil {
		return true
	}
	if len(r.set) > 0 || len(r.prefixes) > 0 {
		return false
	}
	for key := range r.keys {
		if res.HasAnnotation(key) {
			return false
		}
	}
	return true
}

// apply rewrites the references in m, then edits m, and reports whether m changed.
func (r *editRules) apply(s *scope, m map[string]string, references map[string]*role) (map[string]string, bool) {
	changed := false
	for k, role := range references {
		if v, ok := m[k]; ok && role.sees&s.effects != 0 {
			if to := role.text(s, v); to != v {
				m[k], changed = to, true
			}
			s.blame(k)
		}
	}
	if r == nil {
		return m, changed
	}
	for k := range m {
		if r.removes(k) {
			delete(m, k)
			changed = true
		}
	}
	for k, v := range r.set {
		if have, ok := m[k]; ok && have == v {
			continue
		}
		if m == nil {
			m = make(map[string]string, len(r.set))
		}
		m[k], changed = v, true
	}
	return m, changed
}

func (r *editRules) removes(key string) bool {
	if key == mirror.ProvenanceAnnotation {
		return false // the relays need it
	}
	if _, set := r.set[key]; set {
		return false // apply sets it
	}
	if r.keys[key] {
		return true
	}
	for _, p := range r.prefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}

package fakekube

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// Object returns an object with a spec, merged with more JSON. It panics if a text is not JSON.
func Object(namespace, name, spec string, more ...string) map[string]any {
	text := fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q,"creationTimestamp":"2024-02-03T04:05:06Z"},"spec":%s}`, namespace, name, spec)
	for _, patch := range more {
		var err error
		if text, err = jsonpatch.MergePatch(text, []byte(patch)); err != nil {
			panic(err)
		}
	}
	return decoded(text)
}

// Namespace creates or changes a namespace. labels are JSON.
func (s *Server) Namespace(name, labels string) {
	s.Put("/namespaces", decoded(fmt.Appendf(nil, `{"metadata":{"name":%q,"creationTimestamp":"2024-02-03T04:05:06Z","labels":%s}}`, name, labels)))
}

func decoded(text []byte) (o map[string]any) {
	if err := json.Unmarshal(text, &o); err != nil {
		panic(err)
	}
	return o
}

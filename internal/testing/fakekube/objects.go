package fakekube

import (
	"encoding/json"
	"fmt"
)

// Object returns an object with a spec, merged with more JSON. It panics if a text is not JSON.
func Object(namespace, name, spec string, more ...string) map[string]any {
	o := map[string]any{}
	merge(o, fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"creationTimestamp":"2024-02-03T04:05:06Z"},"spec":%s}`, namespace, name, spec))
	for _, text := range more {
		merge(o, text)
	}
	return o
}

// Namespace creates or changes a namespace. labels are JSON.
func (s *Server) Namespace(name, labels string) {
	o := map[string]any{"metadata": map[string]any{"name": name, "creationTimestamp": "2024-02-03T04:05:06Z"}}
	merge(o, `{"metadata":{"labels":`+labels+`}}`)
	s.Put("/namespaces", o)
}

func merge(into map[string]any, text string) {
	var from map[string]any
	if err := json.Unmarshal([]byte(text), &from); err != nil {
		panic(err)
	}
	mergeMaps(into, from)
}

func mergeMaps(to, from map[string]any) {
	for k, v := range from {
		if m, ok := v.(map[string]any); ok {
			if sub, ok := to[k].(map[string]any); ok {
				mergeMaps(sub, m)
				continue
			}
		}
		to[k] = v
	}
}

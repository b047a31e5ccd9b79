package config_test

import (
	"slices"
	"strings"
	"testing"

	"meshrelay/config"
)

// mostFields is how many fields a person may have to know.
const mostFields = 152

// settable returns the paths of the fields of a schema that have a value of their own: lists of
// values and maps count as one.
func settable(at string, s *config.Schema) (paths []string) {
	if s.Items != nil && len(s.Items.Properties) > 0 {
		return settable(at+"[]", s.Items)
	}
	if len(s.Properties) == 0 {
		return []string{at}
	}
	for name, field := range s.Properties {
		paths = append(paths, settable(config.Join(at, name), field)...)
	}
	return paths
}

func TestFieldsAreFewEnoughToKnow(t *testing.T) {
	fields := settable("", config.SchemaOf(func(string) string { return "" }, sources()...))
	fields = slices.DeleteFunc(fields, func(path string) bool { // those of upstreams again
		return strings.HasPrefix(path, "clusters[].upstream.")
	})
	if n := len(fields); n > mostFields || n < 100 {
		slices.Sort(fields)
		t.Errorf("%d fields can be set, and at most %d may be:\n%s", n, mostFields, strings.Join(fields, "\n"))
	}
}

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// sortKey is the JSONPath of the field by which resources are sorted. The zero value keeps their order.
type sortKey struct {
	text string
	path *jsonpath.JSONPath
}

// parseSortKey parses a JSONPath as kubectl does: the braces and the first dot may be missing.
func parseSortKey(text string) (k sortKey, err error) {
	if text == "" {
		return k, nil
	}
	inner := strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}"), ".")
	k = sortKey{"{." + inner + "}", jsonpath.New("sort-by").AllowMissingKeys(true)}
	if err := k.path.Parse(k.text); err != nil || inner == "" {
		return sortKey{}, fmt.Errorf("--sort-by %q: write the JSONPath of a field, such as .metadata.creationTimestamp", text)
	}
	return k, nil
}

// sort sorts the resources of each group. Those without the field come first.
func (k sortKey) sort(groups []selection.Group) error {
	if k.path == nil {
		return nil
	}
	found, resources := false, 0
	for _, g := range groups {
		values := make(map[*mirror.Resource]any, len(g.Resources))
		for _, r := range g.Resources {
			v, err := k.value(g.Kind, r)
			if err != nil {
				return err
			}
			values[r], found = v, found || v != nil
		}
		resources += len(g.Resources)
		slices.SortStableFunc(g.Resources, func(a, b *mirror.Resource) int { return compareValues(values[a], values[b]) })
	}
	if resources > 0 && !found {
		return fmt.Errorf("--sort-by %s: no resource has that field: look at one with -o json", k.text)
	}
	return nil
}

// value returns the field of a resource: a string, a number, a bool, or nil if it does not exist.
func (k sortKey) value(kind selection.Kind, r *mirror.Resource) (any, error) {
	o, err := kube.New(r, kind.Version, r.SourceVersion())
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var object any
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	results, err := k.path.FindResults(object)
	if err != nil {
		return nil, fmt.Errorf("--sort-by %s: %w", k.text, err)
	}
	if len(results) == 0 || len(results[0]) == 0 {
		return nil, nil
	}
	v := results[0][0]
	if v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() {
		return nil, nil
	}
	switch v := v.Interface().(type) {
	case string, float64, bool:
		return v, nil
	}
	return nil, errors.New("--sort-by " + k.text + ": it is a list or a map: name one value in it, such as {.spec.hosts[0]}")
}

// compareValues compares results of value. The order is nil, bools, numbers, strings.
func compareValues(a, b any) int {
	rank := func(v any) int {
		switch v := v.(type) {
		case bool:
			if v {
				return 2
			}
			return 1
		case float64:
			return 3
		case string:
			return 4
		}
		return 0
	}
	x, isNumber := a.(float64)
	y, areNumbers := b.(float64)
	s, isText := a.(string)
	t, areTexts := b.(string)
	switch {
	case isNumber && areNumbers:
		return cmp.Compare(x, y)
	case isText && areTexts:
		return compareNatural(s, t)
	}
	return rank(a) - rank(b)
}

// compareNatural compares strings, with the numbers in them by value: r2 is before r10.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		m, n := digits(a), digits(b)
		if m == 0 || n == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		x, y := strings.TrimLeft(a[:m], "0"), strings.TrimLeft(b[:n], "0")
		if c := cmp.Or(len(x)-len(y), strings.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[m:], b[n:]
	}
	return len(a) - len(b)
}

// digits returns the number of digits at the beginning of s.
func digits(s string) int {
	return len(s) - len(strings.TrimLeft(s, "0123456789"))
}

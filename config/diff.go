package config

import (
	"fmt"
	"reflect"
	"slices"
)

// restartOnly are the fields that only a restart applies. Each includes the fields below it.
var restartOnly = []string{
	"node", "provenance", "admin", "state.dir", "replicas", "log.format",
	"downstream.listeners", "downstream.startupTimeout",
}

// namedLists are the fields that are lists of elements with a name.
var namedLists = []string{"upstreams", "clusters", "views", "sinks"}

// Diff returns the changed fields that only a restart applies, in the order of the file. It
// compares the running config with cfg.
func Diff(running, cfg *Config) (needsRestart []string) {
	differing("", reflect.ValueOf(*running), reflect.ValueOf(*cfg), func(field string, _, _ reflect.Value) {
		if slices.ContainsFunc(restartOnly, func(f string) bool { return encloses(f, field) }) {
			needsRestart = append(needsRestart, field)
		}
	})
	return needsRestart
}

// maxChanges limits the list that Changes returns.
const maxChanges = 20

// Changes lists the differences between two configs in the order of the file: changed fields,
// and added or removed upstreams, clusters, views and rules. The list has at most maxChanges elements,
// and one more that counts the rest.
func Changes(before, next *Config) (list []string) {
	more := 0
	differing("", reflect.ValueOf(*before), reflect.ValueOf(*next), func(field string, a, b reflect.Value) {
		changes := []string{field}
		if slices.Contains(namedLists, field) {
			changes = named(field, a, b)
		}
		for _, c := range changes {
			if len(list) == maxChanges {
				more++
				continue
			}
			list = append(list, c)
		}
	})
	if more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return list
}

// named lists the differences between two lists with named elements.
func named(field string, before, next reflect.Value) (changes []string) {
	names := func(list reflect.Value) (all []string) {
		for _, e := range list.Seq2() {
			all = append(all, e.FieldByName("Name").String())
		}
		return all
	}
	was, is := names(before), names(next)
	for _, name := range was {
		if !slices.Contains(is, name) {
			changes = append(changes, fmt.Sprintf("%s: %s removed", field, name))
		}
	}
	order := slices.DeleteFunc(slices.Clone(was), func(name string) bool { return !slices.Contains(is, name) })
	for j, name := range is {
		i := slices.Index(was, name)
		if i < 0 {
			changes = append(changes, fmt.Sprintf("%s: %s added", field, name))
			continue
		}
		if order[0] != name && !slices.Contains(changes, field+": order changed") {
			changes = append(changes, field+": order changed")
		}
		order = slices.DeleteFunc(order, func(s string) bool { return s == name })
		differing(fmt.Sprintf("%s[%s]", field, name), before.Index(i), next.Index(j), func(at string, _, _ reflect.Value) {
			changes = append(changes, at)
		})
	}
	return changes
}

// differing calls f with the name and values of each field that differs between two values, the innermost
// one. It does not look into lists of different lengths, lists with named elements, and fields
// that only one value has.
func differing(at string, a, b reflect.Value, f func(field string, a, b reflect.Value)) {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	switch {
	case slices.Contains(namedLists, at):
		f(at, a, b)
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			path := join(at, yamlName(a.Type().Field(i)))
			if s, ok := a.Field(i).Interface().(Source); ok {
				path = join(at, s.Kind())
			} else if yamlName(a.Type().Field(i)) == "-" {
				path = at // it depends on other parts of the file
			}
			differing(path, a.Field(i), b.Field(i), f)
		}
	case a.Kind() == reflect.Interface && !a.IsNil() && !b.IsNil() && a.Elem().Type() == b.Elem().Type():
		differing(at, a.Elem(), b.Elem(), f)
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		differing(at, a.Elem(), b.Elem(), f)
	case a.Kind() == reflect.Slice && a.Len() == b.Len():
		for i := range a.Len() {
			differing(fmt.Sprintf("%s[%d]", at, i), a.Index(i), b.Index(i), f)
		}
	default:
		f(at, a, b)
	}
}

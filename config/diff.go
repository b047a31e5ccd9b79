package config

import (
	"fmt"
	"reflect"
	"slices"
)

// restartOnly are the fields that a running relay can not take over, with all that is below
// them.
func restartOnly() []string {
	return []string{
		"node", "provenance", "admin", "state.dir", "log.format",
		"downstream.listeners", "downstream.startupTimeout", "downstream.maxConnectionAge",
		"downstream.maxConnectionAgeGrace", "downstream.drainTimeout", "downstream.sendTimeout",
		"downstream.maxStreamsPerConnection", "downstream.maxRequestBytes", "downstream.maxHeaderBytes", "downstream.compression",
	}
}

// Diff returns the names of the fields in which cfg differs from what a relay runs with and
// that it takes over only when it is started anew, in the order of the file.
func Diff(running, cfg *Config) (needsRestart []string) {
	differing("", reflect.ValueOf(*running), reflect.ValueOf(*cfg), func(field string) {
		if slices.ContainsFunc(restartOnly(), func(f string) bool { return encloses(f, field) }) {
			needsRestart = append(needsRestart, field)
		}
	})
	return needsRestart
}

// differing calls f with the name of each field in which two values differ: the innermost,
// but for lists of different lengths, and for what only one of them has.
func differing(at string, a, b reflect.Value, f func(field string)) {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	switch {
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			differing(join(at, yamlName(a.Type().Field(i))), a.Field(i), b.Field(i), f)
		}
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		differing(at, a.Elem(), b.Elem(), f)
	case a.Kind() == reflect.Slice && a.Len() == b.Len():
		for i := range a.Len() {
			differing(fmt.Sprintf("%s[%d]", at, i), a.Index(i), b.Index(i), f)
		}
	default:
		f(at)
	}
}

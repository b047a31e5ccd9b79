package main

import (
	"slices"
	"testing"
)

func TestTextsAreSortedAsPeopleDo(t *testing.T) {
	want := []any{nil, false, true, 2.0, 10.0, "", "a", "a2b", "a2c", "a10", "a10b", "b"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortStableFunc(got, compareValues)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestASortKeyIsTakenAsOfKubectl(t *testing.T) {
	for _, text := range []string{"metadata.name", ".metadata.name", "{.metadata.name}", "{metadata.name}"} {
		if k, err := parseSortKey(text); err != nil || k.text != "{.metadata.name}" {
			t.Errorf("%s: %q %v", text, k.text, err)
		}
	}
	for _, text := range []string{"{", "{}", ".", "{.a[}"} {
		if k, err := parseSortKey(text); err == nil {
			t.Errorf("%s is taken, as %s", text, k.text)
		}
	}
}

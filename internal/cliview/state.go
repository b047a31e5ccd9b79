package cliview

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"meshrelay/internal/stateio"
	"meshrelay/state"
)

// shownRevisions bounds the revisions that State shows of an upstream.
const shownRevisions = 10

// State writes what a state has of each upstream. With detailed, the kinds and newest revisions
// of the first one follow.
func State(w io.Writer, all stateio.Inspection, detailed bool, now time.Time) error {
	rows := [][]string{{"UPSTREAM", "RESOURCES", "BYTES", "SYNCED", "LAST CONTACT", "FROZEN", "REVISIONS"}}
	for _, u := range all.Upstreams {
		rows = append(rows, []string{
			u.Name, strconv.Itoa(u.Resources), strconv.FormatInt(u.Bytes, 10), yesNo(u.Synced),
			Ago(u.LastContact, now), frozenFor(u.Frozen, now), strconv.Itoa(len(u.Revisions)),
		})
	}
	if err := Rows(w, rows); err != nil || !detailed {
		return err
	}
	u := all.Upstreams[0]
	rows = [][]string{{"KIND", "RESOURCES"}}
	for _, kind := range slices.Sorted(maps.Keys(u.Kinds)) {
		rows = append(rows, []string{kind, strconv.Itoa(u.Kinds[kind])})
	}
	fmt.Fprintln(w)
	if err := Rows(w, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return History(w, u.Revisions[:min(len(u.Revisions), shownRevisions)], now)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func frozenFor(f *state.Frozen, now time.Time) string {
	switch {
	case f == nil:
		return "no"
	case f.Revision != 0:
		return fmt.Sprintf("%s, at revision %d", Ago(f.Since, now), f.Revision)
	}
	return Ago(f.Since, now)
}

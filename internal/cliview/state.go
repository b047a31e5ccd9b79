package cliview

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"meshrelay/internal/stateio"
	"meshrelay/state"
)

// shownRevisions bounds the revisions that State shows of an upstream.
const shownRevisions = 10

// State returns what a state has of each upstream as text. With detailed, the kinds and newest
// revisions of the first one follow.
func State(all stateio.Inspection, detailed bool, now time.Time) string {
	var p page
	rows := [][]string{{"UPSTREAM", "RESOURCES", "BYTES", "SYNCED", "LAST CONTACT", "FROZEN", "REVISIONS"}}
	for _, u := range all.Upstreams {
		rows = append(rows, []string{
			u.Name, strconv.Itoa(u.Resources), strconv.FormatInt(u.Bytes, 10), yesNo(u.Synced),
			Ago(u.LastContact, now), frozenFor(u.Frozen, now), strconv.Itoa(len(u.Revisions)),
		})
	}
	p.rows(rows)
	if !detailed {
		return p.String()
	}
	u := all.Upstreams[0]
	rows = [][]string{{"KIND", "RESOURCES"}}
	for _, kind := range slices.Sorted(maps.Keys(u.Kinds)) {
		rows = append(rows, []string{kind, strconv.Itoa(u.Kinds[kind])})
	}
	p.WriteString("\n")
	p.rows(rows)
	return p.String() + "\n" + History(u.Revisions[:min(len(u.Revisions), shownRevisions)], now)
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

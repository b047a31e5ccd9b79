package cliview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/sink"
)

// neverWritten has the words for the reasons in sink.Status.NeverWritten.
var neverWritten = map[string]string{
	"meshConfig": "MeshConfigs", "madeOfServices": "ServiceEntries made of Kubernetes services", "generated": "generated objects",
}

// Sinks returns a table of sinks, with details if whole is set.
func Sinks(all []sink.Status, whole bool, now time.Time) string {
	if len(all) == 0 {
		return "no sinks: the config has none\n"
	}
	t := titled("NAME", "VIEW", "MODE", "STATE", "DESIRED", "OBJECTS", "TO DO", "TROUBLES", "DRIFTED", "COMPLETE")
	for _, s := range all {
		complete := "never"
		if !s.Complete.IsZero() {
			complete = view.Age(now.Sub(s.Complete)) + " ago"
		}
		t.add(s.Name, s.View, s.Mode, s.State, s.Desired, s.Objects, counted(s.Todo), counted(s.TroublesByState), s.Drifted, complete)
	}
	var b strings.Builder
	b.WriteString(t.String())
	for _, s := range all {
		sinkLines(&b, s, whole, now)
	}
	return b.String()
}

// counted returns counts as text: "create 3, held 1".
func counted(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func sinkLines(b *strings.Builder, s sink.Status, whole bool, now time.Time) {
	line := func(format string, args ...any) {
		fmt.Fprintf(b, "sink %s: %s\n", s.Name, Clean(fmt.Sprintf(format, args...)))
	}
	for _, p := range s.Problems {
		line("%s", p)
	}
	if p := s.Promoted; p != nil {
		line("promoted by %s since %s%s, and does not write; go back with: relay sink adopt %s", p.By, p.Since.UTC().Format(time.RFC3339), because(p.Reason), s.Name)
	}
	if s.Added > 0 {
		line("%s with fields that others have added, which stay: relay sink diff %s --do added", view.Count(s.Added, "object"), s.Name)
	}
	if f := s.Frozen; f != nil {
		line("frozen by %s since %s%s: relay unfreeze sink/%s", f.By, f.Since.UTC().Format(time.RFC3339), because(f.Reason), s.Name)
	}
	if h := s.Held; h != nil {
		line("%s held: %s: relay release sink/%s --hold %s", view.Count(h.Removals, "deletion"), h.Reason, s.Name, h.ID)
	}
	for _, why := range slices.Sorted(maps.Keys(s.NeverWritten)) {
		line("never written: %d %s", s.NeverWritten[why], neverWritten[why])
	}
	if !whole {
		return
	}
	for _, t := range s.Troubles {
		line("%s: %s: %s", t.State, t.Resource, t.Reason)
	}
	for _, d := range s.Drifts {
		by := ""
		if d.Manager != "" {
			by = ", last manager " + d.Manager
		}
		line("%s by others %s ago: %s (%s%s)", d.What, view.Age(now.Sub(d.At)), d.Resource, view.Count(d.Times, "time"), by)
	}
	for _, e := range s.Examples {
		line("to do: %s %s%s", e.Do, e.Resource, because(e.Reason))
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// SinkOrdered describes the result of an order about a sink.
func SinkOrdered(name, verb string, done admin.SinkOrdered) string {
	text := map[string]string{
		"freeze": " is frozen", "unfreeze": " writes again", "release": ": " + view.Count(done.Objects, "deletion") + " released", "prune": ": " + view.Count(done.Objects, "object") + " to be deleted",
	}[verb]
	if !done.KeepsState && (verb == "release" || verb == "prune") { // the Lease has the others
		text += view.NoState
	}
	return "sink " + name + text
}

// SinkDiff returns differences as unified diffs of YAML.
func SinkDiff(d sink.Differences) string {
	var b strings.Builder
	for _, one := range d.Differences {
		if one.Error != "" {
			fmt.Fprintf(&b, "\n%s: %s: %s\n", Clean(one.Resource), one.Do, Clean(one.Error))
			continue
		}
		if len(one.Added) > 0 {
			fmt.Fprintf(&b, "\n%s: added at the site, and stays: %s\n", Clean(one.Resource), Clean(strings.Join(one.Added, ", ")))
		}
		b.WriteString(CleanLines(view.Difference("live "+one.Resource, one.Live, one.Do+" "+one.Resource, one.Then)))
	}
	return b.String()
}

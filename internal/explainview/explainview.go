// Package explainview prints explanations, conflicts and plans for people.
//
// The package must not know how they are come by.
package explainview

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"meshrelay/admin"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/kube"
	"meshrelay/internal/printer"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// Explain writes an explanation. With diffs, what is served follows as a difference from
// what each source has. Ages are counted from now.
func Explain(w io.Writer, e admin.Explanation, diffs bool, now time.Time) error {
	var b strings.Builder
	b.WriteString(headline(e, now) + "\n")
	if len(e.Group) > 0 {
		names := make([]string, 0, len(e.Group))
		for _, g := range e.Group {
			names = append(names, g.Namespace+"/"+g.Name)
		}
		fmt.Fprintf(&b, "It is merged with what has the same hosts: %s.\n", strings.Join(names, ", "))
	}
	for _, c := range e.HostConflicts {
		fmt.Fprintf(&b, "Host %s is claimed by several: %s.\n", c.Host, strings.Join(claims(c), ", "))
		if c.Apart != "" {
			fmt.Fprintf(&b, "They are not united: %s.\n", c.Apart)
		}
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, printer.CleanLines(b.String())); err != nil {
		return err
	}
	if err := printer.Rows(w, sourceRows(e, now)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if len(e.Clients) == 0 {
		if _, err := fmt.Fprintln(w, "No client watches the kind."); err != nil {
			return err
		}
	} else if err := printer.Rows(w, clientRows(e, now)); err != nil {
		return err
	}
	if !diffs {
		return nil
	}
	for _, s := range e.Sources {
		if s.From == nil || e.Served == nil || s.Outcome == admin.Renamed {
			continue
		}
		if err := Diff(w, "upstream "+s.Upstream, s.From, "served", e.Served); err != nil {
			return err
		}
	}
	return nil
}

// withheld says why an upstream that has something gives nothing of it.
func withheld(o admin.Outcome) string {
	switch o {
	case admin.Frozen:
		return "is frozen without it"
	case admin.Expired:
		return "has been out of contact for too long"
	}
	return "has begun or ceased to have it just now"
}

func headline(e admin.Explanation, now time.Time) string {
	name := e.String()
	why := ""
	if e.Reason != "" {
		why = ": " + e.Reason
	}
	switch e.Outcome {
	case admin.Served:
		if e.Since.IsZero() {
			return fmt.Sprintf("%s is served from upstream %s%s.", name, e.Source, why)
		}
		return fmt.Sprintf("%s is served from upstream %s%s. It is what it is since %s ago.", name, e.Source, why, printer.Ago(e.Since, now))
	case admin.United:
		if e.Into != nil {
			return fmt.Sprintf("%s is not served by itself: it went into %s%s.", name, e.Into, why)
		}
	case admin.Rejected:
		return fmt.Sprintf("%s is not served%s.", name, why)
	case admin.Missing:
		return fmt.Sprintf("%s: no upstream has it.", name)
	case admin.Frozen, admin.Expired, admin.Changing:
		for _, s := range e.Sources {
			if s.Outcome == e.Outcome {
				return fmt.Sprintf("%s is not served: upstream %s %s.", name, s.Upstream, withheld(s.Outcome))
			}
		}
	}
	return fmt.Sprintf("%s is not served: it is %s.", name, e.Outcome)
}

func claims(c conflicts.HostConflict) (out []string) {
	for _, claim := range c.Claims {
		out = append(out, fmt.Sprintf("%s/%s from %s", claim.Namespace, claim.Name, claim.Source))
	}
	return out
}

func sourceRows(e admin.Explanation, now time.Time) [][]string {
	rows := [][]string{{"UPSTREAM", "OUTCOME", "NAME THERE", "SINCE", "VERSION THERE", "DETAIL"}}
	for _, s := range e.Sources {
		original := printer.None
		if s.Original != nil {
			original = s.Original.Namespace + "/" + s.Original.Name
		}
		var detail []string
		if s.Reason != "" {
			detail = append(detail, s.Reason)
		}
		if s.Detail != "" {
			detail = append(detail, s.Detail)
		}
		if len(s.Changes) > 0 {
			detail = append(detail, "rewritten: "+strings.Join(s.Changes, ", "))
		}
		if s.Refused != "" {
			detail = append(detail, "the newest content is refused: "+s.Refused)
		}
		rows = append(rows, []string{s.Upstream, string(s.Outcome), original, printer.Ago(s.Since, now), printer.OrNone(s.SourceVersion), printer.OrNone(strings.Join(detail, ": "))})
	}
	return rows
}

func clientRows(e admin.Explanation, now time.Time) [][]string {
	rows := [][]string{{"CLIENT", "VIEW", "TYPE", "STATE", "SINCE"}}
	for _, c := range e.Clients {
		rows = append(rows, []string{c.NodeID, printer.OrNone(c.View), c.TypeURL, string(c.State), printer.Ago(c.At, now)})
	}
	return rows
}

// LeftOut writes what import rules leave out.
func LeftOut(w io.Writer, all []upstreams.LeftOut) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "Nothing is left out.")
		return err
	}
	rows := [][]string{{"UPSTREAM", "KIND", "NAMESPACE", "NAME", "REASON", "DETAIL"}}
	for _, l := range all {
		rows = append(rows, []string{l.Upstream, l.Kind, printer.OrNone(l.Namespace), l.Name, l.Reason, printer.OrNone(l.Detail)})
	}
	return printer.Rows(w, rows)
}

// Conflicts writes what sources do not agree on.
func Conflicts(w io.Writer, all admin.Conflicts, now time.Time) error {
	if len(all.Keys) == 0 {
		if _, err := fmt.Fprintln(w, "No two upstreams have the same key."); err != nil {
			return err
		}
	} else {
		rows := [][]string{{"KIND", "NAMESPACE", "NAME", "SERVED FROM", "UNITED", "NOT SERVED", "SINCE", "REASON"}}
		for _, c := range all.Keys {
			rows = append(rows, []string{
				c.Key.Kind.String(), printer.OrNone(c.Key.Namespace), c.Key.Name, printer.OrNone(c.Winner), printer.OrNone(strings.Join(c.United, ",")),
				printer.OrNone(strings.Join(c.Losers, ",")), printer.Ago(c.Since, now), printer.OrNone(c.Reason),
			})
		}
		if err := printer.Rows(w, rows); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if err := hostConflicts(w, all.Hosts, now); err != nil || len(all.NotFollowed) == 0 {
		return err
	}
	rows := [][]string{{"NOT FOLLOWED", "KIND", "SERVED FROM", "HOSTS", "NAMESPACES", "REASON"}}
	for _, n := range all.NotFollowed {
		namespaces := "*"
		if n.Namespaces > 0 {
			namespaces = strconv.Itoa(n.Namespaces)
		}
		rows = append(rows, []string{n.Key.Namespace + "/" + n.Key.Name, n.Key.Kind.Kind, n.Source, strconv.Itoa(n.Hosts), namespaces, n.Reason})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return printer.Rows(w, rows)
}

func hostConflicts(w io.Writer, all []conflicts.HostConflict, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "No host is claimed by two configs.")
		return err
	}
	rows := [][]string{{"HOST", "KIND", "CLAIMED BY", "SINCE"}}
	apart := slices.ContainsFunc(all, func(c conflicts.HostConflict) bool { return c.Apart != "" })
	if apart {
		rows[0] = append(rows[0], "NOT UNITED")
	}
	for _, c := range all {
		row := []string{c.Host, c.Kind.Kind, strings.Join(claims(c), ", "), printer.Ago(c.Since, now)}
		if apart {
			row = append(row, printer.OrNone(c.Apart))
		}
		rows = append(rows, row)
	}
	return printer.Rows(w, rows)
}

// Diff writes the difference between two objects as diff -u does. Versions and provenance
// are left out.
func Diff(w io.Writer, oldName string, old *kube.Object, newName string, cur *kube.Object) error {
	a, err := text(old)
	if err != nil {
		return err
	}
	b, err := text(cur)
	if err != nil {
		return err
	}
	d := diff.Diff(oldName, a, newName, b)
	if len(d) == 0 {
		_, err := fmt.Fprintf(w, "\n%s and %s are the same\n", oldName, newName)
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s", printer.CleanLines(string(d)))
	return err
}

// text returns an object as YAML; nothing when there is none.
func text(o *kube.Object) ([]byte, error) {
	if o == nil {
		return nil, nil
	}
	plain := *o
	plain.Metadata.ResourceVersion = ""
	plain.Metadata.Annotations = map[string]string{}
	for k, v := range o.Metadata.Annotations {
		if k != mirror.ProvenanceAnnotation {
			plain.Metadata.Annotations[k] = v
		}
	}
	data, err := json.Marshal(plain)
	if err != nil {
		return nil, err
	}
	return kube.YAML(data)
}

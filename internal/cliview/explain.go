package cliview

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"meshrelay/admin"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// Explain returns an explanation as text. With diffs, it adds the difference between each copy and
// the served resource. now is for ages.
func Explain(e admin.Explanation, diffs bool, now time.Time) string {
	var head, p page
	head.WriteString(headline(e, now) + "\n")
	for _, r := range e.Also {
		head.printf("There is also %s: %s\n", r, explainCommand(r))
	}
	if len(e.Group) > 0 {
		names := make([]string, 0, len(e.Group))
		for _, g := range e.Group {
			names = append(names, g.Namespace+"/"+g.Name)
		}
		head.printf("Merged with resources of the same hosts: %s.\n", strings.Join(names, ", "))
	}
	for _, c := range e.HostConflicts {
		head.printf("Several resources claim host %s: %s.\n", c.Host, strings.Join(claims(c), ", "))
		if c.Apart != "" {
			head.printf("They are not united: %s.\n", c.Apart)
		}
	}
	p.WriteString(CleanLines(head.String()) + "\n")
	p.table(copyTable(e.Sources, now))
	p.WriteString("\n")
	if len(e.Clients) == 0 {
		p.WriteString("No client subscribes to this kind.\n")
	} else {
		t := titled("CLIENT", "VIEW", "TYPE", "STATE", "SINCE")
		for _, c := range e.Clients {
			t.add(c.NodeID, c.View, c.TypeURL, c.State, Ago(c.At, now))
		}
		p.table(t)
	}
	for _, s := range e.Sources {
		if !diffs || s.From == nil || e.Served == nil || s.Outcome == admin.Renamed {
			continue
		}
		p.WriteString(difference("upstream "+s.Upstream, s.From, "served", e.Served))
	}
	return p.String()
}

// Elsewhere returns which other namespaces have a resource that is missing, and how to ask for
// those; nothing when none has.
func Elsewhere(e admin.Explanation) (text string) {
	for _, r := range e.Elsewhere {
		text += fmt.Sprintf("\n  %s exists: %s", Clean(r.String()), Clean(explainCommand(r)))
	}
	return text
}

// explainCommand returns the command that explains a resource.
func explainCommand(r admin.Ref) string {
	text := fmt.Sprintf("relay explain %s %s", r.Kind, r.Name)
	if r.Namespace != "" {
		text += " -n " + r.Namespace
	}
	return text
}

func headline(e admin.Explanation, now time.Time) string {
	name := strings.Replace(e.String(), " /", " ", 1) // without a namespace
	why := ""
	if e.Reason != "" {
		why = ": " + e.Reason
	}
	switch e.Outcome {
	case admin.Served:
		if e.Since.IsZero() {
			return fmt.Sprintf("%s is served from upstream %s%s.", name, e.Source, why)
		}
		return fmt.Sprintf("%s is served from upstream %s%s. Unchanged for %s.", name, e.Source, why, Ago(e.Since, now))
	case admin.United:
		if e.Into != nil {
			return fmt.Sprintf("%s is not served by itself: it is merged into %s%s.", name, e.Into, why)
		}
	case admin.Rejected:
		return fmt.Sprintf("%s is not served%s.", name, why)
	case admin.Missing:
		return fmt.Sprintf("%s: no upstream has it.", name)
	case admin.Frozen, admin.Expired, admin.Changing:
		for _, s := range e.Sources {
			if s.Outcome == e.Outcome {
				return fmt.Sprintf("%s is not served: upstream %s: %s.", name, s.Upstream, because(s))
			}
		}
	}
	return fmt.Sprintf("%s is not served: it is %s.", name, e.Outcome)
}

// because returns the reason of a copy's outcome that its fields hold, or nothing.
func because(c admin.SourceCopy) string {
	unfreeze := ": relay unfreeze " + c.Upstream
	switch {
	case c.ServedAs != nil:
		return "served as " + c.ServedAs.String()
	case c.Outcome == admin.Changing:
		return "changing right now, ask again"
	case c.Outcome == admin.Expired:
		return "expired by its staleness rules, upstream out of contact" + admin.StaleSince(c.StaleSince, c.StaleLater)
	case c.Outcome == admin.Frozen && c.Frozen != nil && c.Frozen.Revision != 0:
		return fmt.Sprintf("frozen at revision %d, which does not have it%s", c.Frozen.Revision, unfreeze)
	case c.Outcome == admin.Frozen && c.Frozen != nil:
		return "frozen" + admin.Since(c.Frozen.Since) + " without it" + unfreeze
	case c.Pending:
		return "frozen: newer content from the upstream is pending" + unfreeze
	case c.Unconfirmed && c.Frozen != nil:
		return "kept since the freeze at " + c.Frozen.Since.UTC().Format(time.RFC3339) + ", the upstream has not sent it again"
	case c.Unconfirmed:
		return "kept" + admin.StaleSince(c.StaleSince, c.StaleLater) + ", the upstream has not sent it again"
	case !c.StaleSince.IsZero():
		return "kept" + admin.StaleSince(c.StaleSince, c.StaleLater) + ", upstream out of contact"
	}
	return ""
}

// maxClaims bounds the claims of a host that are listed.
const maxClaims = 16

func claims(c conflicts.HostConflict) (out []string) {
	for i, claim := range c.Claims {
		if i == maxClaims {
			return append(out, fmt.Sprintf("and %d more", len(c.Claims)-i))
		}
		out = append(out, fmt.Sprintf("%s/%s from %s", claim.Namespace, claim.Name, claim.Source))
	}
	return out
}

func copyTable(copies []admin.SourceCopy, now time.Time) *table {
	t := titled("UPSTREAM", "OUTCOME", "NAME THERE", "SINCE", "VERSION THERE", "DETAIL")
	for _, c := range copies {
		original := ""
		if c.Original != nil {
			original = c.Original.Namespace + "/" + c.Original.Name
		}
		t.add(c.Upstream, c.Outcome, original, Ago(c.Since, now), c.SourceVersion, copyDetail(c))
	}
	return t
}

// copyDetail tells why a copy has its outcome.
func copyDetail(c admin.SourceCopy) string {
	detail := []string{c.Reason, c.Detail, because(c)}
	if len(c.Changes) > 0 {
		detail = append(detail, "rewritten: "+strings.Join(c.Changes, ", "))
	}
	if c.Refused != "" {
		detail = append(detail, "newest content refused: "+c.Refused)
	}
	return strings.Join(slices.DeleteFunc(detail, func(text string) bool { return text == "" }), ": ")
}

// LeftOut returns the resources that import rules leave out as text.
func LeftOut(all []intake.LeftOut) string {
	if len(all) == 0 {
		return "Nothing is left out.\n"
	}
	t := titled("UPSTREAM", "KIND", "NAMESPACE", "NAME", "REASON", "DETAIL")
	for _, l := range all {
		t.add(l.Upstream, l.Kind, l.Namespace, l.Name, l.Reason, l.Detail)
	}
	return t.String()
}

// Conflicts returns the conflicts between upstreams as text.
func Conflicts(all admin.Conflicts, now time.Time) string {
	var p page
	if len(all.Keys) == 0 {
		p.WriteString("No two upstreams have the same resource.\n")
	} else {
		t := titled("KIND", "NAMESPACE", "NAME", "SERVED FROM", "UNITED", "NOT SERVED", "SINCE", "REASON")
		for _, c := range all.Keys {
			t.add(c.Kind, c.Namespace, c.Name, c.Winner, strings.Join(c.United, ","), strings.Join(c.Losers, ","), Ago(c.Since, now), c.Reason)
		}
		p.table(t)
	}
	p.WriteString("\n")
	if len(all.Hosts) == 0 {
		p.WriteString("No two resources claim the same host.\n")
	} else {
		p.table(hostTable(all.Hosts, now))
	}
	if len(all.NotFollowed) == 0 {
		return p.String()
	}
	t := titled("NOT CHECKED", "KIND", "SERVED FROM", "HOSTS", "NAMESPACES", "REASON")
	for _, n := range all.NotFollowed {
		namespaces := "*"
		if n.Namespaces > 0 {
			namespaces = strconv.Itoa(n.Namespaces)
		}
		t.add(n.Namespace+"/"+n.Name, n.Kind.Kind, n.Source, n.Hosts, namespaces, n.Reason)
	}
	p.WriteString("\n")
	p.table(t)
	return p.String()
}

func hostTable(all []conflicts.HostConflict, now time.Time) *table {
	titles := []string{"HOST", "KIND", "CLAIMED BY", "SINCE"}
	if slices.ContainsFunc(all, func(c conflicts.HostConflict) bool { return c.Apart != "" }) {
		titles = append(titles, "NOT UNITED")
	}
	t := titled(titles...)
	for _, c := range all {
		cells := []any{c.Host, c.Kind.Kind, strings.Join(claims(c), ", "), Ago(c.Since, now), c.Apart}
		t.add(cells[:len(titles)]...)
	}
	return t
}

// difference returns the difference between two objects as of diff -u, without versions and
// provenance.
func difference(oldName string, old *kube.Object, newName string, cur *kube.Object) string {
	a, aErr := objectText(old)
	b, bErr := objectText(cur)
	d := diff.Diff(oldName, a, newName, b)
	switch err := errors.Join(aErr, bErr); {
	case err != nil:
		return fmt.Sprintf("\n%s and %s can not be compared: %v\n", oldName, newName, err)
	case len(d) == 0:
		return fmt.Sprintf("\n%s and %s are equal\n", oldName, newName)
	}
	return "\n" + CleanLines(string(d))
}

// objectText returns an object as YAML, and nil for nil.
func objectText(o *kube.Object) ([]byte, error) {
	if o == nil {
		return nil, nil
	}
	plain := *o
	plain.Metadata.ResourceVersion = ""
	plain.Metadata.Annotations = maps.Clone(o.Metadata.Annotations)
	delete(plain.Metadata.Annotations, mirror.ProvenanceAnnotation)
	return plain.YAML()
}

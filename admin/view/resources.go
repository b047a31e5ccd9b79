package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/federation/conflicts"
	words "meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/services"
)

// Copies are the columns of a table of the copies of one resource.
var Copies = Columns[admin.SourceCopy]{
	text("Upstream", func(c admin.SourceCopy) string { return c.Upstream }),
	level("Outcome", func(c admin.SourceCopy, _ time.Time) (string, Level) {
		return string(c.Outcome), OutcomeLevel(c.Outcome)
	}),
	text("Name there", func(c admin.SourceCopy) string {
		if c.Original == (mirror.Key{}) {
			return ""
		}
		return words.Name(c.Original.Namespace + "/" + c.Original.Name)
	}),
	age("Since", func(c admin.SourceCopy) time.Time { return c.Since }),
	text("Version there", func(c admin.SourceCopy) string { return c.SourceVersion }),
	text("Detail", copyDetail),
}

// KeyConflicts are the columns of a table of resources that several upstreams have, or that are not served because of
// a host.
var KeyConflicts = Columns[conflicts.KeyConflict]{
	text("Kind", func(c conflicts.KeyConflict) string { return c.Kind.String() }),
	text("Namespace", func(c conflicts.KeyConflict) string { return words.Name(c.Namespace) }),
	text("Name", func(c conflicts.KeyConflict) string { return words.Name(c.Name) }),
	text("Served from", func(c conflicts.KeyConflict) string { return c.Winner }),
	level("Outcome", func(c conflicts.KeyConflict, _ time.Time) (string, Level) {
		if c.Outcome == conflicts.Rejected || c.Outcome == conflicts.Unowned {
			return string(c.Outcome), Bad
		}
		return string(c.Outcome), None
	}),
	text("United", func(c conflicts.KeyConflict) string { return strings.Join(c.United, ",") }),
	text("Not served", func(c conflicts.KeyConflict) string { return strings.Join(c.Losers, ",") }),
	age("Since", func(c conflicts.KeyConflict) time.Time { return c.Since }),
	text("Reason", func(c conflicts.KeyConflict) string { return c.Reason }),
}

// HostConflicts are the columns of a table of hosts that several resources claim.
var HostConflicts = Columns[conflicts.HostConflict]{
	text("Host", func(c conflicts.HostConflict) string { return c.Host }),
	text("Kind", func(c conflicts.HostConflict) string { return c.Kind.Kind }),
	text("Claimed by", Claims),
	age("Since", func(c conflicts.HostConflict) time.Time { return c.Since }),
	text("Not united", func(c conflicts.HostConflict) string { return c.Apart }),
}

// Hybrids are the columns of a table of hosts whose parts come from different upstreams.
var Hybrids = Columns[conflicts.Hybrid]{
	text("Host", func(h conflicts.Hybrid) string { return h.Host }),
	text("Parts", func(h conflicts.Hybrid) string {
		return listOf(services.Service{More: map[string]int{"": h.More}}, "", h.Parts, func(p conflicts.Part) string {
			return fmt.Sprintf("%s %s from %s", p.Kind.Kind, words.Name(p.Namespace+"/"+p.Name), p.Source)
		})
	}),
}

// maxClaims is the most claims of a host that are listed.
const maxClaims = 16

// Claims lists the resources that claim a host.
func Claims(c conflicts.HostConflict) string {
	var claims []string
	for _, claim := range c.Claims[:min(len(c.Claims), maxClaims)] {
		claims = append(claims, fmt.Sprintf("%s from %s", words.Name(claim.Namespace+"/"+claim.Name), claim.Source))
	}
	if more := c.More + len(c.Claims) - len(claims); more > 0 {
		claims = append(claims, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(claims, ", ")
}

// OutcomeLevel returns the level of an outcome.
func OutcomeLevel(o admin.Outcome) Level {
	switch o {
	case admin.Served:
		return OK
	case admin.Refused, admin.Rejected, admin.Missing, admin.Expired:
		return Bad
	case admin.Frozen, admin.Changing:
		return Warn
	}
	return None
}

// KeyText returns a key as "group/Kind namespace/name".
func KeyText(k mirror.Key) string { return k.Kind.String() + " " + words.Name(k.FullName()) }

// Headline explains a resource in one sentence.
func Headline(e admin.Explanation, now time.Time) string {
	name := strings.Replace(KeyText(e.Key), " /", " ", 1) // without a namespace
	why := ""
	if e.Reason != "" {
		why = ": " + e.Reason
	}
	switch e.Outcome {
	case admin.Served:
		return fmt.Sprintf("%s is served from upstream %s.", name, e.Source+why) + contactOf(e, now)
	case admin.United:
		if e.Into != (mirror.Key{}) {
			return fmt.Sprintf("%s is not served by itself: it is merged into %s%s.", name, KeyText(e.Into), why)
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

// contactOf tells for how long a served resource is unchanged, or which of its sources are out of contact: nobody knows
// whether it is unchanged there.
func contactOf(e admin.Explanation, now time.Time) (text string) {
	for _, c := range e.Sources {
		if (c.Outcome == admin.Served || c.Outcome == admin.United) && !c.ContactLost.IsZero() {
			text += fmt.Sprintf(" Upstream %s is out of contact for %s.", c.Upstream, Ago(c.ContactLost, now))
		}
	}
	if text == "" && !e.Since.IsZero() {
		text = fmt.Sprintf(" Unchanged for %s.", Ago(e.Since, now))
	}
	return text
}

// because returns why a copy has its outcome, if the state of its upstream is the reason. Otherwise it
// returns "".
func because(c admin.SourceCopy) string {
	unfreeze := ": relay unfreeze " + c.Upstream
	switch {
	case c.ServedAs != mirror.Key{}:
		return "served as " + KeyText(c.ServedAs)
	case c.Outcome == admin.Changing:
		return "changing right now, try again"
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
	case !c.ContactLost.IsZero():
		return "upstream out of contact" + admin.Since(c.ContactLost)
	}
	return ""
}

// copyDetail explains the outcome of a copy.
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

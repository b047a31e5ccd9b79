package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/adsclient"
	words "meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Upstreams are the columns of a table of upstreams.
var Upstreams = Columns[upstreams.Status]{
	text("Upstream", func(u upstreams.Status) string { return u.Name }),
	text("Type", func(u upstreams.Status) string {
		if u.Protocol != "" {
			return u.Type + "/" + u.Protocol
		}
		return u.Type
	}),
	level("State", func(u upstreams.Status, now time.Time) (string, Level) {
		return UpstreamState(u, now), UpstreamLevel(u)
	}),
	timed("Synced", func(u upstreams.Status, now time.Time) string {
		if u.Synced && !u.ContactLost.IsZero() {
			return "until " + Ago(u.ContactLost, now) + " ago"
		}
		return YesNo(u.Synced)
	}),
	number("Resources", func(u upstreams.Status) int { return admin.Total(u.Resources) }),
	number("Refused", func(u upstreams.Status) int { return u.RefusedTotal }),
	number("Left out", func(u upstreams.Status) int { return admin.Total(u.LeftOut) }),
	age("Updated", func(u upstreams.Status) time.Time { return u.LastUpdate }),
	text("Address", func(u upstreams.Status) string { return u.Address }),
}

// KindCount counts the resources of one kind of an upstream.
type KindCount struct {
	Kind               string
	Resources, Expired int
	Drift              uint64
}

// KindCounts are the columns of a table of the kinds of one upstream.
var KindCounts = Columns[KindCount]{
	text("Kind", func(k KindCount) string { return k.Kind }),
	number("Resources", func(k KindCount) int { return k.Resources }),
	number("Expired", func(k KindCount) int { return k.Expired }),
	number("Drift", func(k KindCount) uint64 { return k.Drift }),
}

// Kinds returns the kinds of an upstream, sorted.
func Kinds(u upstreams.Status) (all []KindCount) {
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(u.Resources)), maps.Keys(u.Expired))
	slices.Sort(kinds)
	for _, kind := range slices.Compact(kinds) {
		all = append(all, KindCount{kind, u.Resources[kind], u.Expired[kind], u.Drift[kind]})
	}
	return all
}

// RuleCount counts the resources that one import rule leaves out.
type RuleCount struct {
	Reason  string
	LeftOut int
}

// RuleCounts are the columns of a table of the import rules of one upstream.
var RuleCounts = Columns[RuleCount]{
	text("Reason", func(r RuleCount) string { return r.Reason }),
	number("Left out", func(r RuleCount) int { return r.LeftOut }),
}

// Rules returns the import rules that leave out resources of an upstream, sorted.
func Rules(u upstreams.Status) (all []RuleCount) {
	for _, reason := range slices.Sorted(maps.Keys(u.LeftOut)) {
		all = append(all, RuleCount{reason, u.LeftOut[reason]})
	}
	return all
}

// Refusals are the columns of a table of refused resources.
var Refusals = Columns[records.Refusal]{
	text("Refused", func(r records.Refusal) string { return r.Resource }),
	text("Reason", func(r records.Refusal) string { return r.Reason }),
}

// LeftOut are the columns of a table of resources that import rules leave out.
var LeftOut = Columns[records.LeftOut]{
	text("Upstream", func(l records.LeftOut) string { return l.Upstream }),
	text("Kind", func(l records.LeftOut) string { return l.Kind }),
	text("Namespace", func(l records.LeftOut) string { return words.Name(l.Namespace) }),
	text("Name", func(l records.LeftOut) string { return words.Name(l.Name) }),
	text("Reason", func(l records.LeftOut) string { return l.Reason }),
	text("Detail", func(l records.LeftOut) string { return l.Detail }),
}

// Deletions are the columns of a table of held deletions.
var Deletions = Columns[intake.HeldDeletion]{
	text("Kind", func(d intake.HeldDeletion) string { return d.Kind }),
	text("Namespace", func(d intake.HeldDeletion) string { return words.Name(d.Namespace) }),
	text("Name", func(d intake.HeldDeletion) string { return words.Name(d.Name) }),
	age("Age", func(d intake.HeldDeletion) time.Time { return d.Created }),
	age("Held", func(d intake.HeldDeletion) time.Time { return d.Since }),
}

// Revisions are the columns of a table of revisions.
var Revisions = Columns[state.Revision]{
	number("Revision", func(r state.Revision) uint64 { return r.ID }),
	text("Time", func(r state.Revision) string { return r.Time.UTC().Format(time.RFC3339) }),
	age("Age", func(r state.Revision) time.Time { return r.Time }),
	number("Resources", func(r state.Revision) int { return r.Resources }),
	number("Added", func(r state.Revision) int { return r.Added }),
	number("Changed", func(r state.Revision) int { return r.Changed }),
	number("Removed", func(r state.Revision) int { return r.Removed }),
	text("By", func(r state.Revision) string { return cmp.Or(r.By, "upstream") }),
	text("Among them", func(r state.Revision) string { return someKeys(r.Keys, r.Added+r.Changed+r.Removed) }),
}

// maxKeys is the most keys of a revision or an event that are shown.
const maxKeys = 3

// someKeys lists the first keys of a revision or an event, and counts the rest of all.
func someKeys[T any](keys []T, all int) string {
	var names []string
	for _, key := range keys[:min(len(keys), maxKeys)] {
		names = append(names, shortKey(fmt.Sprint(key)))
	}
	text := strings.Join(names, ", ")
	if more := all - len(names); more > 0 && len(names) > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// shortKey replaces the kind in "+group/Kind namespace/name" by kubectl's short name: "+se shop/db". Other
// kinds and other texts stay unchanged.
func shortKey(key string) string {
	group, rest, ok := strings.Cut(strings.TrimLeft(key, "+~-"), "/")
	kind, name, named := strings.Cut(rest, " ")
	if !ok || !named {
		return key
	}
	info, ok := mirror.LookupKind(mirror.Kind{Group: group, Kind: kind})
	if !ok {
		return key
	}
	short := strings.ToLower(kind)
	if len(info.ShortNames) > 0 {
		short = info.ShortNames[0]
	}
	return key[:len(key)-len(strings.TrimLeft(key, "+~-"))] + short + " " + words.Name(strings.TrimPrefix(name, "/"))
}

// IsHealthy reports whether nothing is wrong with an upstream.
func IsHealthy(u upstreams.Status) bool {
	return !isGone(u) && u.State == upstreams.StateSynced && u.Synced && !u.Stale && u.Held == nil && u.Frozen == nil && u.RefusedTotal == 0 &&
		len(u.Told.Problems) == 0
}

// isGone reports whether an upstream is a found cluster whose kubeconfig is gone.
func isGone(u upstreams.Status) bool { return u.Found != nil && u.Found.State != "found" }

// UpstreamLevel returns the level of an upstream.
func UpstreamLevel(u upstreams.Status) Level {
	switch {
	case IsHealthy(u):
		return OK
	case u.State == upstreams.StateDenied || u.State == upstreams.StateFailed || u.State == upstreams.StateDisconnected:
		return Bad
	}
	return Warn
}

// UpstreamState returns the state of an upstream, its age, and whether the upstream is stale, held or frozen.
func UpstreamState(u upstreams.Status, now time.Time) string {
	state := strings.Replace(string(u.State), string(upstreams.StateSynced), "in sync", 1) // now, and not once
	if !u.Since.IsZero() {
		state += " for " + Ago(u.Since, now)
	}
	if u.Stale {
		state += ", stale"
	}
	if u.Held != nil {
		state += ", held"
	}
	if u.Frozen != nil {
		state += ", frozen"
	}
	if len(u.Told.Problems) > 0 {
		state += ", trouble behind it"
	}
	if isGone(u) {
		state += ", cluster " + u.Found.State
	}
	return state
}

// AddressState describes the address with index i. An address after the active one is on standby.
func AddressState(all []adsclient.AddressStatus, i int, now time.Time) string {
	a := all[i]
	standby := slices.ContainsFunc(all[:i], func(before adsclient.AddressStatus) bool { return before.Active })
	problem := OneLine(strings.TrimPrefix(a.LastError, a.Address+": ")) // an error of a connection begins with the address
	switch {
	case a.Active:
		return "in use"
	case standby && a.LastError != "":
		return fmt.Sprintf("on standby, was down %s ago: %s", Ago(a.LastAttempt, now), problem)
	case a.LastError != "":
		return fmt.Sprintf("down, tried %s ago: %s", Ago(a.LastAttempt, now), problem)
	case !a.HealthySince.IsZero():
		return "works since " + Ago(a.HealthySince, now)
	}
	return "not tried"
}

// lastContact returns when a stale upstream was last in contact, such as "5m ago". After a kill, the relay knows only
// the last time on disk.
func lastContact(u upstreams.Status, now time.Time) string {
	if u.StaleLater {
		return "when the relay was killed, at most " + Ago(u.StaleSince, now) + " ago"
	}
	return Ago(u.StaleSince, now) + " ago"
}

// EndOfHold returns when a hold ends.
func EndOfHold(h intake.Held, now time.Time) string {
	switch h.Clock {
	case intake.ClockRunning:
		return fmt.Sprintf("in %s, once the upstream repeats the deletions", Age(max(h.Until.Sub(now), 0)))
	case intake.ClockStopped:
		return fmt.Sprintf("after another %s of contact (now out of contact)", h.Left)
	case intake.ClockOver:
		if h.Asked.IsZero() {
			return "once the upstream repeats the deletions"
		}
		return fmt.Sprintf("once the upstream repeats the deletions, asked %s ago", Ago(h.Asked, now))
	}
	return "when the upstream has the resources again, or an operator releases them"
}

// Freeze describes a freeze: revision, age, reason, and how many resources have changed since.
func Freeze(f intake.Frozen, now time.Time) string {
	text := ""
	if f.Revision != 0 {
		text = fmt.Sprintf(" at revision %d", f.Revision)
	}
	text += " for " + Ago(f.Since, now)
	if f.Reason != "" {
		text += fmt.Sprintf(" (%s)", f.Reason)
	}
	if f.Waiting > 0 {
		text += fmt.Sprintf(", %s changed there", Count(f.Waiting, "resource"))
	}
	return text
}

// Unfollowed returns a line for each kind of an upstream that is not followed.
func Unfollowed(u upstreams.Status) (lines []string) {
	for _, one := range u.Following {
		if one.Followed() {
			continue
		}
		line := one.Kind
		if one.Namespace != "" {
			line += " in " + one.Namespace
		}
		line += " " + one.State
		if one.Reason != "" {
			line += ": " + OneLine(one.Reason)
		}
		lines = append(lines, line)
	}
	return lines
}

// Hold describes held deletions: how many, why, and when the hold ends.
func Hold(h intake.Held, now time.Time) string {
	return fmt.Sprintf("%s of %s %s held (%s). The hold ends %s.", Count(h.Removals, "deletion"), Count(h.Of, "resource"),
		Agree(h.Removals, "is", "are"), h.Reason, EndOfHold(h, now))
}

// Stale describes a stale upstream: its last contact, and how many of its resources are served and expired.
func Stale(u upstreams.Status, now time.Time) string {
	text := fmt.Sprintf("last in contact %s, %s served", lastContact(u, now), Count(admin.Total(u.Resources), "resource"))
	if n := admin.Total(u.Expired); n > 0 {
		text += fmt.Sprintf(", %d expired", n)
	}
	return text
}

package cliview

import (
	"time"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/internal/kube"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// The words of the commands, for the web page: there is one word for one thing.

// UpstreamState returns the state of an upstream as "relay status" names it. now is for ages.
func UpstreamState(u upstreams.Status, now time.Time) string { return upstreamState(u, now) }

// IsHealthy reports whether nothing about an upstream needs a look.
func IsHealthy(u upstreams.Status) bool { return healthy(u) }

// AddressState describes address i of an upstream. now is for ages.
func AddressState(all []adsclient.AddressStatus, i int, now time.Time) string {
	standby := false // addresses behind the active one are not tried
	for _, a := range all[:i] {
		standby = standby || a.Active
	}
	return addressState(all[i], standby, now)
}

// ClientName returns the pod and namespace of a node ID of Istio, and other node IDs whole.
func ClientName(nodeID string) string { return clientName(nodeID) }

// ClientState returns the state of a client, ok when it has all that it asked for.
func ClientState(c downstream.ClientStatus) (state string, ok bool) {
	return clientState(c), upToDate(c)
}

// TypeState returns the state of one type of a client, ok when the client has accepted it.
func TypeState(w downstream.TypeStatus) (state string, ok bool) {
	state = typeState(w)
	return state, state == synced
}

// Headline explains a resource in one sentence. now is for ages.
func Headline(e admin.Explanation, now time.Time) string { return headline(e, now) }

// CopyDetail tells why a copy of a resource has its outcome.
func CopyDetail(c admin.SourceCopy) string { return copyDetail(c) }

// EndOfHold tells when a hold ends. now is for ages.
func EndOfHold(h intake.Held, now time.Time) string { return endOfHold(h, now) }

// Freeze describes a freeze: its revision, age, reason, end, and the changes that wait.
func Freeze(f intake.Frozen, now time.Time) string { return freeze(f, now) }

// Difference returns the difference between two objects as of diff -u, without versions and
// provenance.
func Difference(oldName string, old *kube.Object, newName string, cur *kube.Object) string {
	return difference(oldName, old, newName, cur)
}

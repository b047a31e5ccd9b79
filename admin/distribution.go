package admin

import (
	"fmt"
	"strings"

	"meshrelay/downstream"
)

// Undistributed returns why not all clients that see a resource have its present content. It is empty when they have.
func Undistributed(d downstream.Distribution) string {
	if d.Version == "" {
		return "it is not served"
	}
	if why := Unfinished(d); why != "" || d.Clients > 0 {
		return why
	}
	return "no client that sees it is connected"
}

// Unfinished returns what a distribution lacks, and which clients. It is empty for one that is distributed.
func Unfinished(d downstream.Distribution) string {
	var parts []string
	if d.Pushing {
		parts = append(parts, "the newest change was not pushed yet")
	}
	if d.Lacks > 0 && d.Version == "" {
		parts = append(parts, "still at "+holders(d.Lacking, d.Lacks))
	} else if d.Lacks > 0 {
		parts = append(parts, "not acknowledged by "+holders(d.Lacking, d.Lacks))
	}
	if d.Refuses > 0 {
		parts = append(parts, "rejected by "+holders(d.Refusing, d.Refuses))
	}
	return strings.Join(parts, "; ")
}

// holders names the first of some clients, with their errors.
func holders(some []downstream.Holder, of int) string {
	const shown = 3
	var out []string
	for _, h := range some[:min(len(some), shown)] {
		out = append(out, strings.TrimSuffix(h.Name()+": "+h.Error, ": "))
	}
	if more := of - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

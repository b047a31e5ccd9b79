// Package statusview prints the state of a relay as tables for people.
//
// The package must not know how the state is come by.
package statusview

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/internal/printer"
	"meshrelay/upstreams"
)

// Print writes the readiness with its reasons, then the upstreams and the clients as
// tables. Ages are counted from now.
func Print(w io.Writer, r admin.Readiness, ups []upstreams.Status, clients []downstream.ClientStatus, now time.Time) error {
	head := "ready"
	switch {
	case !r.Ready:
		head = "not ready"
	case len(r.Reasons) > 0:
		head = "ready, degraded"
	}
	text := head + "\n"
	for _, reason := range r.Reasons {
		text += "- " + printer.Clean(strings.Join(strings.Fields(reason), " ")) + "\n"
	}
	if _, err := io.WriteString(w, text+"\n"); err != nil {
		return err
	}
	if err := printer.Rows(w, upstreamRows(ups, now)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if len(clients) == 0 {
		_, err := fmt.Fprintln(w, "No clients are connected.")
		return err
	}
	return printer.Rows(w, clientRows(clients, now))
}

func upstreamRows(ups []upstreams.Status, now time.Time) [][]string {
	rows := [][]string{{"UPSTREAM", "TYPE", "STATE", "SYNCED", "RESOURCES", "REFUSED", "DROPPED", "UPDATED", "ADDRESS"}}
	for _, u := range ups {
		resources, dropped := 0, 0
		for _, n := range u.Resources {
			resources += n
		}
		for _, n := range u.Dropped {
			dropped += n
		}
		typ := u.Type
		if u.Protocol != "" {
			typ += "/" + u.Protocol
		}
		synced := "no"
		if u.Synced {
			synced = "yes"
		}
		rows = append(rows, []string{
			u.Name, typ, fmt.Sprintf("%s %s", u.State, printer.Ago(u.Since, now)), synced,
			strconv.Itoa(resources), strconv.Itoa(u.RefusedTotal), strconv.Itoa(dropped), printer.Ago(u.LastUpdate, now), printer.OrNone(u.Address),
		})
	}
	return rows
}

func clientRows(clients []downstream.ClientStatus, now time.Time) [][]string {
	rows := [][]string{{"CLIENT", "CLUSTER", "VIEW", "VERSION", "PROTOCOL", "TYPES", "STATE", "NACKS", "CONNECTED", "ADDRESS"}}
	for _, c := range clients {
		stale, rejected, nacks := 0, 0, uint64(0)
		for _, t := range c.Types {
			nacks += t.NACKs
			switch {
			case t.LastNACK != "":
				rejected++
			case !t.Synced:
				stale++
			}
		}
		state := "synced"
		switch {
		case c.Held:
			state = "waiting for upstreams"
		case rejected > 0:
			state = fmt.Sprintf("%d types rejected", rejected)
		case stale > 0:
			state = fmt.Sprintf("%d types behind", stale)
		}
		rows = append(rows, []string{
			c.NodeID, printer.OrNone(c.ClusterID), printer.OrNone(c.View), printer.OrNone(c.IstioVersion), c.Protocol, strconv.Itoa(len(c.Types)), state,
			strconv.FormatUint(nacks, 10), printer.Ago(c.Connected, now), c.Address,
		})
	}
	return rows
}

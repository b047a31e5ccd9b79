package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/peers/status"
)

// Replicas returns a table of all replicas, and lines about their differences. It is empty if there are no others in
// the config. Ages are relative to now.
func Replicas(all []status.Replica, now time.Time) string {
	if len(all) == 0 {
		return ""
	}
	var p page
	p.WriteString("\n")
	p.table(tableOf(view.Replicas, all, now))
	for _, r := range all {
		for _, line := range view.ReplicaProblems(r, now) {
			p.printf("%s\n", line)
		}
	}
	return p.String()
}

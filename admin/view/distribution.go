package view

import (
	"fmt"

	"meshrelay/admin"
	"meshrelay/downstream"
)

// Distribution tells in one sentence which clients have the present content of a resource.
func Distribution(d downstream.Distribution) (string, Level) {
	text := fmt.Sprintf("Acknowledged by %d of %s", d.Has, Count(d.Clients, "client"))
	if d.Version == "" {
		text = "Not served"
	}
	switch why := admin.Unfinished(d); {
	case why != "":
		return text + "; " + why + ".", Warn
	case d.Version == "":
		return "No client still has it.", OK
	case d.Clients == 0:
		return "No client sees it.", OK
	}
	return text + ".", OK
}

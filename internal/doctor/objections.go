package doctor

import (
	"fmt"
	"strings"
)

// maxObjections is how many resources a finding names.
const maxObjections = 5

// Objections tells why consumers would refuse resources, for the first few of All.
type Objections struct {
	Few []string
	All int
}

// Add adds a resource, unless why is empty.
func (o *Objections) Add(resource, why string) {
	if why != "" {
		if o.All++; o.All <= maxObjections {
			o.Few = append(o.Few, resource+": "+why)
		}
	}
}

// Findings returns a warning, or nothing if there are no objections.
func (o *Objections) Findings(target string) []Finding {
	if o.All == 0 {
		return nil
	}
	why := strings.Join(o.Few, "; ")
	if more := o.All - len(o.Few); more > 0 {
		why += fmt.Sprintf("; and %d more", more)
	}
	return []Finding{Doubt("names", target, fmt.Sprintf("Kubernetes or the validation of an istiod would refuse %d resources", o.All), why,
		"nothing if only relays and istiods read them: they are served as they came; else rename them at their source, or leave them out with import.expression")}
}

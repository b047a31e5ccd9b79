// Package promotion makes the objects of a sink those of their cluster, and gives them back.
//
// A ConfigMap with the name of the sink forbids every writer of that sink to write. The package must not know how a
// sink writes.
package promotion

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"meshrelay/internal/text"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// Promoted is the error of Check for a sink that was promoted.
type Promoted struct {
	Sink, Namespace string
	State
}

// Error implements error.
func (p *Promoted) Error() string {
	return fmt.Sprintf("sink %s is promoted (phase %s, by %s, since %s), and does not write: the ConfigMap %s/%s is in the cluster; go back with: relay sink adopt %[1]s",
		p.Sink, p.Phase, p.By, p.Since.UTC().Format(time.RFC3339), p.Namespace, ObjectName(p.Sink))
}

// sinkName is the shape of a sink's name, and listName that of one that could be the name of a list.
var sinkName, listName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`), regexp.MustCompile(`-[0-9]+$`)

// CheckName returns an error if a sink can not have a name.
func CheckName(sink string) error {
	switch {
	case !sinkName.MatchString(sink):
		return fmt.Errorf("sink %q: a name is 1 to 40 lower-case letters, digits and dashes", text.Shorten(sink, 64))
	case listName.MatchString(sink):
		return fmt.Errorf("sink %q: the name ends with a dash and a number, as lists of promoted objects do: choose another one", sink)
	}
	return nil
}

// ObjectName returns the name of a sink's Lease, of the ConfigMap of its promotion, and of its field manager.
func ObjectName(sink string) string { return "meshrelay-sink-" + sink }

// Check returns nil if the sink was certainly not promoted, a *Promoted if it was, and another error if that is
// not known. A sink writes only after nil.
func Check(ctx context.Context, conn *apiserver.Conn, namespace, sink string) error {
	m, err := readMap(ctx, conn, namespace, ObjectName(sink))
	if err != nil || m == nil {
		return err
	}
	return &Promoted{sink, namespace, m.state()}
}

// Package promotion makes the objects of a sink those of their cluster, and gives them back.
//
// A ConfigMap with the name of the sink forbids every writer of that sink to write. The package must not know how a
// sink writes.
package promotion

import (
	"context"
	"fmt"
	"time"

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

package downstream

import (
	"errors"

	"google.golang.org/grpc/status"

	"meshrelay/audit"
	"meshrelay/downstream/refusal"
	"meshrelay/internal/text"
)

// Auditor takes the lines of the audit log about clients. Any goroutine may call Record, which must not wait.
type Auditor interface{ Record(line audit.Line) }

// auditLine returns the line about an event of the client; err is why its stream ends, if it does. The caller
// holds mu.
func (c *conn) auditLine(event audit.Event, err error) audit.Line {
	line := audit.Line{Event: event, Address: c.peer.Addr.String(), Listener: c.listener.Address, NodeID: text.Shorten(c.client.nodeID, maxAuditedNode)}
	if !c.who.IsZero() {
		line.Identity = c.who.Names[0]
	}
	if c.rule != nil {
		line.View, line.Rule = c.rule.Name, c.rule.ruleName()
	}
	if err != nil {
		line.Code, line.Error = status.Code(err).String(), refusal.Bounded(status.Convert(err).Message())
	}
	var r *refusal.Error
	if errors.As(err, &r) {
		line.Reason = string(r.Reason)
	}
	return line
}

// maxAuditedNode bounds the ID of a node in the audit log, in bytes.
const maxAuditedNode = 256

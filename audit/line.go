// Package audit writes the audit log: a JSON line for each client that comes, goes or is refused, and for each
// action of an operator. docs/audit.md describes the lines.
//
// The package must not know who makes the lines.
package audit

import (
	"bytes"
	"encoding/json"
	"time"

	"meshrelay/internal/text"
	"meshrelay/internal/visible"
)

// Event is what a line is about.
type Event string

// The events.
const (
	Started         Event = "started"
	Ended           Event = "ended"
	ClientConnected Event = "client-connected"
	ClientMoved     Event = "client-moved"
	ClientRefused   Event = "client-refused"
	ClientEnded     Event = "client-ended"
	ClaimRefused    Event = "claim-refused"
	OperatorAsked   Event = "operator-asked"
	OperatorActed   Event = "operator-acted"
	OperatorRefused Event = "operator-refused"
	ConfigLoaded    Event = "config-loaded"
	ConfigRefused   Event = "config-refused"
	LinesLost       Event = "lines-lost"
)

// Events returns all events.
func Events() []Event {
	return []Event{
		Started, Ended, ClientConnected, ClientMoved, ClientRefused, ClientEnded, ClaimRefused,
		OperatorAsked, OperatorActed, OperatorRefused, ConfigLoaded, ConfigRefused, LinesLost,
	}
}

// Line is one line of the audit log. Log.Record sets Time and Relay, and cuts each text to maxText bytes.
type Line struct {
	Time  time.Time `json:"time"`
	Event Event     `json:"event"`
	Relay string    `json:"relay,omitempty"` // its node.id

	Identity string `json:"identity,omitempty"`
	Address  string `json:"address,omitempty"`
	Listener string `json:"listener,omitempty"`
	NodeID   string `json:"nodeID,omitempty"`
	View     string `json:"view,omitempty"`
	Rule     string `json:"rule,omitempty"`

	Upstream string `json:"upstream,omitempty"`

	// Code is the gRPC status of a client, or the HTTP status of an operator.
	Code string `json:"code,omitempty"`
	// Reason is the limit or rule that refused a client, or the reason that an operator gave.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`

	*Operator
	Action     string `json:"action,omitempty"`
	Target     string `json:"target,omitempty"`
	Parameters string `json:"parameters,omitempty"`
	Before     string `json:"before,omitempty"`
	After      string `json:"after,omitempty"`

	// Count is the number of lines that this line stands for: those that were lost, or that came too fast.
	Count uint64 `json:"count,omitempty"`
}

// Operator is the process that sent a request over the admin socket, as the kernel identifies it. Unknown
// numbers are -1. User is the name of UID on the relay's host, empty if it has none.
type Operator struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	PID  int    `json:"pid"`
	User string `json:"user,omitempty"`
}

// maxText bounds each text of a line, in bytes before JSON escapes.
const maxText = 1024

// encode returns the line with its newline. Characters that steer a terminal are escaped.
func (l Line) encode() []byte {
	for _, s := range []*string{
		&l.Relay, &l.Identity, &l.Address, &l.Listener, &l.NodeID, &l.View, &l.Rule, &l.Upstream, &l.Code, &l.Reason, &l.Error,
		&l.Action, &l.Target, &l.Parameters, &l.Before, &l.After,
	} {
		*s = text.Shorten(*s, maxText)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(visible.NewWriter(&out))
	enc.SetEscapeHTML(false)
	_ = enc.Encode(l) // a buffer takes everything, and a Line has no other types than texts and numbers
	return out.Bytes()
}

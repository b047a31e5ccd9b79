package downstream

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/downstream/refusal"
)

// WhoamiType is the type with which a client asks who it is. Every client that was let in gets an answer, which has
// a Whoami as JSON.
const WhoamiType = debugType + "/whoami"

// Whoami describes one client to itself. It has nothing about others, nor what rules and views show.
type Whoami struct {
	// Identities are what the client has proven, at most 100 of them.
	Identities     []string  `json:"identities"`
	Namespace      string    `json:"namespace,omitempty"`
	ServiceAccount string    `json:"serviceAccount,omitempty"`
	Expires        time.Time `json:"expires,omitzero"`
	// Address is that of the client, Listener that of the listener in the config.
	Address  string `json:"address"`
	Listener string `json:"listener"`
	// Rule and View are empty if the config has none.
	Rule string `json:"rule,omitempty"`
	View string `json:"view,omitempty"`
	// Debug is set if the client may request debug types.
	Debug bool `json:"debug"`
}

// whoami returns the answer to a client that asks who it is.
func (c *conn) whoami() []*anypb.Any {
	const most = 100
	debug := c.server.debug != nil && mayDebug(c.listener, c.peer, c.who, c.isLimited())
	w := Whoami{
		Identities: []string{}, Namespace: c.who.Namespace, ServiceAccount: c.who.ServiceAccount,
		Expires: c.who.Expires, Address: c.peer.Addr.String(), Listener: c.listener.Address, Debug: debug,
	}
	for _, id := range c.who.Names[:min(most, len(c.who.Names))] {
		w.Identities = append(w.Identities, refusal.Bounded(id))
	}
	c.mu.Lock()
	if c.view != nil {
		w.Rule, w.View = c.rule.ruleName(), c.rule.Name
	}
	c.mu.Unlock()
	body, err := json.Marshal(w)
	if err != nil {
		return debugError(err)
	}
	return []*anypb.Any{{TypeUrl: WhoamiType, Value: body}}
}

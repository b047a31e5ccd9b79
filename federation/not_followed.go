package federation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"meshrelay/mirror"
)

// NotFollowed is a resource whose hosts conflict detection does not follow, because that
// would cost too much. It is served like any other.
type NotFollowed struct {
	Key mirror.Key
	// Source is the upstream from which the resource that is served comes.
	Source string
	// Hosts and Namespaces are how many it claims and is exported to; no Namespaces are all.
	Hosts, Namespaces int
	// Reason tells why it is not followed.
	Reason string
}

// notFollowedJSON is a NotFollowed in JSON: with a flat key.
type notFollowedJSON struct {
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Source     string `json:"source"`
	Hosts      int    `json:"hosts"`
	Namespaces int    `json:"namespaces,omitempty"`
	Reason     string `json:"reason"`
}

// MarshalJSON implements json.Marshaler.
func (n NotFollowed) MarshalJSON() ([]byte, error) {
	return json.Marshal(notFollowedJSON{n.Key.Kind.String(), n.Key.Namespace, n.Key.Name, n.Source, n.Hosts, n.Namespaces, n.Reason})
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *NotFollowed) UnmarshalJSON(b []byte) error {
	var j notFollowedJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	kind, err := parseKind(j.Kind)
	if err != nil {
		return err
	}
	*n = NotFollowed{mirror.Key{Kind: kind, Namespace: j.Namespace, Name: j.Name}, j.Source, j.Hosts, j.Namespaces, j.Reason}
	return nil
}

var (
	tooMany = fmt.Sprintf("its hosts, times the namespaces of its exportTo, are more than %d", maxClaims)
	noRoom  = "configs of this size claim too many hosts together"
)

// claims is what following a claimant would cost.
func (c *claimant) claims() int {
	if c == nil {
		return 0
	}
	return len(c.hosts) * (1 + c.visibility.extra())
}

// extra is what a claimant takes of maxScoped.
func (c *claimant) extra() int {
	if c == nil {
		return 0
	}
	return len(c.hosts) * c.visibility.extra()
}

func (c *claimant) notFollowed(reason string) NotFollowed {
	return NotFollowed{
		Key:    mirror.Key{Kind: c.kind.kind, Namespace: c.namespace, Name: c.name},
		Source: c.source, Hosts: len(c.hosts), Namespaces: len(c.visibility.namespaces), Reason: reason,
	}
}

// retry follows one of the resources for which there was no room, if there may be some now:
// with each update another one. When there still is none, it waits until less is noted.
func (h *Hosts) retry() []HostConflict {
	if h.scoped >= h.retryBelow {
		return nil
	}
	for key, r := range h.waiting {
		changed := h.update(key, nil, claimantOf(hostKindOf(key.Kind), r))
		if h.retryBelow = h.maxScoped - maxClaims; h.waiting[key] != nil {
			h.retryBelow = min(h.retryBelow, h.scoped)
		}
		return changed
	}
	return nil
}

// NotFollowed returns the resources that are not followed, sorted by key.
func (h *Hosts) NotFollowed() []NotFollowed {
	h.mu.Lock()
	out := make([]NotFollowed, 0, len(h.unfollowed))
	for _, n := range h.unfollowed {
		out = append(out, n)
	}
	h.mu.Unlock()
	slices.SortFunc(out, func(a, b NotFollowed) int {
		return cmp.Or(mirror.CompareKinds(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return out
}

// notFollowed returns why a resource is not followed, if so.
func (h *Hosts) notFollowed(key mirror.Key) (n NotFollowed, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, ok = h.unfollowed[key]
	return n, ok
}

// notFollowedCounts returns the number of resources that are not followed, by kind.
func (h *Hosts) notFollowedCounts() map[mirror.Kind]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[mirror.Kind]int{serviceEntry: 0, virtualService: 0}
	for key := range h.unfollowed {
		out[key.Kind]++
	}
	return out
}

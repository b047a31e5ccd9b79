package conflicts

import (
	"fmt"
	"slices"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// NotFollowed is a resource whose hosts Hosts does not follow, because they are too many. It is
// served like any other.
type NotFollowed struct {
	mirror.Key
	// Source is the upstream from which the served resource comes.
	Source string `json:"source"`
	// Hosts is the number of hosts that it claims.
	Hosts int `json:"hosts"`
	// Namespaces is the number of namespaces that see it, 0 for all.
	Namespaces int `json:"namespaces,omitempty"`
	// Reason tells why it is not followed.
	Reason string `json:"reason"`
}

var (
	tooMany = fmt.Sprintf("its hosts, times the namespaces of its exportTo, are more than %d", maxClaims)
	noRoom  = "configs of this size claim too many hosts together"
)

func (c *claimant) notFollowed(reason string) NotFollowed {
	return NotFollowed{
		Key:    mirror.Key{Kind: c.kind.Kind, Namespace: c.namespace, Name: c.name},
		Source: c.source, Hosts: len(c.hosts), Namespaces: len(c.visibility.Namespaces), Reason: reason,
	}
}

// retry tries to follow one of the waiting resources, another one with each update, once there
// may be room. If there is none, the next attempt waits until scoped is lower still.
func (h *Hosts) retry() []HostConflict {
	if h.scoped >= h.retryBelow {
		return nil
	}
	for key, r := range h.waiting {
		changed := h.update(key, nil, claimantOf(federation.HostKindOf(key.Kind), r))
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
	slices.SortFunc(out, func(a, b NotFollowed) int { return mirror.CompareKeys(a.Key, b.Key) })
	return out
}

// Skipped returns why a resource is not followed; false if it is.
func (h *Hosts) Skipped(key mirror.Key) (NotFollowed, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, ok := h.unfollowed[key]
	return n, ok
}

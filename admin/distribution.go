package admin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/sink"
)

// The conditions of Arrival.Unmet. Applied is also the State at a sink whose cluster has the present content.
const (
	Distributed = "distributed"
	Deleted     = "deleted"
	Applied     = "applied"
)

// Arrival tells where the present content of a resource has arrived.
type Arrival struct {
	downstream.Distribution
	// Sinks are set when they were asked for.
	Sinks []sink.Applied `json:"sinks,omitempty"`
}

// Unmet returns why a resource is not "distributed", "deleted" or "applied" yet. It is empty when it is.
func (a *Arrival) Unmet(condition string) string {
	if why := a.unmet(condition); why != "" {
		return why
	}
	if condition == Distributed && a.Clients == 0 {
		return "no client that sees it is connected"
	}
	return ""
}

func (a *Arrival) unmet(condition string) string {
	switch {
	case condition == Deleted && a.Version != "":
		return "it is served"
	case condition != Deleted && a.Version == "":
		return "it is not served"
	case condition == Applied:
		absent := 0
		for _, s := range a.Sinks {
			if s.State == sink.Absent {
				absent++
			} else if s.State != Applied {
				return strings.TrimSuffix(fmt.Sprintf("sink %s: %s: %s", s.Sink, s.State, s.Reason), ": ")
			}
		}
		if absent > 0 && absent == len(a.Sinks) {
			return "no sink has it in its view"
		}
	default:
		return Unfinished(a.Distribution)
	}
	return ""
}

// Unfinished returns what a distribution lacks, and which clients. It is empty for one that is distributed.
func Unfinished(d downstream.Distribution) string {
	var parts []string
	if d.Pushing {
		parts = append(parts, "the newest change was not pushed yet")
	}
	if d.Lacks > 0 && d.Version == "" {
		parts = append(parts, "still at "+holders(d.Lacking, d.Lacks))
	} else if d.Lacks > 0 {
		parts = append(parts, "not acknowledged by "+holders(d.Lacking, d.Lacks))
	}
	if d.Refuses > 0 {
		parts = append(parts, "rejected by "+holders(d.Refusing, d.Refuses))
	}
	return strings.Join(parts, "; ")
}

// holders names the first of some clients, with their errors.
func holders(some []downstream.Holder, of int) string {
	const shown = 3
	var out []string
	for _, h := range some[:min(len(some), shown)] {
		out = append(out, strings.TrimSuffix(h.Name()+": "+h.Error, ": "))
	}
	if more := of - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// WriteDistribution writes the Arrival of the resource that kind, namespace and name of a query name. applied asks for
// the sinks.
func (d *Debug) WriteDistribution(w io.Writer, q url.Values) error {
	keys, err := keysFor(q)
	if err != nil {
		return err
	}
	a := &Arrival{Distribution: d.clients.Distribution(keys[0])}
	for _, key := range keys[1:] { // of a word that means several kinds: the one that is served, or that a client still has
		if a.Version == "" && a.Clients == 0 && !a.Pushing {
			a.Distribution = d.clients.Distribution(key)
		}
	}
	if q.Get("applied") == "true" {
		if d.views.Applied != nil {
			a.Sinks = d.views.Applied(a.Key)
		}
		if len(a.Sinks) == 0 {
			return badRequestf("the relay has no sinks: see sinks in its config")
		}
	}
	return writeJSON(w, a)
}

// keysFor returns the keys that kind, namespace and name of a query may mean.
func keysFor(q url.Values) (keys []mirror.Key, err error) {
	kinds, err := kindsOf(q)
	if err != nil {
		return nil, err
	}
	if len(kinds) == 0 || q.Get("name") == "" {
		return nil, badRequestf("kind and name are required, for example ?kind=ServiceEntry&namespace=shop&name=db")
	}
	for _, kind := range kinds {
		key := mirror.Key{Kind: kind, Namespace: q.Get("namespace"), Name: q.Get("name")}
		if info, ok := mirror.LookupKind(kind); ok && info.ClusterScoped || kind == mirror.MeshConfig {
			key.Namespace = ""
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Arrival returns where a resource has arrived. The parameters are those of /debug/distribution.
func (c Client) Arrival(ctx context.Context, query url.Values) (Arrival, error) {
	return ask[Arrival](ctx, c, http.MethodGet, "/debug/distribution", query)
}

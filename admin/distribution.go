package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/peers"
	"meshrelay/sink"
	"meshrelay/upstreams"
)

const (
	// arrivalTimeout bounds the time in which API servers and replicas answer for one document.
	arrivalTimeout = 10 * time.Second
	// maxReplicaBytes bounds the document of another replica.
	maxReplicaBytes = 256 << 10
)

// Arrivals are what else tells whether a resource has arrived. Its functions must be safe for concurrent use.
type Arrivals struct {
	// Applied returns what each sink has written of a resource.
	Applied func(mirror.Key) []sink.Applied
	// Replicas asks the other replicas. It is nil without replicas.peers.
	Replicas Replicas
	// Generation returns the metadata.generation of the object of a resource at its API server. held reports whether
	// the relay has the content of that generation.
	Generation func(ctx context.Context, key mirror.Key) (generation int64, held bool, err error)
}

// SinkApplied is the State of a resource whose present content the cluster has.
const SinkApplied = "applied"

// Replicas asks all other replicas for a document at once, and calls f with each answer, from several goroutines.
type Replicas interface {
	Each(ctx context.Context, path string, most int64, f func(peer string, body io.Reader) error) []peers.Failure
}

// Arrival tells where the present content of a resource has arrived.
type Arrival struct {
	downstream.Distribution
	// Generation is the metadata.generation that was asked for, Awaited why the relay does not have it yet.
	Generation int64  `json:"generation,omitempty"`
	Awaited    string `json:"awaited,omitempty"`
	// Sinks are set when they were asked for.
	Sinks []sink.Applied `json:"sinks,omitempty"`
	// Replicas are the answers of the other replicas, by peer, and Unreached why others have not answered.
	Replicas  map[string]*Arrival `json:"replicas,omitempty"`
	Unreached map[string]string   `json:"unreached,omitempty"`
}

// Writable reports whether the relay may write into the cluster of an upstream what it knows of its objects: the upstream
// is in contact, has told everything since the start, and nothing of it is held, frozen or rolled back.
func Writable(u upstreams.Status) bool {
	return u.InContact && u.Synced && u.Complete && !u.Stale && u.Held == nil && u.Frozen == nil
}

// Unmet returns why a resource is not "distributed", "deleted" or "applied" yet, in this relay and in the replicas that
// were asked. It is empty when it is.
func (a *Arrival) Unmet(condition string) string {
	if why := a.unmet(condition); why != "" {
		return why
	}
	for _, peer := range keysOf(a.Replicas, nil) {
		if why := a.Replicas[peer].unmet(condition); why != "" {
			return fmt.Sprintf("replica %s: %s", peer, why)
		}
		if version := a.Replicas[peer].Version; version != a.Version && condition != Deleted {
			return fmt.Sprintf("replica %s serves other content", peer)
		}
	}
	for _, peer := range keysOf(a.Unreached, nil) {
		return fmt.Sprintf("replica %s can not be asked: %s", peer, a.Unreached[peer])
	}
	return ""
}

// The conditions of Unmet.
const (
	Distributed = "distributed"
	Deleted     = "deleted"
	Applied     = "applied"
)

func (a *Arrival) unmet(condition string) string {
	switch {
	case condition == Deleted && a.Version != "":
		return "it is served"
	case condition != Deleted && a.Version == "":
		return "it is not served"
	case a.Awaited != "":
		return a.Awaited
	case condition == Applied:
		return a.unapplied()
	case a.Pushing:
		return "the change was not pushed yet"
	case a.Refuses > 0:
		return "rejected by " + Holders(a.Refusing, a.Refuses)
	case a.Lacks > 0 && condition == Deleted:
		return "still at " + Holders(a.Lacking, a.Lacks)
	case a.Lacks > 0:
		return "not acknowledged by " + Holders(a.Lacking, a.Lacks)
	}
	return ""
}

// unapplied returns the first sink that has not applied the resource, and why.
func (a *Arrival) unapplied() string {
	i := slices.IndexFunc(a.Sinks, func(s sink.Applied) bool { return s.State != SinkApplied })
	if i < 0 {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintf("sink %s: %s: %s", a.Sinks[i].Sink, a.Sinks[i].State, a.Sinks[i].Reason), ": ")
}

// Holders names the first of some clients, with their errors.
func Holders(some []downstream.Holder, of int) string {
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

// ShowArrivals sets what else is asked about a resource. Call it before the first document is made.
func (d *Debug) ShowArrivals(a Arrivals) { d.arrivals = a }

// distribution writes the Arrival of a resource.
func (d *Debug) distribution(w io.Writer, q url.Values) error {
	ctx, cancel := context.WithTimeout(context.Background(), arrivalTimeout)
	defer cancel()
	return d.WriteDistribution(ctx, q, w)
}

// WriteDistribution writes the Arrival of the resource that kind, namespace and name of a query name. generation asks
// for the content of a metadata.generation, applied for the sinks, and all for the other replicas.
func (d *Debug) WriteDistribution(ctx context.Context, q url.Values, w io.Writer) error {
	keys, err := keysFor(q)
	if err != nil {
		return err
	}
	key := keys[0] // of a word that means several kinds: the one that is served
	if i := slices.IndexFunc(keys, func(k mirror.Key) bool { return d.views.Resources.Get(k) != nil }); i > 0 {
		key = keys[i]
	}
	a := &Arrival{Distribution: d.clients.Distribution(key)}
	if err := d.await(ctx, a, q.Get("generation")); err != nil {
		return err
	}
	if q.Get("applied") == "true" {
		if d.arrivals.Applied != nil {
			a.Sinks = d.arrivals.Applied(key)
		}
		if len(a.Sinks) == 0 {
			return badRequestf("the relay has no sinks: see sinks in its config")
		}
	}
	if q.Get("all") == "true" {
		if d.arrivals.Replicas == nil {
			return badRequestf("the relay knows no other replicas: set replicas.peers in its config")
		}
		q = url.Values{"kind": {key.Kind.String()}, "namespace": {key.Namespace}, "name": {key.Name}, "generation": q["generation"], "applied": q["applied"]}
		d.askReplicas(ctx, a, "distribution?"+q.Encode())
	}
	return writeJSON(w, a)
}

// await notes whether the relay has a metadata.generation of an object. An empty one is not asked for.
func (d *Debug) await(ctx context.Context, a *Arrival, generation string) error {
	if generation == "" {
		return nil
	}
	n, err := strconv.ParseInt(generation, 10, 64)
	switch {
	case err != nil || n < 1:
		return badRequestf("generation is %.32q: want the metadata.generation of an object", generation)
	case d.arrivals.Generation == nil || a.Version == "":
		return nil
	}
	a.Generation = n
	has, held, err := d.arrivals.Generation(ctx, a.Key)
	switch {
	case err != nil:
		a.Awaited = "generation not known: " + err.Error()
	case has < n:
		a.Awaited = fmt.Sprintf("the object has generation %d", has)
	case !held:
		a.Awaited = fmt.Sprintf("the relay has not read generation %d yet", has)
	}
	return nil
}

// askReplicas adds the answers of the other replicas.
func (d *Debug) askReplicas(ctx context.Context, a *Arrival, path string) {
	var mu sync.Mutex // guards a
	a.Replicas = map[string]*Arrival{}
	failures := d.arrivals.Replicas.Each(ctx, path, maxReplicaBytes, func(peer string, body io.Reader) error {
		one := &Arrival{}
		if err := json.NewDecoder(body).Decode(one); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		a.Replicas[peer] = one
		return nil
	})
	for _, f := range failures {
		if a.Unreached == nil {
			a.Unreached = map[string]string{}
		}
		a.Unreached[f.Peer] = f.Err.Error()
	}
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

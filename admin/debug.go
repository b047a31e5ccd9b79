package admin

import (
	"encoding/json"
	"io"
	"net/url"

	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/visible"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/sink"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Resources reads the merged resources.
type Resources interface {
	Kinds() []mirror.Kind
	Get(key mirror.Key) *mirror.Resource
	List(kind mirror.Kind, namespace string) []*mirror.Resource
	Resolve(key mirror.Key) mirror.Resolution
	// Keys returns all keys of a kind that any upstream has. Select merges the copies that accept accepts.
	Keys(kind mirror.Kind) []mirror.Key
	Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource
	Apart(keys []mirror.Key) string
}

// Clients reads the connected clients.
type Clients interface {
	Clients() []downstream.ClientStatus
	// Peers returns the peers that were sent most.
	Peers() []downstream.PeerStatus
	// Receipts returns the clients that subscribe to the kind of a key, and what they have received of it.
	Receipts(key mirror.Key) []downstream.Receipt
	// Distribution tells which clients have the present content of a resource.
	Distribution(key mirror.Key) downstream.Distribution
	// Shows returns the cluster of a connected client and whether it sees a copy, or false without that client.
	Shows(connection string) (cluster string, sees func(*mirror.Resource) bool, ok bool)
}

// Views are the data that a Debug shows. The functions must be safe for concurrent use.
type Views struct {
	Resources Resources
	Upstreams func() []upstreams.Status
	// Clusters returns the found clusters, by part of the config.
	Clusters func() []clusters.Status
	// Trace returns the copy of a key in each upstream and its outcome, in order of priority.
	Trace func(key mirror.Key) []records.Trace
	// LeftOut returns the resources of upstreams that are not imported.
	LeftOut func() []records.LeftOut
	// Contests returns the keys that several upstreams have. Without kinds, it returns those of all kinds.
	Contests func(kinds ...mirror.Kind) []conflicts.KeyConflict
	// HostConflicts returns the hosts that several keys claim.
	HostConflicts func() []conflicts.HostConflict
	// Hybrids returns the hosts whose parts come from different upstreams.
	Hybrids func() []conflicts.Hybrid
	// Events is the journal; nil has no events.
	Events *events.Journal
	// Replicas returns this replica and the others, if there are any.
	Replicas func() []orders.Replica
	// Applied returns what each sink has written of a resource.
	Applied func(mirror.Key) []sink.Applied
}

// Debug makes the debug documents. It is safe for concurrent use.
type Debug struct {
	views   Views
	clients Clients
	// busy has a slot for each document in the making.
	busy chan struct{}
}

// NewDebug returns a Debug that shows views and clients.
func NewDebug(views Views, clients Clients) *Debug {
	return &Debug{views: views, clients: clients, busy: make(chan struct{}, maxDebugRequests)}
}

// document is one debug document, at /debug/name.
type document struct {
	name, help string
	parameters []string
	write      func(d *Debug, w io.Writer, q url.Values) error
}

// documents returns all debug documents in alphabetical order.
func documents() []document {
	return []document{
		{"clusters", "Found clusters with their states", nil, listOf(func(d *Debug) []clusters.Status { return d.views.Clusters() })},
		{"configz", "Merged resources as Kubernetes objects; ?kind=, ?namespace= and ?name= filter", []string{"kind", "namespace", "name"}, (*Debug).configz},
		{"conflicts", "Keys that several upstreams have, hosts that several keys claim, and hosts whose parts come from different upstreams; ?kind= filters", []string{"kind"}, wholeOf((*Debug).conflicts)},
		{"connections", "Connected clients with the responses to them, by type", nil, (*Debug).connections},
		{"events", "Journal of events: ?since=, ?until=, ?type=, ?upstream=, ?client=, ?kind=, ?namespace= and ?q= filter, ?after=, ?before= and ?limit= page; with Accept: text/event-stream, live", eventParameters, wholeOf((*Debug).events)},
		{"explain", "Why a resource is served as it is: ?kind=, ?namespace= and ?name=", []string{"kind", "namespace", "name"}, wholeOf((*Debug).Explain)},
		{"leftout", "Resources that import rules leave out, with the rule; ?upstream= and ?kind= filter", []string{"upstream", "kind"}, (*Debug).leftOut},
		{"mesh", "Merged MeshConfig, or null", nil, (*Debug).mesh},
		{"peers", "Identities and addresses with what their streams have cost, the most first", nil, listOf(func(d *Debug) []downstream.PeerStatus { return d.clients.Peers() })},
		{"replicas", "This replica and the others, with the orders that are not in force there", nil, listOf(func(d *Debug) []orders.Replica { return d.views.Replicas() })},
		{"services", "Services, or one ?host= with its ServiceEntries and endpoints; ?port= filters endpoints, ?search= and ?from= hosts; ?client= is the connection whose view it is, ?limit= bounds lists", []string{"host", "port", "client", "search", "from", "limit"}, wholeOf((*Debug).Services)},
		{"upstreams", "State of each upstream", nil, listOf(func(d *Debug) []upstreams.Status { return d.views.Upstreams() })},
		{"versions", "Versions of the merged resources", nil, (*Debug).versions},
	}
}

// wholeOf returns a function that writes what read returns.
func wholeOf[T any](read func(*Debug, url.Values) (T, error)) func(*Debug, io.Writer, url.Values) error {
	return func(d *Debug, w io.Writer, q url.Values) error {
		v, err := read(d, q)
		if err != nil {
			return err
		}
		return writeJSON(w, v)
	}
}

func listOf[T any](read func(*Debug) []T) func(*Debug, io.Writer, url.Values) error {
	return func(d *Debug, w io.Writer, _ url.Values) error { return writeJSON(w, notNil(read(d))) }
}

// arrayWriter writes a JSON array element by element, one per line. After an error it writes nothing more, and
// close returns the error.
type arrayWriter struct {
	w   io.Writer
	n   int
	err error
}

func (a *arrayWriter) add(v any) {
	if a.err != nil {
		return
	}
	var b []byte
	if b, a.err = json.Marshal(v); a.err != nil {
		return
	}
	sep := ",\n"
	if a.n == 0 {
		sep = "[\n"
	}
	a.n++
	if _, a.err = io.WriteString(a.w, sep); a.err == nil {
		_, a.err = visible.NewWriter(a.w).Write(b)
	}
}

func (a *arrayWriter) close() error {
	end := "\n]\n"
	if a.n == 0 {
		end = "[]\n"
	}
	if a.err == nil {
		_, a.err = io.WriteString(a.w, end)
	}
	return a.err
}

func (d *Debug) connections(w io.Writer, _ url.Values) error {
	out := &arrayWriter{w: w}
	for _, c := range d.clients.Clients() {
		out.add(c)
	}
	return out.close()
}

// notNil returns s, or an empty slice for nil: JSON then has an empty array instead of null.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

package downstream

import (
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/mirror"
)

const wildcardName = "*"

// outcome is what a request turned out to be.
type outcome int

const (
	outcomeSubscribed outcome = iota // the subscription is new or changed
	outcomeACK
	outcomeNACK
	outcomeStale // about a response that is not the newest: nothing to do
)

// requestSotW classifies a DiscoveryRequest and takes over what it asks for
// (PROTOCOL S7, S16). w is nil for the first request of its type.
func (ws *watches) requestSotW(req *discoveryv3.DiscoveryRequest, now time.Time) (outcome, error) {
	names := req.GetResourceNames()
	w := ws.byType[req.GetTypeUrl()]
	if w == nil {
		// Whatever its nonce says, the first request of a type on a stream is an initial
		// one: istiod's client sends a time there (PROTOCOL S2).
		w, err := ws.add(req.GetTypeUrl())
		if err != nil {
			return 0, err
		}
		if err := ws.setNames(w, names); err != nil {
			return 0, err
		}
		w.wildcard = w.wildcard || len(names) == 0
		w.owed = true
		if req.GetErrorDetail() != nil {
			w.rejected(req.GetErrorDetail().GetMessage())
			return outcomeNACK, nil
		}
		w.resume = req.GetVersionInfo()
		return outcomeSubscribed, nil
	}
	switch {
	case req.GetErrorDetail() != nil:
		if req.GetResponseNonce() != w.nonce {
			return outcomeStale, nil
		}
		w.rejected(req.GetErrorDetail().GetMessage())
		return outcomeNACK, nil
	case req.GetResponseNonce() == "":
		// Asked again: full state whatever the client has (PROTOCOL C4).
		if err := ws.replaceNames(w, names); err != nil {
			return 0, err
		}
		w.owed, w.resume = true, ""
		return outcomeSubscribed, nil
	case req.GetResponseNonce() != w.nonce:
		return outcomeStale, nil
	case w.sameNames(names):
		w.acknowledged(req.GetResponseNonce(), now)
		return outcomeACK, nil
	}
	w.acknowledged(req.GetResponseNonce(), now)
	if err := ws.replaceNames(w, names); err != nil {
		return 0, err
	}
	w.owed, w.resume = w.wildcard || len(w.names) > 0, ""
	return outcomeSubscribed, nil
}

// setNames takes over the names of a first request.
func (ws *watches) setNames(w *watch, names []string) error {
	w.named = len(names) > 0 || w.named
	for _, n := range names {
		if n == wildcardName {
			w.wildcard = true
			continue
		}
		if err := ws.addName(w, n); err != nil {
			return err
		}
	}
	return nil
}

// replaceNames takes over the names of a later SotW request. A client that never
// sent a name keeps its wildcard by sending none; one that did unsubscribes with
// that (PROTOCOL S16).
func (ws *watches) replaceNames(w *watch, names []string) error {
	if w.sameNames(names) {
		return nil
	}
	for n := range w.names {
		ws.dropName(w, n)
	}
	w.wildcard = false
	return ws.setNames(w, names)
}

func (w *watch) sameNames(names []string) bool {
	if len(names) == 0 {
		return !w.named
	}
	if !w.named {
		return false
	}
	star := false
	n := 0
	for _, name := range names {
		if name == wildcardName {
			star = true
			continue
		}
		n++
		if _, ok := w.names[name]; !ok {
			return false
		}
	}
	return star == w.wildcard && n == len(w.names)
}

func (ws *watches) addName(w *watch, name string) error {
	w.ackedCursor = 0 // nothing has been sent of it, whatever was acknowledged before
	if _, there := w.names[name]; there {
		return nil
	}
	switch {
	case len(name) > maxName:
		return refuse(reasonNames, codes.InvalidArgument, "%s: a resource name of %d bytes: no resource has more than %d", w.typeURL, len(name), maxName)
	case ws.names.names >= ws.limits.MaxNamesPerClient:
		return errTooManyNames(ws.limits)
	case ws.names.nameBytes+len(name) > ws.limits.MaxNameBytesPerClient:
		return refuse(reasonNames, codes.ResourceExhausted,
			"resource names of more than %d bytes (downstream.maxNameBytesPerClient); subscribe with a wildcard", ws.limits.MaxNameBytesPerClient)
	}
	w.names[name] = struct{}{}
	ws.names.names++
	ws.names.nameBytes += len(name)
	return nil
}

func errTooManyNames(limits *Limits) error {
	return refuse(reasonNames, codes.ResourceExhausted,
		"more than %d resource names (downstream.maxNamesPerClient); subscribe with a wildcard", limits.MaxNamesPerClient)
}

// dropName forgets a name that w has.
func (ws *watches) dropName(w *watch, name string) {
	delete(w.names, name)
	ws.names.names--
	ws.names.nameBytes -= len(name)
}

// requestDelta is requestSotW for a DeltaDiscoveryRequest (PROTOCOL S17, S18).
// Changes of the subscription count whatever the nonce is.
func (ws *watches) requestDelta(req *discoveryv3.DeltaDiscoveryRequest, now time.Time) (outcome, error) {
	w := ws.byType[req.GetTypeUrl()]
	result := outcomeSubscribed
	first := w == nil
	if first {
		var err error
		if w, err = ws.add(req.GetTypeUrl()); err != nil {
			return 0, err
		}
		w.owed, w.all = true, true
		w.held = req.GetInitialResourceVersions()
		w.kept = sizeOfVersions(w.held)
		w.wildcard = len(req.GetResourceNamesSubscribe()) == 0
	} else if req.GetErrorDetail() == nil && req.GetResponseNonce() != "" {
		result = outcomeStale
		// Several responses may be on their way, and each is acknowledged.
		if newerNonce(req.GetResponseNonce(), w.status.AckedNonce) && !newerNonce(req.GetResponseNonce(), w.nonce) {
			w.acknowledged(req.GetResponseNonce(), now)
			result = outcomeACK
		}
	}
	if req.GetErrorDetail() != nil {
		w.rejected(req.GetErrorDetail().GetMessage())
		result = outcomeNACK
	}
	changed, err := ws.changeNames(w, first, req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe())
	if changed && result == outcomeStale {
		result = outcomeSubscribed
	}
	return result, err
}

// changeNames applies a delta request's changes: what is unsubscribed in the
// request that subscribes it ends unsubscribed.
func (ws *watches) changeNames(w *watch, first bool, subscribe, unsubscribe []string) (changed bool, err error) {
	changed = len(subscribe)+len(unsubscribe) > 0
	dropped := make(map[string]struct{}, len(unsubscribe))
	for _, n := range unsubscribe {
		dropped[n] = struct{}{}
	}
	for _, n := range subscribe {
		if _, both := dropped[n]; both {
			continue
		}
		if n == wildcardName {
			// Asked for again, everything is sent again.
			w.wildcard, w.all, w.owed = true, true, true
			continue
		}
		if err := ws.addName(w, n); err != nil {
			return changed, err
		}
		w.owed = true
		if !first {
			w.again(n)
		}
	}
	for n := range dropped {
		if n == wildcardName {
			w.adopt = w.wildcard && !first
			w.wildcard, w.all = false, false
			continue
		}
		switch _, named := w.names[n]; {
		case named:
			ws.dropName(w, n)
		case !w.wildcard:
			continue
		}
		delete(w.has, n)
		delete(w.resend, n)
		if w.wildcard {
			// The client drops it now, and the wildcard still covers it.
			w.again(n)
		}
	}
	return changed, nil
}

// newerNonce compares two nonces of a type on a stream: "" is the oldest, then comes that
// of the first response, and the others are numbers.
func newerNonce(a, b string) bool {
	rank := func(nonce string) string {
		if strings.HasPrefix(nonce, firstNoncePrefix) {
			return "0"
		}
		return nonce
	}
	a, b = rank(a), rank(b)
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}

// again has the next response bring a name, whether it has changed or not.
func (w *watch) again(name string) {
	switch {
	case w.wildcard && w.all:
		return
	case w.wildcard && len(w.resend) >= maxResend:
		w.all, w.owed, w.resend = true, true, nil
		return
	case w.resend == nil:
		w.resend = map[string]struct{}{}
	}
	w.resend[name] = struct{}{}
}

// sizeOfVersions returns what initial_resource_versions take up, about.
func sizeOfVersions(versions map[string]string) (n int) {
	const entry = 64
	for name, version := range versions {
		n += len(name) + len(version) + entry
	}
	return n
}

// watches are one client's subscriptions.
type watches struct {
	byType map[string]*watch
	sorted []*watch // in sending order
	limits *Limits  // set before each request
	names  usage    // of names alone
}

func newWatches() *watches { return &watches{byType: map[string]*watch{}} }

// kept returns what the watches keep.
func (ws *watches) kept() usage {
	u := ws.names
	for _, w := range ws.sorted {
		u.versions += w.kept
	}
	return u
}

func (ws *watches) add(typeURL string) (*watch, error) {
	if most := ws.limits.MaxTypesPerClient; len(ws.byType) >= most {
		return nil, refuse(reasonTypes, codes.ResourceExhausted, "subscribed to more than %d types (downstream.maxTypesPerClient)", most)
	}
	if typeURL == "" || len(typeURL) > 512 {
		return nil, refuse(reasonTypes, codes.InvalidArgument, "type_url %q: want group/version/Kind", bounded(typeURL))
	}
	w := &watch{typeURL: typeURL, kind: ws.kindOf(typeURL), names: map[string]struct{}{}, has: map[string][16]byte{}}
	ws.byType[typeURL] = w
	ws.sorted = insertSorted(ws.sorted, w)
	return w, nil
}

// kindOf returns the kind that a type URL stands for. One of another shape, or of an API
// version that its kind does not have, is a type that nobody has: it is answered with nothing,
// like every unknown type (PROTOCOL S3).
func (ws *watches) kindOf(typeURL string) mirror.Kind {
	none := mirror.Kind{Group: typeURL}
	kind, version, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return none
	}
	if info, ok := mirror.LookupKind(kind); ok {
		if !slices.Contains(info.Versions, version) {
			return none
		}
		return kind
	}
	spellings := 0
	for _, w := range ws.sorted {
		if w.kind == kind {
			spellings++
		}
	}
	if spellings >= maxSpellings {
		return none
	}
	return kind
}

func insertSorted(sorted []*watch, w *watch) []*watch {
	at := len(sorted)
	for i, other := range sorted {
		if c := mirror.CompareKinds(w.kind, other.kind); c < 0 || c == 0 && w.typeURL < other.typeURL {
			at = i
			break
		}
	}
	sorted = append(sorted, nil)
	copy(sorted[at+1:], sorted[at:])
	sorted[at] = w
	return sorted
}

// client is what a node says of itself (PROTOCOL S1, S14).
type client struct {
	nodeID, clusterID, namespace, istioVersion, revision string
	labels                                               labels.Set
	// unlabelled says that there were more labels than are kept.
	unlabelled bool
}

// maxLabelBytes bounds the labels of a client that are kept after it has got its view, for
// when the rules change.
const maxLabelBytes = 16 << 10

// lean returns c as it is kept.
func (c client) lean() client {
	size := 0
	for name, value := range c.labels {
		size += len(name) + len(value)
	}
	if size > maxLabelBytes {
		c.labels, c.unlabelled = nil, true
	}
	return c
}

func parseNode(node *corev3.Node) (client, error) {
	if node.GetId() == "" {
		return client{}, refuse(reasonNode, codes.InvalidArgument, "the first request of a stream must carry a node with an id")
	}
	md := node.GetMetadata().GetFields()
	c := client{
		nodeID:       bounded(node.GetId()),
		clusterID:    bounded(md["CLUSTER_ID"].GetStringValue()),
		namespace:    bounded(md["NAMESPACE"].GetStringValue()),
		istioVersion: bounded(md["ISTIO_VERSION"].GetStringValue()),
		revision:     bounded(md["ISTIO_REVISION"].GetStringValue()),
		labels:       labels.Set{},
	}
	for name, v := range md["LABELS"].GetStructValue().GetFields() {
		c.labels[name] = v.GetStringValue()
	}
	if own, relay := md["RELAY_CLUSTER_ID"]; relay {
		// A relay says with CLUSTER_ID which cluster it takes this server for.
		c.clusterID = bounded(own.GetStringValue())
	}
	if c.namespace == "" {
		c.namespace = namespaceOfID(node.GetId())
	}
	return c, nil
}

// namespaceOfID returns the namespace in a node id of the form
// type~IP~name.namespace~domain (PROTOCOL C2), empty when it has another.
func namespaceOfID(id string) string {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return ""
	}
	_, namespace, _ := strings.Cut(parts[2], ".")
	return namespace
}

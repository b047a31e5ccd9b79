package services

import (
	"bytes"
	"cmp"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// concern is how much of a service a change concerns. Of several, the largest counts.
type concern uint8

const (
	ofNothing concern = iota
	ofEndpoints
	ofService // more than its endpoints
)

// The fields whose differences concern a service, by their numbers in istio.io/api. comparePorts and compareEndpoints
// look at the others. In the metadata, 4 are the labels and 2 is the time of creation, which decides between several
// entries of a host.
var (
	// hosts, addresses, location, resolution, exportTo, subjectAltNames, workloadSelector
	entryFields = []concern{1: ofService, ofService, 4: ofService, ofService, 7: ofService, ofService, ofEndpoints}
	portFields  = []concern{1: ofService, ofService, ofService, ofEndpoints} // 4 is targetPort
	// 7 is serviceAccount
	workloadFields   = []concern{1: ofEndpoints, ofEndpoints, ofEndpoints, ofEndpoints, ofEndpoints, ofEndpoints, ofService}
	entryMetadata    = []concern{2: ofService, 4: ofService}
	workloadMetadata = []concern{4: ofEndpoints}
)

// Concerns reports whether a change of a ServiceEntry or WorkloadEntry concerns more of a service than its endpoints, or
// its endpoints alone. It reports neither for other kinds, and for what no client of a service uses. old and now are two
// contents of one key; one of them may be nil, for none. It decodes nothing, so that two encodings of a map in another
// order differ for it. docs/changes.md has a table, beside what the handlers of an istiod do.
func Concerns(old, now *mirror.Resource) (service, endpoint bool) {
	c := ofNothing
	switch kind := cmp.Or(now, old).Kind(); {
	case old.Equal(now):
	case kind == federation.ServiceEntry:
		c = compareEntries(old, now)
	case kind == federation.WorkloadEntry && (old == nil || now == nil):
		c = ofEndpoints
	case kind == federation.WorkloadEntry:
		c = max(compare(workloadFields, old.BodyValue(), now.BodyValue()), compare(workloadMetadata, metadataOf(old), metadataOf(now)))
	}
	return c == ofService, c == ofEndpoints
}

func compareEntries(old, now *mirror.Resource) concern {
	if old == nil || now == nil || old.Cluster() != now.Cluster() || old.Revision() != now.Revision() {
		return ofService
	}
	a, b := old.BodyValue(), now.BodyValue()
	x, y := metadataOf(old), metadataOf(now)
	was, _ := old.Annotation(federation.DistributionAnnotation) // no other means anything to clients
	if is, _ := now.Annotation(federation.DistributionAnnotation); !bytes.Equal(was, is) {
		return ofService
	}
	c := max(compare(entryFields, a, b), compare(entryMetadata, x, y), comparePorts(a, b), compareEndpoints(a, b))
	if c == ofEndpoints && isResolved(a) && isResolved(b) {
		return ofService // the names of the endpoints are in the clusters of clients
	}
	return c
}

// metadataOf returns the encoded istio.mcp.v1alpha1.Metadata of r: field 1 of the value of its Any.
func metadataOf(r *mirror.Resource) []byte { return wire.Last(wire.Last(r.Any(), 2), 1) }

// isResolved reports whether clients resolve the names of the endpoints of an encoded ServiceEntry.
func isResolved(body []byte) bool {
	c := wire.Fields(body)
	return next(&c, 5) != nil && c.Uint() >= 2 // the resolution is DNS, or a kind of it
}

// compare returns what the differences of two encoded messages in some fields concern.
func compare(fields []concern, old, now []byte) (c concern) {
	for i, of := range fields {
		if of > c && !sameField(old, now, protowire.Number(i)) {
			c = of
		}
	}
	return c
}

// comparePorts returns what the differences of the ports of two encoded ServiceEntries concern.
func comparePorts(old, now []byte) (c concern) {
	const ports = 3
	var a, b [usual][]byte
	was, is := valuesOf(a[:0], old, ports), valuesOf(b[:0], now, ports)
	if len(was) != len(is) {
		return ofService
	}
	for i := range was {
		c = max(c, compare(portFields, was[i], is[i]))
	}
	return c
}

func sameField(old, now []byte, n protowire.Number) bool {
	a, b := wire.Fields(old), wire.Fields(now)
	for {
		x, y := next(&a, n), next(&b, n)
		if x == nil || !bytes.Equal(x, y) {
			return x == nil && y == nil
		}
	}
}

// next returns the next field with a number, or nil.
func next(c *wire.Cursor, n protowire.Number) []byte {
	for c.Next() {
		if c.Number == n {
			return c.Field()
		}
	}
	return nil
}

// compareEndpoints returns what the differences of the endpoints of two encoded ServiceEntries concern: nothing if only their
// order differs. The clusters of clients have the accounts of the endpoints. A service without endpoints keeps those that it
// had.
func compareEndpoints(old, now []byte) concern {
	const endpoints, account = 6, 7
	var a, b [usual][]byte
	was, is := unique(valuesOf(a[:0], old, endpoints)), unique(valuesOf(b[:0], now, endpoints))
	if slices.EqualFunc(was, is, bytes.Equal) {
		return ofNothing
	}
	if len(was) == 0 || len(is) == 0 {
		return ofEndpoints
	}
	for _, all := range [][][]byte{was, is} {
		for i := range all {
			all[i] = wire.Last(all[i], account)
		}
	}
	if slices.EqualFunc(unique(was), unique(is), bytes.Equal) {
		return ofEndpoints
	}
	return ofService
}

// usual is how many values of a field need no allocation.
const usual = 32

// valuesOf appends the values of a length-delimited field.
func valuesOf(to [][]byte, message []byte, n protowire.Number) [][]byte {
	for c := wire.Fields(message); c.Next(); {
		if c.Bytes(n) {
			to = append(to, c.Value())
		}
	}
	return to
}

func unique(values [][]byte) [][]byte {
	slices.SortFunc(values, bytes.Compare)
	return slices.CompactFunc(values, bytes.Equal)
}

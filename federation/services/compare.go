package services

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// Marks is the set of parts of a service that a change changes.
type Marks uint8

// The parts of a service.
const (
	// MarkListener: the addresses, ports and protocols on which clients take connections for the service.
	MarkListener Marks = 1 << iota
	// MarkRoute: what clients do with its requests.
	MarkRoute
	// MarkCluster: how they connect to it. Endpoints whose names clients resolve belong to this.
	MarkCluster
	// MarkEndpoints: to which addresses they connect.
	MarkEndpoints
	// MarkVisibility: who has the service, under which names.
	MarkVisibility
)

// String returns the names of the parts, separated by commas.
func (m Marks) String() string {
	var names []string
	for i, name := range []string{"listener", "route", "cluster", "endpoints", "visibility"} {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// Concerns reports whether a change of a ServiceEntry or WorkloadEntry concerns more of a service than its endpoints, or
// its endpoints alone. It reports neither for other kinds, and for changes without marks. It takes what Compare takes.
func Concerns(old, now *mirror.Resource) (service, endpoint bool) {
	if kind := cmp.Or(now, old).Kind(); kind != federation.ServiceEntry && kind != federation.WorkloadEntry {
		return false, false
	}
	m := Compare(old, now)
	return m&^MarkEndpoints != 0, m == MarkEndpoints
}

// Compare returns what the change of a resource changes of services. old and now are two contents of one key; one of
// them may be nil, for none. It decodes nothing, so that two encodings of a map in another order differ for it.
// docs/changes.md has the marks as a table, beside what the handlers of an istiod do.
func Compare(old, now *mirror.Resource) Marks {
	if old.Equal(now) {
		return 0
	}
	kind := cmp.Or(now, old).Kind()
	of := comparisons[kind]
	if old == nil || now == nil || of.body.marks == nil {
		return of.whole
	}
	a, b := old.BodyValue(), now.BodyValue()
	x, y := metadataOf(old), metadataOf(now)
	m := of.body.compare(a, b) | of.metadata.compare(x, y)
	if kind != federation.ServiceEntry {
		return m
	}
	if m |= compareEndpoints(a, b); !bytes.Equal(distribution(x), distribution(y)) {
		m |= reached
	}
	if old.Cluster() != now.Cluster() || old.Revision() != now.Revision() {
		m |= MarkVisibility
	}
	if m&MarkEndpoints != 0 && isResolved(a) && isResolved(b) {
		m = m&^MarkEndpoints | MarkCluster
	}
	return m
}

// metadataOf returns the encoded istio.mcp.v1alpha1.Metadata of r: field 1 of the value of its Any.
func metadataOf(r *mirror.Resource) []byte { return wire.Last(wire.Last(r.Any(), 2), 1) }

// isResolved reports whether clients resolve the names of the endpoints of an encoded ServiceEntry.
func isResolved(body []byte) bool {
	c := wire.Fields(body)
	return next(&c, 5) != nil && c.Uint() >= 2 // the resolution is DNS, or a kind of it
}

// compare returns the marks of two encoded messages.
func (of message) compare(old, now []byte) (m Marks) {
	for i, marks := range of.marks {
		n := protowire.Number(i)
		if marks == 0 || sameField(old, now, n) {
			continue
		}
		if inner, nested := of.inner[n]; nested {
			var a, b [usual][]byte
			was, is := valuesOf(a[:0], old, n), valuesOf(b[:0], now, n)
			if len(was) == len(is) {
				marks = 0
				for i := range was {
					marks |= inner.compare(was[i], is[i])
				}
			}
		}
		m |= marks
	}
	return m
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

// compareEndpoints returns the marks of the endpoints of two encoded ServiceEntries: none if only their order differs. The
// clusters of clients have the accounts of the endpoints. A service without endpoints keeps those that it had.
func compareEndpoints(old, now []byte) Marks {
	const endpoints, account = 6, 7
	var a, b [usual][]byte
	was, is := unique(valuesOf(a[:0], old, endpoints)), unique(valuesOf(b[:0], now, endpoints))
	if slices.EqualFunc(was, is, bytes.Equal) {
		return 0
	}
	if len(was) == 0 || len(is) == 0 {
		return MarkEndpoints
	}
	for _, all := range [][][]byte{was, is} {
		for i := range all {
			all[i] = wire.Last(all[i], account)
		}
	}
	if slices.EqualFunc(unique(was), unique(is), bytes.Equal) {
		return MarkEndpoints
	}
	return reached
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

// distribution returns the annotation that tells which endpoints clients prefer. No other means anything to them.
func distribution(metadata []byte) (value []byte) {
	for c := wire.Fields(metadata); c.Next(); {
		if c.Bytes(5) && string(wire.Last(c.Value(), 1)) == federation.DistributionAnnotation {
			value = wire.Last(c.Value(), 2)
		}
	}
	return value
}

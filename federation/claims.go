package federation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/mirror"
)

// hostKind is a kind whose resources claim hosts, and the numbers of the fields that say
// which. A field that the kind does not have is 0.
type hostKind struct {
	kind                      mirror.Kind
	hosts, exportTo, gateways protowire.Number
}

var (
	entryHosts   = &hostKind{kind: serviceEntry, hosts: 1, exportTo: 7}
	serviceHosts = &hostKind{kind: virtualService, hosts: 1, exportTo: 6, gateways: 2}
)

func hostKindOf(kind mirror.Kind) *hostKind {
	switch kind {
	case serviceEntry:
		return entryHosts
	case virtualService:
		return serviceHosts
	}
	return nil
}

// hostFields are what the body of a ServiceEntry or VirtualService says of the hosts that it
// claims.
type hostFields struct{ hosts, exportTo, gateways []string }

// parse reads the fields without decoding the body. What is not protobuf ends it: a
// mirror.Resource holds no such body.
func (k *hostKind) parse(body []byte) (f hostFields) {
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return f
		}
		body = body[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, body); n < 0 {
				return f
			}
			body = body[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(body)
		if n < 0 {
			return f
		}
		body = body[n:]
		switch num {
		case k.hosts:
			f.hosts = append(f.hosts, string(v))
		case k.exportTo:
			f.exportTo = append(f.exportTo, string(v))
		case k.gateways:
			f.gateways = append(f.gateways, string(v))
		}
	}
	return f
}

// claimantOf returns what a resource claims, nil when that is nothing: a VirtualService
// that has no hosts, because it is a delegate, or is for other gateways than "mesh", and a
// resource that no namespace sees.
func claimantOf(kind *hostKind, r *mirror.Resource) *claimant {
	f := kind.parse(r.Body().GetValue())
	if len(f.gateways) > 0 && !slices.Contains(f.gateways, meshGateway) {
		return nil
	}
	key := r.Key()
	c := &claimant{
		kind: kind, namespace: key.Namespace, name: key.Name, source: r.Source(),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: visibilityOf(f.exportTo, key.Namespace),
	}
	if len(f.hosts) == 0 || !c.visibility.public && len(c.visibility.namespaces) == 0 {
		return nil
	}
	for i, h := range f.hosts {
		f.hosts[i] = c.hostName(strings.ToLower(h))
	}
	slices.Sort(f.hosts)
	c.hosts = slices.Compact(f.hosts)
	if kind == serviceHosts {
		c.created = createTime(r)
	}
	return c
}

// hostName completes the short name of a VirtualService's host. A ServiceEntry's host is
// used by istiod as it stands.
func (c *claimant) hostName(h string) string {
	if c.kind != serviceHosts || h == "" || strings.HasPrefix(h, "*") || strings.Contains(h, ".") {
		return h
	}
	return h + "." + c.namespace + clusterDomain
}

// visibility is which namespaces see a resource. The zero visibility is none of them.
type visibility struct {
	public     bool
	namespaces []string // sorted, each once; empty when public
}

// visibilityOf returns what exportTo says for a resource in a namespace: nothing and "*"
// are everyone, "~" is nobody, "." the namespace itself.
func visibilityOf(exportTo []string, namespace string) visibility {
	if len(exportTo) == 0 || slices.Contains(exportTo, everyone) {
		return visibility{public: true}
	}
	if slices.Contains(exportTo, "~") {
		return visibility{}
	}
	v := visibility{namespaces: make([]string, 0, len(exportTo))}
	for _, to := range exportTo {
		if to == "." {
			to = namespace
		}
		v.namespaces = append(v.namespaces, to)
	}
	slices.Sort(v.namespaces)
	v.namespaces = slices.Compact(v.namespaces)
	return v
}

// extra is how many namespaces more than one see it: what it costs beyond the hosts.
func (v visibility) extra() int { return max(len(v.namespaces)-1, 0) }

func (v visibility) equal(other visibility) bool {
	return v.public == other.public && slices.Equal(v.namespaces, other.namespaces)
}

// group returns the visibility of a resource in a namespace in a form in which equal ones
// are equal. What is not public stays apart by namespace too.
func (v visibility) group(namespace string) string {
	if v.public {
		return everyone
	}
	return namespace + "/" + strings.Join(v.namespaces, ",")
}

// String returns the visibility for people, not all of many namespaces.
func (v visibility) String() string {
	switch {
	case v.public:
		return everyone
	case len(v.namespaces) == 0:
		return "nobody"
	case len(v.namespaces) > maxScopes:
		return strings.Join(v.namespaces[:maxScopes], ",") + fmt.Sprintf(" and %d more", len(v.namespaces)-maxScopes)
	}
	return strings.Join(v.namespaces, ",")
}

package main

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// The rules of the contender relay-rules. What becomes of a resource under them is worked
// out here once more, from what the resource is made of: nothing of the relay is asked.
const (
	importRules = `    import:
      kinds: [serviceentries, destinationrules, virtualservices]
      namespaces: {include: ["team-*"], exclude: [` + privateNamespace + `]}
      selector: "tier != internal"
      expression: "kind != 'ServiceEntry' || (spec.hosts.exists(h, h.endsWith('.example.com')) && spec.ports.all(p, p.number < 8000))"
`
	rewriteRules = `    rewrite:
      namespacePrefix: fed-
      hosts: {example.com: mesh.example}
`
	mergeRules = "merge: [{kinds: [ServiceEntry], policy: unionByHost}]\n"
)

// naming is what namespaces and domains are called.
type naming struct{ namespacePrefix, domain string }

var (
	atSources = naming{"", "example.com"}
	underRule = naming{"fed-", "mesh.example"}
)

const privateNamespace = "team-private"

// leftOut is the rule of the import that leaves a resource out.
type leftOut int

const (
	byNone leftOut = iota
	byNamespace
	bySelector
	byExpression
)

// leftOutBy makes three resources of a hundred such that one rule each leaves them out.
func leftOutBy(index int) leftOut {
	switch index % 100 {
	case 97:
		return byNamespace
	case 98:
		return bySelector
	case 99:
		return byExpression
	}
	return byNone
}

func (n naming) namespace(index int) string {
	if leftOutBy(index) == byNamespace {
		return n.namespacePrefix + privateNamespace
	}
	return fmt.Sprintf("%steam-%02d", n.namespacePrefix, index%namespaces)
}

func (n naming) name(index int) string {
	return fmt.Sprintf("%s/service-%06d", n.namespace(index), index)
}

// entry is the body of a resource of a federation. It names namespaces in its hosts and in
// exportTo, so that a prefix has to be followed.
func (n naming) entry(index, seq int) *networking.ServiceEntry {
	domain := n.domain
	if leftOutBy(index) == byExpression {
		domain = "internal.test"
	}
	e := itemEntry(index, seq)
	e.Hosts = []string{
		fmt.Sprintf("service-%06d.team-%02d.%s", index, index%namespaces, domain),
		fmt.Sprintf("service-%06d.%s.svc.cluster.local", index, n.namespace(index)),
	}
	e.ExportTo = []string{".", n.namespacePrefix + "shared"}
	return e
}

func (n naming) metadata(index, seq int) *mcp.Metadata {
	m := itemMetadata(index, seq)
	m.Name = n.name(index)
	m.Labels["team"] = fmt.Sprintf("team-%02d", index%namespaces)
	m.Annotations["bench.example/owner"] = "nobody"
	if leftOutBy(index) == bySelector {
		m.Labels["tier"] = "internal"
	}
	return m
}

// copyEndpoints are the endpoints that the second copy of a resource has. One of them is the
// first copy's too, until that changes.
func copyEndpoints(index int) []*networking.WorkloadEntry {
	return []*networking.WorkloadEntry{
		{Address: fmt.Sprintf("10.201.%d.%d", index>>8&255, index&255), Locality: "region-2/zone-a"},
		{Address: "10.200.0.0"},
	}
}

// makeShared makes a resource of a federation, with a second copy of it if the next upstream
// has one, and what clients hold of it in the end.
func makeShared(index, seq int, copied, rules bool) (it item, err error) {
	it.seq = seq
	if it.element, it.hash, err = encode(atSources.metadata(index, seq), atSources.entry(index, seq)); err != nil {
		return it, err
	}
	if copied {
		metadata, entry := atSources.metadata(index, 0), atSources.entry(index, 0)
		metadata.Labels["copy"] = "second" // what is served has the first one's labels
		metadata.CreateTime.Seconds++
		entry.Endpoints = copyEndpoints(index)
		if it.copied, _, err = encode(metadata, entry); err != nil {
			return it, err
		}
	}
	if !rules {
		return it, nil
	}
	if leftOutBy(index) != byNone {
		it.hash = 0
		return it, nil
	}
	entry := underRule.entry(index, seq)
	if copied {
		for _, e := range copyEndpoints(index) {
			if !slices.ContainsFunc(entry.Endpoints, func(have *networking.WorkloadEntry) bool { return have.Address == e.Address }) {
				entry.Endpoints = append(entry.Endpoints, e)
			}
		}
	}
	_, it.hash, err = encode(underRule.metadata(index, seq), entry)
	return it, err
}

// canonical encodes a body as encode does: a rewritten body may have its fields in another order.
func canonical(body []byte) []byte {
	e := &networking.ServiceEntry{}
	if proto.Unmarshal(body, e) != nil {
		return body
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return body
	}
	return b
}

package services

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// Output is the ServiceEntry of a Service. Nobody may change Labels.
type Output struct {
	Key     mirror.Key
	Created time.Time
	Labels  map[string]string
	Body    *networking.ServiceEntry
	LeftOut string // why other clusters must not reach the Service; there is no Body then
}

// Gone reports whether the Service is gone. Only the Key is set then.
func (o *Output) Gone() bool { return o.Body == nil && o.LeftOut == "" }

// Digest returns a hash of the content of an output.
func (o *Output) Digest() xxh3.Uint128 {
	b := append([]byte(o.LeftOut), 0)
	b = strconv.AppendInt(b, o.Created.Unix(), 10)
	for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
		b = append(append(append(append(b, 0), k...), '='), o.Labels[k]...)
	}
	b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(b, 0, 0), o.Body) //nolint:errcheck // decoded JSON is UTF-8
	return xxh3.Hash128(b)
}

// Flush returns the outputs that changed since the last call, sorted by namespace and name, and the clusters whose
// endpoints may have changed, sorted. It returns nothing before all inputs have synced.
func (s *State) Flush() (changes []*Output, clusters []string) {
	if !s.ready() {
		return nil, nil
	}
	s.flushInputs()
	clusters = slices.Sorted(maps.Keys(s.clusters))
	clear(s.clusters)
	return s.flushOutputs(), clusters
}

// All returns all outputs, in the order of Flush. The next Flush returns the outputs that change after that. All returns
// nothing before all inputs have synced.
func (s *State) All() []*Output {
	if !s.ready() {
		return nil
	}
	clear(s.told)
	for namespace, sp := range s.spaces {
		for name := range sp.objects[Services] {
			s.changed[Name{namespace, name}] = struct{}{}
		}
	}
	return s.flushOutputs()
}

func (s *State) flushOutputs() (changes []*Output) {
	for n := range s.changed {
		out := s.output(n)
		before, had := s.told[n]
		if s.told[n] = out.Digest(); out.Gone() {
			delete(s.told, n)
		}
		if now, has := s.told[n]; has != had || now != before {
			changes = append(changes, out)
		}
	}
	clear(s.changed)
	slices.SortFunc(changes, func(a, b *Output) int {
		return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return changes
}

// output returns the output of a Service, which may be gone.
func (s *State) output(n Name) *Output {
	out := &Output{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: n.Namespace, Name: "synthetic-" + n.Name}}
	v := get[service](s, Services, n)
	if v == nil {
		return out
	}
	out.Created, out.Labels = v.created, v.labels
	if out.LeftOut = s.options.leftOut(n, v); out.LeftOut == "" {
		out.Body = proto.CloneOf(v.entry)
		out.Body.Hosts = []string{s.options.host(n)}
	}
	return out
}

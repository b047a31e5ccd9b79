// Package rewrite changes resources on the way in: namespaces, names, labels, annotations, hosts and
// endpoints. When a name changes, every field that refers to it changes too. A table lists these fields by
// message and field (fields.go). A body that no rule changes keeps its bytes.
//
// The package is pure. It must not know where resources come from, and whether they are imported.
package rewrite

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// Rules describe how to rewrite the resources of one source. The zero value changes nothing.
//
// The order of the steps is fixed:
//
//  1. the namespace, by Namespaces or else by NamespacePrefix;
//  2. the name, by NamePrefix;
//  3. labels and annotations: references in them as in step 5, then Remove, then Set;
//  4. exportTo, by ExportTo;
//  5. references in the body to hosts, namespaces and resources, by steps 1 and 2 and by Hosts;
//  6. endpoints, by Endpoints.
//
// No value is mapped twice: ExportTo, Set and Endpoints are final, and each reference is mapped once. A
// reference is mapped even if nobody relays the resource that it names. fields.go and fields_struct.go list
// the references.
//
// The rules map names, not meaning: a resource of the source's root namespace that is moved to another
// namespace no longer applies to the whole mesh. To exempt a namespace from NamespacePrefix, map it to itself.
//
// A MeshConfig is never rewritten: it describes the mesh of its source. GatewayClasses keep their names:
// a controller depends on the name, and istiod knows its own classes without any resource.
type Rules struct {
	// Namespaces maps a namespace of the source to one here.
	Namespaces map[string]string `yaml:"namespaces,omitempty"`
	// NamespacePrefix is put before every namespace that Namespaces does not map, except the empty one of
	// cluster-scoped resources.
	NamespacePrefix string `yaml:"namespacePrefix,omitempty"`
	// NamePrefix is put before the name of a resource.
	NamePrefix string `yaml:"namePrefix,omitempty"`
	// Labels and Annotations change the metadata.
	Labels      Edit `yaml:"labels,omitempty"`
	Annotations Edit `yaml:"annotations"`
	// ExportTo, when not nil, replaces exportTo of ServiceEntry, VirtualService and
	// DestinationRule.
	ExportTo []string `yaml:"exportTo,omitempty"`
	// ShortHosts is ShortHostsComplete to complete hosts without dots in VirtualServices and
	// DestinationRules: by the namespace at the source and Domain, as istiod does with resources that it
	// reads itself (PROTOCOL C23). Namespaces and Hosts then apply to the complete host.
	ShortHosts string `yaml:"shortHosts" default:"complete" oneof:"complete keep"`
	// Hosts maps a domain, and everything below it, to another. Of several that match, the longest counts.
	Hosts map[string]string `yaml:"hosts,omitempty"`
	// Endpoints overrides the endpoints of ServiceEntries, WorkloadEntries and the templates of
	// WorkloadGroups.
	Endpoints Endpoints `yaml:"endpoints,omitempty"`
	// Domain is the cluster domain of the source, "cluster.local" when empty. The hosts of
	// Kubernetes Services end in it.
	Domain string `yaml:"-" json:"-"`
}

// Values of Rules.ShortHosts.
const (
	ShortHostsComplete = "complete"
	ShortHostsKeep     = "keep"
)

// Edit changes a map of labels or annotations. Remove comes before Set.
type Edit struct {
	// Set adds keys or replaces their values.
	Set map[string]string `yaml:"set,omitempty"`
	// Remove lists keys or, with a "*" at the end, prefixes of keys.
	Remove []string `yaml:"remove"`
}

// Endpoints overrides fields of endpoints. Empty fields change nothing.
type Endpoints struct {
	Network  string `yaml:"network,omitempty"`
	Locality string `yaml:"locality,omitempty"`
	// Cluster is the value of the label topology.istio.io/cluster.
	Cluster string `yaml:"cluster,omitempty"`
}

// Rewriter is a compiled Rules. It is immutable and may be used from any goroutine. The Rules that it was made
// of must not change.
type Rewriter struct {
	names *nameRules
	// plans makes the plan of a kind for its first resource: most sources have few kinds, and there may be hundreds
	// of sources. A plan is nil when no rule can change a body of the kind.
	plans map[mirror.Kind]func() *bodyPlan
}

// bodyPlan describes how to rewrite the bodies of one kind.
type bodyPlan struct {
	fields    *messagePlan  // of protobuf kinds
	paths     []structField // of kinds whose body is a google.protobuf.Struct
	exportTo  bool
	endpoints bool
	// onlyShortHosts is set when only the completion of short hosts can change a body.
	onlyShortHosts bool
}

// New compiles rules. Its error has a *federation.RuleError for each wrong rule.
func New(rules Rules) (*Rewriter, error) {
	if err := rules.validate(); err != nil {
		return nil, err
	}
	kinds := mirror.Kinds()
	w := &Rewriter{names: newNameRules(rules), plans: make(map[mirror.Kind]func() *bodyPlan, len(kinds))}
	for _, info := range kinds {
		w.plans[info.Kind] = sync.OnceValue(func() *bodyPlan { return w.plan(info) })
	}
	return w, nil
}

// planOf returns the plan of a kind, nil when no rule can change a body of it.
func (w *Rewriter) planOf(kind mirror.Kind) *bodyPlan {
	if plan := w.plans[kind]; plan != nil {
		return plan()
	}
	return nil
}

func (w *Rewriter) plan(info *mirror.KindInfo) *bodyPlan {
	if info.Kind == mirror.MeshConfig {
		return nil
	}
	c := &planner{w.names, map[protoreflect.FullName]*messagePlan{}}
	p := &bodyPlan{}
	body := info.NewBody()
	if _, ok := body.(*structpb.Struct); ok {
		p.paths = slices.DeleteFunc(slices.Clone(structFields[info.Kind]), func(f structField) bool { return !c.active(f.role) })
	} else {
		p.fields = c.message(body.ProtoReflect().Descriptor())
		p.exportTo = w.names.ExportTo != nil && exportToOf(body) != nil
		_, endpoints := endpointsOf(body)
		p.endpoints = w.names.Endpoints != Endpoints{} && endpoints
	}
	if p.fields == nil && len(p.paths) == 0 && !p.exportTo && !p.endpoints {
		return nil
	}
	p.onlyShortHosts = p.fields != nil && w.names.effects == effShortHosts && !p.exportTo && !p.endpoints
	return p
}

// Key returns the rewritten key of a key at the source.
func (w *Rewriter) Key(k mirror.Key) mirror.Key {
	return newScope(w.names, k.Namespace).key(k)
}

// renamed reports whether resources of a kind get the prefix and suffix of names.
func renamed(kind mirror.Kind) bool { return kind != gatewayClass }

// Rewrite returns the rewritten resource, or r itself when the rules change nothing. It is a pure function. The
// result has the source, cluster, source version and creation time of r.
func (w *Rewriter) Rewrite(r *mirror.Resource) (*mirror.Resource, error) {
	if r.Kind() == mirror.MeshConfig {
		return r, nil
	}
	from := r.Key()
	out, err := w.rewrite(r, from)
	if err != nil {
		return nil, fmt.Errorf("rewrite %s: %w", from, err)
	}
	return out, nil
}

func (w *Rewriter) rewrite(r *mirror.Resource, from mirror.Key) (*mirror.Resource, error) {
	plan := w.planOf(from.Kind)
	if plan != nil && plan.onlyShortHosts && !plan.fields.mayHaveShortHost(r.BodyValue()) {
		plan = nil
	}
	// No label or annotation holds a host, and no other key.
	hostsOnly := newScope(w.names, from.Namespace).hostSuffix(from) == "" && w.names.effects&(effNamespaces|effNames) == 0 && len(w.names.Labels.Set)+len(w.names.Labels.Remove) == 0 && w.names.Annotations.idle(r)
	if plan == nil && hostsOnly {
		return r, nil
	}
	s := newScope(w.names, from.Namespace)
	key := s.key(from)
	var body *anypb.Any
	if plan != nil && s.err == nil {
		var err error
		if body, err = w.body(s, plan, r); err != nil {
			return nil, err
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	if body == nil && hostsOnly {
		return r, nil
	}
	spec := r.Spec()
	var relabeled, reannotated bool
	spec.Labels, relabeled = w.names.Labels.apply(s, spec.Labels, referenceLabels)
	spec.Annotations, reannotated = w.names.Annotations.apply(s, spec.Annotations, referenceAnnotations)
	if s.err != nil {
		return nil, fmt.Errorf("metadata: %w", s.err)
	}
	if key == from && body == nil && !relabeled && !reannotated {
		return r, nil
	}
	spec.Key = key
	if body != nil {
		spec.Body = body
	}
	return mirror.New(spec)
}

// body returns the rewritten body, nil when the rules do not change it.
func (w *Rewriter) body(s *scope, plan *bodyPlan, r *mirror.Resource) (*anypb.Any, error) {
	body, kind := r.Body(), r.Kind()
	out := body.GetValue()
	if plan.fields != nil {
		s.completes = w.names.effects&effShortHosts != 0 && federation.CompletesHosts(r)
		var err error
		if out, err = plan.fields.applyToBody(s, kind, out); err != nil {
			return nil, fmt.Errorf("body does not decode: %w", err)
		}
	}
	if len(plan.paths) > 0 || plan.exportTo || plan.endpoints {
		m, err := decode(kind, out)
		if err != nil {
			return nil, fmt.Errorf("body does not decode: %w", err)
		}
		changed := plan.exportTo && replaceExportTo(m, w.names.ExportTo)
		for _, f := range plan.paths {
			changed = f.role.walk(s, f.path, m.(*structpb.Struct).GetFields()) || changed
			s.blame(f.path)
		}
		if plan.endpoints {
			changed = w.names.Endpoints.apply(m) || changed
		}
		if changed {
			if out, err = encode(m); err != nil {
				return nil, fmt.Errorf("encode body: %w", err)
			}
		}
	}
	if same(out, body.GetValue()) {
		return nil, nil
	}
	return &anypb.Any{TypeUrl: body.GetTypeUrl(), Value: out}, nil
}

// applyToBody is apply for an encoded body. When a message comes in parts, applyToBody joins them first.
func (p *messagePlan) applyToBody(s *scope, kind mirror.Kind, value []byte) ([]byte, error) {
	s.body = value
	out, err := p.apply(s, value)
	if !errors.Is(err, errIrregular) {
		return out, err
	}
	m, err := decode(kind, value)
	if err != nil {
		return nil, err
	}
	if s.body, err = encode(m); err != nil {
		return nil, err
	}
	if out, err = p.apply(s, s.body); same(out, s.body) {
		return value, err
	}
	return out, err
}

func decode(kind mirror.Kind, value []byte) (proto.Message, error) {
	info, _ := mirror.LookupKind(kind)
	m := info.NewBody()
	return m, proto.Unmarshal(value, m)
}

func encode(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

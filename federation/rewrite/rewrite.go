package rewrite

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// Rules tell how to rewrite the resources of one source. The zero value changes nothing.
//
// The order of the steps is fixed:
//
//  1. the namespace, by Namespaces or else by NamespacePrefix;
//  2. the name, by NamePrefix and NameSuffix;
//  3. labels and annotations: references in them follow, then Remove, then Set;
//  4. exportTo, by ExportTo;
//  5. references in the body to hosts, namespaces and resources follow steps 1, 2 and Hosts;
//  6. endpoints, by Endpoints.
//
// No value is mapped twice: ExportTo, Set and Endpoints are final, and each reference is
// mapped once. A reference follows even if nothing relays the resource that it names.
// fields.go and fields_struct.go list the references.
//
// The rules map names, not meaning: a resource of the source's root namespace that lands in
// another namespace no longer applies to the whole mesh. To exempt a namespace from
// NamespacePrefix, map it to itself.
//
// A MeshConfig is never rewritten: it describes the mesh of its source. GatewayClasses keep
// their names: those are agreed upon with a controller, and istiod knows its own without any
// resource.
type Rules struct {
	// Namespaces maps a namespace of the source to one here.
	Namespaces map[string]string
	// NamespacePrefix is put before every namespace that Namespaces does not map, but not
	// before the empty one of cluster-scoped resources.
	NamespacePrefix string
	// NamePrefix and NameSuffix are put around the name of a resource.
	NamePrefix, NameSuffix string
	// Labels and Annotations change the metadata.
	Labels, Annotations Edit
	// ExportTo, when not nil, replaces exportTo of ServiceEntry, VirtualService and
	// DestinationRule.
	ExportTo []string
	// Hosts maps domains. The longest From that fits counts.
	Hosts []HostMapping
	// CompleteShortHosts completes hosts without dots in VirtualServices and DestinationRules
	// by the namespace at the source and Domain, as istiod does with resources that it reads
	// itself. Namespaces and Hosts then see the complete host.
	CompleteShortHosts bool
	// Endpoints overrides the endpoints of ServiceEntries, WorkloadEntries and the templates of
	// WorkloadGroups.
	Endpoints Endpoints
	// Domain is the cluster domain of the source, "cluster.local" when empty. The hosts of
	// Kubernetes Services end in it.
	Domain string
}

// Edit changes a map of labels or annotations. Remove comes before Set.
type Edit struct {
	// Set adds keys or replaces their values.
	Set map[string]string `yaml:"set,omitempty"`
	// Remove lists keys or, with a "*" at the end, prefixes of keys.
	Remove []string `yaml:"remove"`
}

// HostMapping moves a domain and everything below it.
type HostMapping struct {
	From string `yaml:"from"`
	To   string `yaml:"to"`
}

// Endpoints overrides fields of endpoints. Empty fields change nothing.
type Endpoints struct {
	Network  string `yaml:"network,omitempty"`
	Locality string `yaml:"locality,omitempty"`
	// Cluster is the value of the label topology.istio.io/cluster.
	Cluster string `yaml:"cluster,omitempty"`
}

// Rewriter is a compiled Rules. It is immutable and may be used from any goroutine.
type Rewriter struct {
	names               *nameRules
	labels, annotations *editRules
	exportTo            []string
	endpoints           Endpoints
	plans               map[mirror.Kind]*bodyPlan
	identity            bool
}

// bodyPlan tells how to rewrite the bodies of one kind.
type bodyPlan struct {
	fields    *messagePlan // of protobuf kinds
	paths     []pathPlan   // of kinds whose body is a google.protobuf.Struct
	exportTo  bool
	endpoints bool
	// onlyShortHosts tells that only the completion of short hosts can change a body.
	onlyShortHosts bool
}

// New compiles rules. Its error has a *federation.RuleError for each wrong rule.
func New(rules Rules) (*Rewriter, error) {
	if err := rules.validate(); err != nil {
		return nil, err
	}
	w := &Rewriter{
		names:       newNameRules(rules),
		labels:      newEditRules(rules.Labels),
		annotations: newEditRules(rules.Annotations),
		exportTo:    slices.Clone(rules.ExportTo),
		endpoints:   rules.Endpoints,
		plans:       map[mirror.Kind]*bodyPlan{},
	}
	if rules.ExportTo != nil && w.exportTo == nil {
		w.exportTo = []string{}
	}
	c := &planner{names: w.names, followed: followedFields, overridden: w.exportTo != nil}
	for _, info := range mirror.Kinds() {
		if p := w.plan(c, info); p != nil {
			w.plans[info.Kind] = p
		}
	}
	w.identity = w.names.effects == 0 && w.labels == nil && w.annotations == nil && len(w.plans) == 0
	return w, nil
}

// plan returns nil when no rule can change a body of the kind.
func (w *Rewriter) plan(c *planner, info *mirror.KindInfo) *bodyPlan {
	if info.Kind.Bare() {
		return nil
	}
	p := &bodyPlan{}
	body := info.NewBody()
	if _, ok := body.(*structpb.Struct); ok {
		p.paths = c.paths(structFields[info.Kind])
	} else {
		p.fields = c.message(body.ProtoReflect().Descriptor())
		p.exportTo = w.exportTo != nil && exportToOf(body) != nil
		_, endpoints := endpointsOf(body)
		p.endpoints = w.endpoints != Endpoints{} && endpoints
	}
	if p.fields == nil && p.paths == nil && !p.exportTo && !p.endpoints {
		return nil
	}
	p.onlyShortHosts = p.fields != nil && w.names.effects == effShortHosts && !p.exportTo && !p.endpoints
	return p
}

// Key returns the key here of a key at the source.
func (w *Rewriter) Key(k mirror.Key) mirror.Key {
	if k.Kind.Bare() {
		return k
	}
	k.Namespace = w.names.namespace(k.Namespace)
	if renamed(k.Kind) {
		k.Name = w.names.name(k.Name)
	}
	return k
}

// renamed reports whether resources of a kind get the prefix and suffix of names.
func renamed(kind mirror.Kind) bool { return kind != gatewayClass }

// Rewrite returns the rewritten resource, and r itself when the rules change nothing. It is a
// pure function. It keeps source, cluster, the source's version and the creation time.
func (w *Rewriter) Rewrite(r *mirror.Resource) (*mirror.Resource, error) {
	kind := r.Kind()
	if w.identity || kind.Bare() {
		return r, nil
	}
	from := r.Key()
	key := w.Key(from)
	if err := w.checkKey(from, key); err != nil {
		return nil, fmt.Errorf("rewrite %s: %w", from, err)
	}

	body, err := w.body(r, from)
	if err != nil {
		return nil, fmt.Errorf("rewrite %s: %w", from, err)
	}
	if key == from && body == nil && w.labels == nil && w.annotations.idle(r) && w.names.effects&(effNamespaces|effNames) == 0 {
		return r, nil // no label can hold a mapped name
	}

	spec := r.Spec()
	s := newScope(w.names, from.Namespace)
	var relabeled, reannotated bool
	spec.Labels, relabeled = w.labels.apply(s, spec.Labels, referenceLabels)
	spec.Annotations, reannotated = w.annotations.apply(s, spec.Annotations, referenceAnnotations)
	if s.err != nil {
		return nil, fmt.Errorf("rewrite %s: metadata: %w", from, s.err)
	}
	if key == from && body == nil && !relabeled && !reannotated {
		return r, nil
	}
	spec.Key = key
	if body != nil {
		spec.Body = body
	}
	out, err := mirror.New(spec)
	if err != nil {
		return nil, fmt.Errorf("rewrite %s: %w", from, err)
	}
	return out, nil
}

// checkKey refuses names that Kubernetes would refuse, but not the names of the source itself.
func (w *Rewriter) checkKey(from, to mirror.Key) error {
	if from.Namespace != to.Namespace && len(to.Namespace) > maxLabel {
		return fmt.Errorf("metadata.namespace: %q is longer than %d characters", to.Namespace, maxLabel)
	}
	if from.Name != to.Name && len(to.Name) > maxDomain {
		return fmt.Errorf("metadata.name: %q is longer than %d characters", to.Name, maxDomain)
	}
	return nil
}

// body returns the rewritten body, nil when it stays as it is.
func (w *Rewriter) body(r *mirror.Resource, key mirror.Key) (*anypb.Any, error) {
	plan := w.plans[key.Kind]
	if plan == nil || plan.onlyShortHosts && !plan.fields.mayHaveShortHost(r.BodyValue()) {
		return nil, nil
	}
	s := newScope(w.names, key.Namespace)
	s.completes = plan.fields != nil && w.completesIn(r, key.Kind)
	body := r.Body()
	value, err := w.value(s, plan, key, body.GetValue())
	if err != nil {
		return nil, err
	}
	if same(value, body.GetValue()) {
		return nil, nil
	}
	return &anypb.Any{TypeUrl: body.GetTypeUrl(), Value: value}, nil
}

// value rewrites an encoded body, and returns value itself when it stays as it is.
func (w *Rewriter) value(s *scope, plan *bodyPlan, key mirror.Key, value []byte) ([]byte, error) {
	out := value
	s.body = value
	var err error
	if plan.fields != nil {
		out, err = plan.fields.apply(s, value)
		if errors.Is(err, errIrregular) {
			out, err = w.irregular(s, plan, key, value)
		}
		if err != nil {
			return nil, fmt.Errorf("body does not decode: %w", err)
		}
	}
	if plan.paths != nil || plan.exportTo || plan.endpoints {
		m, err := decode(key.Kind, out)
		if err != nil {
			return nil, err
		}
		changed := false
		if plan.exportTo {
			changed = replaceExportTo(m, w.exportTo)
		}
		if plan.paths != nil {
			changed = applyPaths(s, plan.paths, m.(*structpb.Struct)) || changed
		}
		if plan.endpoints {
			changed = w.endpoints.apply(m) || changed
		}
		if changed {
			if out, err = encode(m); err != nil {
				return nil, err
			}
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	return out, nil
}

func decode(kind mirror.Kind, value []byte) (proto.Message, error) {
	info, _ := mirror.LookupKind(kind)
	m := info.NewBody()
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, fmt.Errorf("body does not decode: %w", err)
	}
	return m, nil
}

func encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode body: %w", err)
	}
	return b, nil
}

// irregular rewrites a body that must first be encoded in the usual form.
func (w *Rewriter) irregular(s *scope, plan *bodyPlan, key mirror.Key, value []byte) ([]byte, error) {
	m, err := decode(key.Kind, value)
	if err != nil {
		return nil, err
	}
	regular, err := encode(m)
	if err != nil {
		return nil, err
	}
	s.body = regular
	out, err := plan.fields.apply(s, regular)
	if err != nil || same(out, regular) {
		return value, err
	}
	return out, nil
}

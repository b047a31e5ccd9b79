package admin

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"meshrelay/downstream"
	"meshrelay/federation"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/filter"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/sink"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Outcome is the result for a resource, or for one upstream's copy of it.
type Outcome string

// The outcomes.
const (
	Served   Outcome = "served"
	United   Outcome = "united"   // a part of the served resource
	Shadowed Outcome = "shadowed" // another copy is served
	Rejected Outcome = "rejected" // no copy is served
	LeftOut  Outcome = "left out" // by an import rule
	Refused  Outcome = "refused"  // invalid, without a last good content
	Renamed  Outcome = "renamed"  // served under another key
	Missing  Outcome = "missing"  // no upstream has it
	Frozen   Outcome = "frozen"   // the upstream is frozen without it
	Expired  Outcome = "expired"  // the upstream is out of contact for too long
	Changing Outcome = "changing" // being added or removed right now
)

// Explanation explains why a resource is served as it is.
type Explanation struct {
	mirror.Key
	Outcome Outcome `json:"outcome"`
	// Source is the upstream whose copy is served, Reason why it wins.
	Source string `json:"source,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Version is the version that clients see, Since the time of the last change.
	Version string    `json:"version,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Into is the resource into which this one is merged. Group are all resources merged into it.
	Into  mirror.Key   `json:"into,omitzero"`
	Group []mirror.Key `json:"group,omitempty"`
	// Sources are the copies of the upstreams, in order of priority.
	Sources []SourceCopy `json:"sources"`
	// HostConflicts are its hosts that other resources also claim.
	HostConflicts []conflicts.HostConflict `json:"hostConflicts,omitempty"`
	// Clients are those that subscribe to its kind.
	Clients []downstream.Receipt `json:"clients"`
	// Distribution counts the clients that have the present content.
	Distribution downstream.Distribution `json:"distribution"`
	// Sinks tell what each sink has written of it.
	Sinks []sink.Applied `json:"sinks,omitempty"`
	// Also are resources of the same namespace and name, of other kinds that the requested kind may mean.
	Also []mirror.Key `json:"also,omitempty"`
	// Elsewhere are up to maxElsewhere served resources of that name in other namespaces. It is set when the
	// outcome is Missing.
	Elsewhere []mirror.Key `json:"elsewhere,omitempty"`
	// Served is the served resource.
	Served *kube.Object `json:"served,omitempty"`
}

// SourceCopy is the copy of one upstream, and its outcome.
type SourceCopy struct {
	Upstream string `json:"upstream"`
	// Original is its name in the upstream, if different.
	Original mirror.Key `json:"original,omitzero"`
	Outcome  Outcome    `json:"outcome"`
	// Reason is the import rule that leaves it out, Detail describes it.
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
	// ServedAs is the key under which a renamed copy is served.
	ServedAs mirror.Key `json:"servedAs,omitzero"`
	// Frozen is the freeze of the upstream that decides about this copy. Pending is set when the upstream has
	// newer content, which waits for the end of the freeze.
	Frozen  *intake.Frozen `json:"frozen,omitempty"`
	Pending bool           `json:"pending,omitempty"`
	// Unconfirmed is set when the relay keeps the copy, but the upstream has not sent it again.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// StaleSince is when the upstream of this copy was last in contact. With StaleLater, it was in contact
	// later, too, at an unknown time.
	StaleSince time.Time `json:"staleSince,omitzero"`
	StaleLater bool      `json:"staleLater,omitempty"`
	// ContactLost is since when the upstream of a copy that it has is out of contact, zero in contact.
	ContactLost time.Time `json:"contactLost,omitzero"`
	// Trouble has problems that relays on its way tell of their upstreams, one line each.
	Trouble []string `json:"trouble,omitempty"`
	// Refused is the mistake in the newest content.
	Refused string `json:"refused,omitempty"`
	// Changes names what rewrite rules have changed beside the name.
	Changes       []string  `json:"changes,omitempty"`
	Version       string    `json:"version,omitempty"`
	SourceVersion string    `json:"sourceVersion,omitempty"`
	Since         time.Time `json:"since,omitzero"`
	// From is the resource as the upstream has it, if the relay keeps it.
	From *kube.Object `json:"from,omitempty"`
}

// Explain explains the resource that the parameters kind, namespace and name of a query name. StatusOf returns 400
// for an error in the query.
func (d *Debug) Explain(q url.Values) (*Explanation, error) {
	keys, err := keysFor(q)
	if err != nil {
		return nil, err
	}
	var best *Explanation
	for _, key := range keys {
		e, err := d.explainKey(key)
		switch {
		case err != nil:
			return nil, err
		case best == nil || best.Outcome == Missing && e.Outcome != Missing:
			best = e
		case e.Outcome != Missing:
			best.Also = append(best.Also, e.Key)
		}
	}
	if best.Outcome == Missing {
		best.Elsewhere = d.elsewhere(keys)
	}
	return best, nil
}

// maxElsewhere is the most resources of the same name that are listed.
const maxElsewhere = 10

// elsewhere returns served resources of the kinds and the name of keys, in any namespace.
func (d *Debug) elsewhere(keys []mirror.Key) (found []mirror.Key) {
	for _, key := range keys {
		for _, r := range d.views.Resources.List(key.Kind, "") {
			if r.Key().Name == key.Name && len(found) < maxElsewhere {
				found = append(found, r.Key())
			}
		}
	}
	return found
}

func (d *Debug) explainKey(key mirror.Key) (*Explanation, error) {
	s := d.views.Resources.Resolve(key)
	e := &Explanation{Key: key, Outcome: Missing, Reason: strings.Trim(s.Decision.Reason+"; "+s.Bare, "; "), Group: s.Group, Sources: []SourceCopy{}}
	traces := d.views.Trace(key)
	sources := d.views.Upstreams()
	place := func(c SourceCopy) int { // a removed upstream comes last
		i := slices.IndexFunc(sources, func(u upstreams.Status) bool { return u.Name == c.Upstream })
		if i < 0 {
			return len(sources)
		}
		return i
	}
	for _, t := range traces {
		c, err := copyOf(t, key, s)
		if err != nil {
			return nil, err
		}
		if i := place(c); i < len(sources) {
			c.explainBy(sources[i], key.Kind, differs(t, s))
			c.Trouble, c.ContactLost = troubleOf(sources[i], t.Resource), sources[i].ContactLost
		}
		e.Sources = append(e.Sources, c)
	}
	for i, p := range s.Copies {
		confirms := func(t records.Trace) bool {
			return t.Upstream == p.Source && t.Key == key && t.Resource != nil && t.Reason == ""
		}
		if slices.ContainsFunc(traces, confirms) {
			continue
		}
		c := SourceCopy{Upstream: p.Source, Outcome: outcomeOf(i, s.Decision), Version: p.Resource.Version(), Unconfirmed: true}
		if at := place(c); at < len(sources) {
			c.Frozen, c.StaleSince, c.StaleLater = sources[at].Frozen, sources[at].StaleSince, sources[at].StaleLater
			c.Trouble, c.ContactLost = troubleOf(sources[at], p.Resource), sources[at].ContactLost
		}
		e.Sources = append(e.Sources, c)
	}
	slices.SortStableFunc(e.Sources, func(a, b SourceCopy) int { return cmp.Compare(place(a), place(b)) })
	switch {
	case s.Served != nil:
		e.Outcome, e.Source, e.Version = Served, s.Served.Source(), s.Served.Version()
		for _, t := range traces {
			if t.Resource != nil && t.Since.After(e.Since) && (t.Resource == s.Served || len(s.Decision.United) > 0) {
				e.Since = t.Since
			}
		}
		o, err := kube.New(s.Served, "", e.Version)
		if err != nil {
			return nil, err
		}
		e.Served = o
	case s.MergedInto != mirror.Key{}:
		e.Outcome, e.Into = United, s.MergedInto
	case len(s.Copies) > 0:
		e.Outcome = Rejected
	case len(traces) > 0:
		e.Outcome = e.Sources[0].Outcome
	}
	for _, c := range d.views.HostConflicts() {
		if c.Kind == key.Kind && slices.ContainsFunc(c.Claims, func(claim conflicts.Claim) bool {
			return claim.Namespace == key.Namespace && claim.Name == key.Name
		}) {
			c.Apart = d.Apart(c)
			e.HostConflicts = append(e.HostConflicts, c)
		}
	}
	e.Clients, e.Distribution = notNil(d.clients.Receipts(key)), d.clients.Distribution(key)
	e.Sinks = d.views.Applied(key)
	return e, nil
}

// copyOf returns one upstream's copy and its outcome.
func copyOf(t records.Trace, key mirror.Key, s mirror.Resolution) (SourceCopy, error) {
	c := SourceCopy{Upstream: t.Upstream, Reason: t.Reason, Detail: t.Detail, Refused: t.Refused, Since: t.Since}
	if t.Original != key {
		c.Original = t.Original
	}
	if t.From != nil {
		o, err := kube.New(t.From, "", t.From.SourceVersion())
		if err != nil {
			return c, err
		}
		delete(o.Metadata.Annotations, mirror.ProvenanceAnnotation) // the relay adds it
		c.From, c.SourceVersion = o, t.From.SourceVersion()
	}
	i := slices.IndexFunc(s.Copies, func(p mirror.Copy) bool { return p.Source == t.Upstream })
	switch {
	case t.Reason != "":
		c.Outcome = LeftOut
	case t.Resource == nil:
		c.Outcome = Refused
	case i < 0 && t.Key == key:
		c.Outcome = Changing
	case t.Key != key:
		c.Outcome, c.ServedAs = Renamed, t.Key
	default:
		c.Outcome = outcomeOf(i, s.Decision)
	}
	if t.Resource == nil {
		return c, nil
	}
	c.Version = t.Resource.Version()
	changes, err := changesOf(t.From, t.Resource)
	c.Changes = changes
	return c, err
}

// outcomeOf returns the outcome of copy i by the decision v.
func outcomeOf(i int, v mirror.Decision) Outcome {
	switch {
	case i == v.Winner:
		return Served
	case slices.Contains(v.United, i):
		return United
	case v.Winner < 0:
		return Rejected
	}
	return Shadowed
}

// explainBy sets the outcome and the times of a copy from the state of its upstream, where that state
// explains them. pending means that the upstream has another content than the served one.
func (c *SourceCopy) explainBy(u upstreams.Status, kind mirror.Kind, pending bool) {
	switch {
	case u.Double != "":
		c.Outcome, c.Reason, c.Detail = LeftOut, "double", u.Double
	case c.Outcome == Changing && u.Expired[kind.String()] > 0:
		c.Outcome, c.StaleSince, c.StaleLater = Expired, u.StaleSince, u.StaleLater
	case c.Outcome == Changing && u.Frozen != nil:
		c.Outcome, c.Frozen = Frozen, u.Frozen
	case u.Stale && outOfContact(u) && c.Detail == "" && slices.Contains([]Outcome{Served, United, Shadowed, Rejected}, c.Outcome):
		c.StaleSince, c.StaleLater = u.StaleSince, u.StaleLater
	case u.Frozen != nil && pending:
		c.Frozen, c.Pending = u.Frozen, true
	case u.Endpoints != nil && kind == federation.ServiceEntry && c.Detail == "":
		c.Detail = u.Endpoints.None
	}
}

// troubleOf returns what relays on the way of a resource, which may be nil, tell of their upstreams.
func troubleOf(u upstreams.Status, r *mirror.Resource) []string {
	if r == nil || len(u.Told.Problems) == 0 {
		return nil
	}
	from := r.Provenance()
	return u.Told.Concerning(from.Source, from.Path).Lines(u.Name)
}

// differs reports whether the upstream has another content of a key than its served copy.
func differs(t records.Trace, s mirror.Resolution) bool {
	i := slices.IndexFunc(s.Copies, func(p mirror.Copy) bool { return p.Source == t.Upstream })
	return i >= 0 && t.Resource != nil && t.Resource.Key() == s.Copies[i].Resource.Key() &&
		!s.Copies[i].Resource.Equal(t.Resource)
}

// outOfContact reports whether an upstream is neither connected nor about to sync.
func outOfContact(u upstreams.Status) bool {
	return u.State != upstreams.StateSynced && u.State != upstreams.StateSyncing
}

// changesOf names the labels, annotations and fields that differ between two forms of a resource, without provenance.
func changesOf(from, to *mirror.Resource) (names []string, err error) {
	if from == nil || from == to {
		return nil, nil
	}
	was, err := fieldsOf(from)
	if err != nil {
		return nil, err
	}
	is, err := fieldsOf(to)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		before, had := was[name]
		if after, has := is[name]; before != after || had != has {
			names = append(names, name)
		}
	}
	return names, nil
}

// fieldsOf returns the labels, annotations and fields of a resource by name.
func fieldsOf(r *mirror.Resource) (map[string]string, error) {
	o, err := kube.New(r, "", "")
	if err != nil {
		return nil, err
	}
	delete(o.Metadata.Annotations, mirror.ProvenanceAnnotation)
	var spec map[string]json.RawMessage
	fields := map[string]string{}
	err = json.Unmarshal(o.Spec, &spec)
	for name, value := range spec {
		fields["spec."+name] = string(value)
	}
	for what, of := range map[string]map[string]string{"label ": o.Metadata.Labels, "annotation ": o.Metadata.Annotations} {
		for name, value := range of {
			fields[what+name] = value
		}
	}
	return fields, err
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

// kindsOf returns the kinds of a query; nil means all.
func kindsOf(q url.Values) ([]mirror.Kind, error) {
	if q.Get("kind") == "" {
		return nil, nil
	}
	kinds, err := mirror.ParseKinds(q.Get("kind"))
	if err != nil {
		return nil, badRequestf("%v", err)
	}
	return kinds, nil
}

// leftOut writes the resources that import rules leave out.
func (d *Debug) leftOut(w io.Writer, q url.Values) error {
	kinds, err := kindsOf(q)
	if err != nil {
		return err
	}
	out := &arrayWriter{w: w}
	for _, l := range d.views.LeftOut() {
		wanted := kinds == nil || slices.ContainsFunc(kinds, func(k mirror.Kind) bool { return k.String() == l.Kind })
		if from := q.Get("upstream"); wanted && (from == "" || l.Upstream == from) {
			out.add(l)
		}
	}
	return out.close()
}

// conflicts returns the keys that several upstreams have, the hosts that several keys claim, and refused claims.
func (d *Debug) conflicts(q url.Values) (all Conflicts, err error) {
	kinds, err := kindsOf(q)
	if err != nil {
		return all, err
	}
	all = Conflicts{Keys: notNil(d.views.Contests(kinds...)), Hosts: notNil(d.views.HostConflicts()), Hybrids: d.views.Hybrids()}
	if kinds != nil {
		all.Hosts = notNil(slices.DeleteFunc(all.Hosts, func(c conflicts.HostConflict) bool { return !slices.Contains(kinds, c.Kind) }))
		all.Hybrids = slices.DeleteFunc(all.Hybrids, func(h conflicts.Hybrid) bool {
			return !slices.ContainsFunc(h.Parts, func(p conflicts.Part) bool { return slices.Contains(kinds, p.Kind) })
		})
	}
	for _, l := range d.views.LeftOut() {
		if l.Reason == string(filter.ReasonHosts) && (kinds == nil || slices.ContainsFunc(kinds, func(k mirror.Kind) bool { return k.String() == l.Kind })) {
			all.Refused = append(all.Refused, l)
		}
	}
	for i := range all.Hosts[:min(len(all.Hosts), maxApart)] {
		all.Hosts[i].Apart = d.Apart(all.Hosts[i])
	}
	return all, nil
}

// maxApart is the most host conflicts whose Apart is set, which decodes resources.
const maxApart = 1000

// Apart returns why the merge policy does not unite the claims of a host, or "" for a kind that it never unites.
func (d *Debug) Apart(c conflicts.HostConflict) string {
	keys := make([]mirror.Key, 0, len(c.Claims))
	for _, claim := range c.Claims {
		keys = append(keys, mirror.Key{Kind: c.Kind, Namespace: claim.Namespace, Name: claim.Name})
	}
	return d.views.Resources.Apart(keys)
}

// Conflicts are the resources and hosts on which upstreams conflict.
type Conflicts struct {
	// Keys are the keys that several upstreams have, and those that hostConflicts has not served.
	Keys []conflicts.KeyConflict `json:"keys"`
	// Hosts are the hosts that different keys claim in the same visibility.
	Hosts []conflicts.HostConflict `json:"hosts"`
	// Hybrids are the hosts whose entry, rules and routes come from different upstreams.
	Hybrids []conflicts.Hybrid `json:"hybrids,omitempty"`
	// Refused are the resources that import.hosts leaves out, because of a host that they claim.
	Refused []records.LeftOut `json:"refused,omitempty"`
}

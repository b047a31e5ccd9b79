package ui

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/mirror"
)

// resourceList lists the matching served resources after the cursor, a page at a time. It visits each resource once,
// and decodes none.
func (p *Pages) resourceList(r *request) (*Page, error) {
	kinds, total := p.data.Resources.Kinds(), p.served()
	names := make([]string, 0, len(kinds))
	for kind := range p.data.Resources.Counts() {
		names = append(names, kind.String())
	}
	slices.Sort(names)
	after, hasAfter := parseCursor(r.get("after"))
	match := matcher(r)
	found := finder{limit: maxRows + 1}
	for _, kind := range kinds {
		if k := r.get("kind"); k != "" && k != kind.String() {
			continue
		}
		for _, one := range p.data.Resources.All(kind) {
			if match(one) {
				found.see(one, hasAfter && mirror.CompareKeys(one.Key(), after) <= 0)
			}
		}
	}
	rows := found.first()
	t := &Table{Caption: "Resources", Head: []string{"Resource", "Kind", "Served from", "Also in", "Version"}, Empty: "No served resource matches."}
	for _, one := range rows[:min(len(rows), maxRows)] {
		key := one.Key()
		t.Rows = append(t.Rows, []Cell{
			linked(orDash(key.Namespace)+"/"+key.Name, resourceHref(key.Kind.String(), key.Namespace, key.Name)), cell(key.Kind.String()),
			linked(one.Source(), upstreamHref(one.Source())), p.alsoIn(one), cell(one.Version()[:min(len(one.Version()), 12)]),
		})
	}
	command, without := resourceCommand(r)
	t.Summary = fmt.Sprintf("%s of %s", grouped(fmt.Sprint(found.n)), view.Count(total, "resource"))
	if without != "" {
		t.Summary += "; the command lists them " + without
	}
	if len(rows) > maxRows {
		t.Next = r.with("after", cursorOf(rows[maxRows-1].Key()))
	}
	search := r.search("/resources",
		Field{Name: "kind", Label: "Kind", Value: r.get("kind"), Options: names[:min(len(names), maxRows)]},
		Field{Name: "namespace", Label: "Namespace", Value: r.get("namespace")},
		r.upstreamField(),
		Field{Name: "in", Label: "Search in", Value: r.get("in"), Options: []string{inContent}},
	)
	return &Page{
		Title: "Resources", Command: command, Topics: []string{topicResources},
		Lead:     say(view.OK, grouped(fmt.Sprint(total))+" resources are served"),
		Sections: []Section{{ID: "list", Search: search, Table: t}},
	}, nil
}

// resourceCommand returns the command that lists the same resources. without names the filters that the command does
// not have.
func resourceCommand(r *request) (command, without string) {
	kind := "all"
	if key, ok := keyOf(r.get("kind"), "", ""); ok {
		kind = key.Kind.PreferredTypeURL()
	}
	command = "relay get " + word(kind)
	if namespace := r.get("namespace"); namespace != "" {
		command += " -n " + word(namespace)
	} else {
		command += " -A"
	}
	switch q := r.get("q"); {
	case q != "" && r.get("in") == inContent:
		without = "with any content"
	case q != "":
		command += " --search " + word(q)
	}
	if r.get("upstream") != "" {
		without = strings.TrimPrefix(without+" and of all upstreams", " and ")
	}
	return command, without
}

// inContent is the option to search also the content of resources, with hosts and addresses.
const inContent = "names and content"

// matcher returns a function that reports whether a resource matches the parameters.
func matcher(r *request) func(*mirror.Resource) bool {
	q, namespace, upstream := r.get("q"), r.get("namespace"), r.get("upstream")
	content := []byte(nil)
	if r.get("in") == inContent {
		content = []byte(r.get("q"))
	}
	return func(one *mirror.Resource) bool {
		return (namespace == "" || one.Namespace() == namespace) && (upstream == "" || one.Source() == upstream) &&
			(q == "" || contains(one.FullName(), q) || len(content) > 0 && bytes.Contains(one.BodyValue(), content))
	}
}

// alsoIn names the other upstreams that have a resource.
func (p *Pages) alsoIn(one *mirror.Resource) Cell {
	var others []string
	for _, c := range p.data.Resources.Resolve(one.Key()).Copies {
		if c.Source != one.Source() {
			others = append(others, c.Source)
		}
	}
	if len(others) == 0 {
		return Cell{}
	}
	return leveled(view.None, strings.Join(others, ", "))
}

// finder keeps the first limit of many resources, by key.
type finder struct {
	limit int
	n     int // the number of calls of see
	kept  []*mirror.Resource
	// last is the limit-th key so far, or zero while there are fewer. Later keys are not kept.
	last mirror.Key
}

// see adds a resource. With before, it only counts the resource, which is on an earlier page.
func (f *finder) see(one *mirror.Resource, before bool) {
	f.n++
	if before || f.last != (mirror.Key{}) && mirror.CompareKeys(one.Key(), f.last) > 0 {
		return
	}
	if len(f.kept) >= 8*f.limit {
		f.kept = f.first()
		f.last = f.kept[f.limit-1].Key()
	}
	f.kept = append(f.kept, one)
}

// first returns the first limit resources.
func (f *finder) first() []*mirror.Resource {
	slices.SortFunc(f.kept, func(a, b *mirror.Resource) int { return mirror.CompareKeys(a.Key(), b.Key()) })
	return f.kept[:min(len(f.kept), f.limit)]
}

// cursorOf returns a key as "group/Kind/namespace/name", the cursor of the next page.
func cursorOf(key mirror.Key) string { return key.Kind.String() + "/" + key.Namespace + "/" + key.Name }

func parseCursor(words string) (mirror.Key, bool) {
	parts := strings.SplitN(words, "/", 4)
	if len(parts) < 4 {
		return mirror.Key{}, false
	}
	return mirror.Key{Kind: mirror.Kind{Group: parts[0], Kind: parts[1]}, Namespace: parts[2], Name: parts[3]}, true
}

// keyOf returns the key of "group/Kind", a namespace and a name.
func keyOf(kind, namespace, name string) (mirror.Key, bool) {
	group, short, ok := strings.Cut(kind, "/")
	return mirror.Key{Kind: mirror.Kind{Group: group, Kind: short}, Namespace: namespace, Name: name}, ok
}

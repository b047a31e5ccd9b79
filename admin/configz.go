package admin

import (
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// configz writes the merged resources as istiod's /debug/configz does: a JSON array of Kubernetes objects, without
// the MeshConfig (see mesh). It encodes and writes one object at a time, so that a large mesh is never in memory
// twice.
func (d *Debug) configz(w io.Writer, q url.Values) error {
	kinds, err := matchKinds(d.views.Resources.Kinds(), q.Get("kind"))
	if err != nil && (q.Get("name") == "" || !strings.Contains(q.Get("kind"), "/")) { // a kind of a single key is not checked
		return err
	}
	out := &arrayWriter{w: w}
	for _, kind := range kinds {
		for _, r := range d.named(kind, q.Get("namespace"), q.Get("name")) {
			o, err := kube.New(r, "", r.Version())
			if err != nil {
				return err
			}
			if out.add(o); out.err != nil {
				return out.err
			}
		}
	}
	return out.close()
}

// named returns the merged resources of a kind, in one namespace and with one name unless these are empty. For
// MeshConfig it returns none.
func (d *Debug) named(kind mirror.Kind, namespace, name string) []*mirror.Resource {
	switch {
	case kind == mirror.MeshConfig:
		return nil
	case name == "":
		return d.views.Resources.List(kind, namespace)
	}
	if r := d.views.Resources.Get(mirror.Key{Kind: kind, Namespace: namespace, Name: name}); r != nil {
		return []*mirror.Resource{r}
	}
	return nil
}

// ConfigVersion is the version of one merged resource.
type ConfigVersion struct {
	mirror.Key
	// Version is the resourceVersion of the object in /debug/configz.
	Version     string    `json:"version"`
	ContactLost time.Time `json:"contactLost,omitzero"`
}

// versions writes the version of each resource that configz writes.
func (d *Debug) versions(w io.Writer, _ url.Values) error {
	out, lost := &arrayWriter{w: w}, d.contactLost()
	for _, kind := range d.views.Resources.Kinds() {
		for _, r := range d.named(kind, "", "") {
			if out.add(ConfigVersion{r.Key(), r.Version(), lost(r)}); out.err != nil {
				return out.err
			}
		}
	}
	return out.close()
}

// matchKinds returns the kinds among present that a word names: a name as for kubectl, or "Kind" or "group/Kind"
// for kinds that are not well known. An empty word names all. A word that names no kind is an error.
func matchKinds(present []mirror.Kind, word string) ([]mirror.Kind, error) {
	if word == "" {
		return present, nil
	}
	var out []mirror.Kind
	known := mirror.MatchKinds(word)
	for _, kind := range present {
		if slices.ContainsFunc(known, func(i *mirror.KindInfo) bool { return i.Kind == kind }) ||
			strings.EqualFold(word, kind.Kind) || strings.EqualFold(word, kind.String()) {
			out = append(out, kind)
		}
	}
	if len(out) == 0 && len(known) == 0 {
		return nil, badRequestf("kind %q is neither well known nor among the resources", word)
	}
	return out, nil
}

// mesh writes the MeshConfig of the first upstream that has one.
func (d *Debug) mesh(w io.Writer, _ url.Values) error {
	list := d.views.Resources.List(mirror.MeshConfig, "")
	if len(list) == 0 {
		return writeJSON(w, nil)
	}
	o, err := kube.New(list[0], "", "")
	if err != nil {
		return err
	}
	return writeJSON(w, o.Spec)
}

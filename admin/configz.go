package admin

import (
	"io"
	"net/url"
	"slices"
	"strings"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// configz writes the merged resources as istiod's /debug/configz does: a JSON array of
// Kubernetes objects. Like there, the MeshConfig is not among them: see mesh. Each
// object is encoded as it is written, so that a large mesh is never held twice.
func (d *Debug) configz(w io.Writer, q url.Values) error {
	kinds, err := matchKinds(d.views.Resources.Kinds(), q.Get("kind"))
	if err != nil && (q.Get("name") == "" || !strings.Contains(q.Get("kind"), "/")) { // who asks for one key has seen its kind
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

// named returns the merged resources of a kind, of one namespace or of one name where those are not
// empty, and none for MeshConfig.
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

// ConfigVersion is what tells one state of a merged config from another.
type ConfigVersion struct {
	mirror.Key
	// Version is the resourceVersion of the object in /debug/configz.
	Version string `json:"version"`
}

// versions writes the version of each config that configz has.
func (d *Debug) versions(w io.Writer, _ url.Values) error {
	out := &arrayWriter{w: w}
	for _, kind := range d.views.Resources.Kinds() {
		for _, r := range d.named(kind, "", "") {
			if out.add(ConfigVersion{r.Key(), r.Version()}); out.err != nil {
				return out.err
			}
		}
	}
	return out.close()
}

// matchKinds returns those of the present kinds that a word names: as kubectl takes
// it, or as "Kind" or "group/Kind" for kinds that are not well known. No word names
// all. A word that can not name any kind is an error.
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

// mesh writes the merged MeshConfig: that of the first upstream that has one.
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

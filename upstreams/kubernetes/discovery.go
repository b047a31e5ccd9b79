package kubernetes

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
)

// errTooOld is the error of a server that does not know aggregated discovery.
var errTooOld = errors.New("the API server is older than Kubernetes 1.27, which the relay needs: upgrade the cluster")

// acceptDiscovery asks for all groups in one answer. A server before Kubernetes 1.27 answers with their
// names only.
const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," +
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"

// definitions is the group of the resource definitions. Where it is missing, the server has not
// told all, or has no definitions: nothing is gone then.
const definitions = "apiextensions.k8s.io"

// served is a kind as a server serves it.
type served struct {
	kind            mirror.Kind
	version, plural string
	namespaced      bool
	// selected: the selector of the upstream counts for it.
	selected bool
}

// path returns the path of its collection, of one namespace or of all.
func (s served) path(namespace string) string {
	p := "/apis/" + s.kind.Group + "/" + s.version
	if s.kind.Group == "" {
		p = "/api/" + s.version
	}
	if namespace != "" {
		p += "/namespaces/" + namespace
	}
	return p + "/" + s.plural
}

// answer is what a server serves of the kinds that are asked for.
type answer struct {
	kinds map[mirror.Kind][]served // in the order of the server
	// unsure has the groups whose contents in the answer may be old, and none where it is
	// complete is false.
	unsure map[string]bool
	// complete: what the answer does not have is not served, but for unsure groups.
	complete bool
}

// lacks reports whether the server tells that it does not serve a kind.
func (a *answer) lacks(kind mirror.Kind) bool {
	return a.complete && !a.unsure[kind.Group] && len(a.kinds[kind]) == 0
}

// best returns the served version of a kind that this build prefers.
func (a *answer) best(kind mirror.Kind) (served, bool) {
	all := a.kinds[kind]
	if info, ok := mirror.LookupKind(kind); ok {
		for _, version := range info.Versions {
			for _, s := range all {
				if s.version == version {
					return s, true
				}
			}
		}
		if _, untyped := info.NewBody().(*structpb.Struct); !untyped {
			return served{}, false // only in versions that this build does not know
		}
	}
	if len(all) == 0 {
		return served{}, false
	}
	return all[0], true // the server has the preferred version first
}

// has reports whether a version is still served.
func (a *answer) has(s served) bool { return slices.Contains(a.kinds[s.kind], s) }

// These are parts of the types of the same names in k8s.io/api/apidiscovery/v2.
type (
	groupDiscovery struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Versions []versionDiscovery `json:"versions"`
	}
	versionDiscovery struct {
		Version   string              `json:"version"`
		Freshness string              `json:"freshness"`
		Resources []resourceDiscovery `json:"resources"`
	}
	resourceDiscovery struct {
		Resource     string `json:"resource"`
		ResponseKind struct {
			Kind string `json:"kind"`
		} `json:"responseKind"`
		Scope string   `json:"scope"`
		Verbs []string `json:"verbs"`
	}
)

// discover asks a server which of some kinds it serves.
func discover(ctx context.Context, c *connection, wanted []mirror.Kind) (*answer, error) {
	var list struct {
		Items  []groupDiscovery  `json:"items"`
		Groups []metav1.APIGroup `json:"groups"`
	}
	if err := c.read(ctx, "/apis", acceptDiscovery, &list); err != nil {
		return nil, err
	}
	a := &answer{kinds: map[mirror.Kind][]served{}, unsure: map[string]bool{}}
	if len(list.Items) == 0 && len(list.Groups) > 0 {
		return nil, errTooOld
	}
	for _, g := range list.Items {
		a.complete = a.complete || g.Metadata.Name == definitions
		for _, v := range g.Versions {
			if v.Freshness == "Stale" {
				a.unsure[g.Metadata.Name] = true
			}
			for _, r := range v.Resources {
				a.add(g.Metadata.Name, v.Version, r.ResponseKind.Kind, r.Resource, r.Scope == "Namespaced", r.Verbs, wanted)
			}
		}
	}
	return a, nil
}

func (a *answer) add(group, version, kind, plural string, namespaced bool, verbs []string, wanted []mirror.Kind) {
	k := mirror.Kind{Group: group, Kind: kind}
	if strings.Contains(plural, "/") || !slices.Contains(wanted, k) || !slices.Contains(verbs, "list") || !slices.Contains(verbs, "watch") {
		return // a subresource, or nothing that can be mirrored
	}
	a.kinds[k] = append(a.kinds[k], served{k, version, plural, namespaced, true})
}

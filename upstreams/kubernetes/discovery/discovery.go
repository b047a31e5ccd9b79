// Package discovery finds out which kinds an API server serves, and in which versions.
//
// The package must not know what is read of these kinds.
package discovery

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// errTooOld is the error of a server without aggregated discovery.
var errTooOld = errors.New("the API server is older than Kubernetes 1.27, which the relay needs: upgrade the cluster")

// acceptDiscovery requests all groups in one answer. A server before Kubernetes 1.27 answers with their names
// only.
const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," +
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"

// definitions is the group of the resource definitions. An answer without it is not complete: nothing is gone
// then.
const definitions = "apiextensions.k8s.io"

// Resource is a kind as a server serves it.
type Resource struct {
	Kind            mirror.Kind
	Version, Plural string
	Namespaced      bool
	// Selected: the label selector of the upstream applies.
	Selected bool
}

// Path returns the path of the collection in one namespace, or in all.
func (r Resource) Path(namespace string) string {
	p := "/apis/" + r.Kind.Group + "/" + r.Version
	if r.Kind.Group == "" {
		p = "/api/" + r.Version
	}
	if namespace != "" {
		p += "/namespaces/" + namespace
	}
	return p + "/" + r.Plural
}

// Answer has the served versions of the kinds that were asked for.
type Answer struct {
	Kinds map[mirror.Kind][]Resource // in the order of the server
	// unsure has the groups whose contents in the answer may be old, and none where it is
	// complete is false.
	unsure map[string]bool
	// complete: what the answer does not have is not served, but for unsure groups.
	complete bool
}

// Lacks reports whether the answer says for sure that a kind is not served.
func (a *Answer) Lacks(kind mirror.Kind) bool {
	return a.complete && !a.unsure[kind.Group] && len(a.Kinds[kind]) == 0
}

// Best returns the served version of a kind that this build prefers.
func (a *Answer) Best(kind mirror.Kind) (Resource, bool) {
	all := a.Kinds[kind]
	if info, ok := mirror.LookupKind(kind); ok {
		for _, version := range info.Versions {
			for _, s := range all {
				if s.Version == version {
					return s, true
				}
			}
		}
		if _, untyped := info.NewBody().(*structpb.Struct); !untyped {
			return Resource{}, false // only in versions that this build does not know
		}
	}
	if len(all) == 0 {
		return Resource{}, false
	}
	return all[0], true // the server has the preferred version first
}

// Has reports whether a version is still served.
func (a *Answer) Has(r Resource) bool { return slices.Contains(a.Kinds[r.Kind], r) }

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

// Fetch reads from a server which of some kinds it serves.
func Fetch(ctx context.Context, c *apiserver.Conn, wanted []mirror.Kind) (*Answer, error) {
	var list struct {
		Items  []groupDiscovery  `json:"items"`
		Groups []metav1.APIGroup `json:"groups"`
	}
	if err := c.Read(ctx, "/apis", acceptDiscovery, &list); err != nil {
		return nil, err
	}
	a := &Answer{Kinds: map[mirror.Kind][]Resource{}, unsure: map[string]bool{}}
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

func (a *Answer) add(group, version, kind, plural string, namespaced bool, verbs []string, wanted []mirror.Kind) {
	k := mirror.Kind{Group: group, Kind: kind}
	if strings.Contains(plural, "/") || !slices.Contains(wanted, k) || !slices.Contains(verbs, "list") || !slices.Contains(verbs, "watch") {
		return // a subresource, or nothing that can be mirrored
	}
	a.Kinds[k] = append(a.Kinds[k], Resource{Kind: k, Version: version, Plural: plural, Namespaced: namespaced, Selected: true})
}

// enough is how many answers in a row have to lack a kind, or to have a better version of it.
const enough = 3

// Tracker counts the answers that agree: the servers of one cluster may be of several versions for a while, and
// a server that starts may not know its own definitions yet. It is used by one goroutine.
type Tracker struct {
	long            time.Duration // that answers have to agree
	missing, better map[mirror.Kind]*streak
}

// streak counts answers in a row.
type streak struct {
	since   time.Time
	answers int
	gone    bool // the kind was dropped
}

// NewTracker returns a Tracker for answers that agree for so long.
func NewTracker(long time.Duration) *Tracker {
	return &Tracker{long: long, missing: map[mirror.Kind]*streak{}, better: map[mirror.Kind]*streak{}}
}

// count counts one more answer, and reports whether there are enough.
func (t *Tracker) count(in map[mirror.Kind]*streak, k mirror.Kind, now time.Time) (s *streak, is bool) {
	if s = in[k]; s == nil {
		s = &streak{since: now}
		in[k] = s
	}
	s.answers++
	return s, s.answers >= enough && now.Sub(s.since) >= t.long
}

// Serves notes that an answer has a kind.
func (t *Tracker) Serves(k mirror.Kind) { delete(t.missing, k) }

// Misses notes that an answer lacks a kind. It reports whether enough answers have, and the kind was not
// dropped before.
func (t *Tracker) Misses(k mirror.Kind, now time.Time) bool {
	s, is := t.count(t.missing, k, now)
	return is && !s.gone
}

// Drop notes that a missing kind was dropped.
func (t *Tracker) Drop(k mirror.Kind) { t.missing[k].gone = true }

// Improves notes the best version of an answer. It reports whether that is another than the followed one, in
// enough answers.
func (t *Tracker) Improves(best, followed Resource, now time.Time) bool {
	if best == followed {
		delete(t.better, best.Kind)
		return false
	}
	_, is := t.count(t.better, best.Kind, now)
	if is {
		delete(t.better, best.Kind)
	}
	return is
}

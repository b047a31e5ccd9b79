// Package discovery finds out which kinds an API server serves, and in which versions.
//
// The package must not know which objects of these kinds are read.
package discovery

import (
	"context"
	"errors"
	"io"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// Oldest is the oldest release of Kubernetes whose API servers can be read: the first with aggregated discovery.
const Oldest = "1.27"

// errTooOld is the error of a server without aggregated discovery.
var errTooOld = errors.New("the API server is older than Kubernetes " + Oldest + ", which the relay needs: upgrade the cluster")

// acceptDiscovery requests all groups in one answer. A server before Kubernetes 1.27 answers with their names
// only.
const acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList," +
	"application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"

// definitions is the group of the resource definitions. Every complete answer has it. If an answer lacks it,
// no kind counts as gone.
const definitions = "apiextensions.k8s.io"

// Resource is a kind as a server serves it.
type Resource struct {
	Kind            mirror.Kind
	Version, Plural string
	Namespaced      bool
	// Selected is set if the label selector of the upstream applies to the kind.
	Selected bool
}

// Path returns the path of the kind's objects in one namespace, or in all.
func (r Resource) Path(namespace string) string {
	p := "/apis/" + r.Kind.Group + "/" + r.Version
	if r.Kind.Group == "" {
		p = "/api/" + r.Version
	}
	if namespace != "" {
		p += "/namespaces/" + url.PathEscape(namespace) // resources of upstreams may have any
	}
	return p + "/" + r.Plural
}

// Answer has the served versions of the requested kinds.
type Answer struct {
	Kinds map[mirror.Kind][]Resource // in the order of the server
	// unsure has the groups whose versions may be out of date.
	unsure map[string]bool
	// complete is set if the server does not serve a kind that the answer lacks. It does not apply to groups
	// in unsure.
	complete bool
}

// Lacks reports whether the server certainly does not serve a kind.
func (a *Answer) Lacks(kind mirror.Kind) bool {
	return a.complete && !a.unsure[kind.Group] && len(a.Kinds[kind]) == 0
}

// Best returns the version of a kind that this build prefers among those served.
func (a *Answer) Best(kind mirror.Kind) (Resource, bool) {
	all := a.Kinds[kind]
	if info, ok := mirror.LookupKind(kind); ok {
		for _, version := range info.Versions {
			if i := slices.IndexFunc(all, func(r Resource) bool { return r.Version == version }); i >= 0 {
				return all[i], true
			}
		}
		if _, untyped := info.NewBody().(*structpb.Struct); !untyped {
			return Resource{}, false // only in versions that this build does not know
		}
	}
	if len(all) == 0 {
		return Resource{}, false
	}
	return all[0], true // the server puts its preferred version first
}

// Has reports whether a version is still served.
func (a *Answer) Has(r Resource) bool { return slices.Contains(a.Kinds[r.Kind], r) }

// Fetch requests the served versions of some kinds from a server.
func Fetch(ctx context.Context, c *apiserver.Conn, wanted []mirror.Kind) (a *Answer, err error) {
	err = c.Stream(ctx, "/apis", acceptDiscovery, maxAnswer, func(body io.Reader) error {
		a, err = read(body, wanted)
		return err
	})
	return a, err
}

// enough is the number of consecutive answers that must lack a kind, or must have a better version of it,
// before the source acts on it.
const enough = 3

// Tracker counts consecutive answers that agree. One answer is not enough: the servers of a cluster may have
// different versions for a while, and a server that starts may not know its definitions yet. One goroutine
// uses it.
type Tracker struct {
	long            time.Duration // for which answers must agree
	missing, better map[mirror.Kind]*streak
}

// streak counts consecutive answers.
type streak struct {
	since   time.Time
	answers int
	gone    bool // the kind was dropped
}

// NewTracker returns a Tracker. The answers must agree for the time long.
func NewTracker(long time.Duration) *Tracker {
	return &Tracker{long: long, missing: map[mirror.Kind]*streak{}, better: map[mirror.Kind]*streak{}}
}

// count counts an answer, and reports whether enough answers agree.
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

// Misses notes that an answer lacks a kind. It reports whether enough answers lack it, unless the kind was
// dropped before.
func (t *Tracker) Misses(k mirror.Kind, now time.Time) bool {
	s, is := t.count(t.missing, k, now)
	return is && !s.gone
}

// Drop notes that a missing kind was dropped.
func (t *Tracker) Drop(k mirror.Kind) { t.missing[k].gone = true }

// Improves compares the best version in an answer with the followed one. It reports whether enough answers
// have a better one.
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

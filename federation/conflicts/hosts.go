package conflicts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
)

const (
	// maxShown bounds the claims that one HostConflict lists.
	maxShown = 64
	// maxScopes bounds the namespaces that are looked at for all hosts of one answer. Of further hosts, it is not told who
	// sees several claims.
	maxScopes = 1 << 18
)

// tooMany is the Visibility of a conflict above maxScopes.
const tooMany = "too many namespaces to compare"

// Claim is a resource that claims a host. Its kind is the conflict's.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Source is the upstream from which the served resource comes.
	Source string `json:"source"`
	// Visibility is "*", or the namespaces that see the resource.
	Visibility string `json:"visibility"`
}

// HostConflict is a host that several resources of a kind claim for the same namespaces. The relay reports it
// and serves all of them. istiod decides which one takes effect.
//
// Of one upstream, only ServiceEntries, and VirtualServices for the gateway "mesh", are in conflict (istioctl analyze:
// IST0109): istiod merges the others of one host.
type HostConflict struct {
	Kind mirror.Kind `json:"kind"`
	Host string      `json:"host"`
	// Visibility is "*" when every namespace sees one of the claims: it is in conflict with each other claim.
	// Otherwise it has the namespaces that see several.
	Visibility string `json:"visibility"`
	// Claims are the first claims by namespace and name.
	Claims []Claim `json:"claims"`
	// More is the number of claims that are not in Claims.
	More int `json:"more,omitempty"`
	// Winner is the "namespace/name" of the claim that istiod prefers, empty when that is not certain. It is
	// certain for VirtualServices that every namespace sees: istiod takes the oldest, then the first by
	// "name.namespace". It is never certain for ServiceEntries: istiod merges those of one namespace and
	// prefers Services of the cluster, and a Sidecar may choose.
	Winner string `json:"winner,omitempty"`
	// Apart is why the merge policy has not united the claims, if it unites resources of one host. The admin
	// endpoint sets it.
	Apart string `json:"apart,omitempty"`
	// Since is when the last of the claims began.
	Since time.Time `json:"since"`
}

// hostConflicts returns the conflicts among claims, sorted by kind, host and visibility.
func hostConflicts(contests []mirror.Contest) (all []HostConflict) {
	slices.SortFunc(contests, func(a, b mirror.Contest) int {
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.What, b.What))
	})
	room := maxScopes
	for _, c := range contests {
		slices.SortFunc(c.Claims, func(a, b mirror.Claimed) int {
			return cmp.Or(cmp.Compare(a.Namespace(), b.Namespace()), cmp.Compare(a.Key().Name, b.Key().Name))
		})
		scopes, public := 0, false
		for _, claim := range c.Claims {
			scopes, public = scopes+len(claim.Scopes), public || claim.Scopes == nil
		}
		switch {
		case !public && scopes <= room:
			room -= scopes
			all = append(all, scopedConflicts(c)...)
		case !inConflict(c.Kind, c.Claims):
		case public:
			all = append(all, conflictOf(c, federation.Everyone))
		default:
			all = append(all, conflictOf(c, tooMany))
		}
	}
	return all
}

// scopedConflicts returns the conflicts of claims none of which everyone sees: one for each set of claims that some
// namespace sees.
func scopedConflicts(c mirror.Contest) (all []HostConflict) {
	seen := map[string][]int{} // by namespace, the places of the claims
	for i, claim := range c.Claims {
		for _, namespace := range claim.Scopes {
			seen[namespace] = append(seen[namespace], i)
		}
	}
	var sets [][]mirror.Claimed
	var namespaces [][]string
	at := map[string]int{}
	for _, namespace := range slices.Sorted(maps.Keys(seen)) {
		if len(seen[namespace]) < 2 {
			continue
		}
		set := fmt.Sprint(seen[namespace])
		i, found := at[set]
		if !found {
			i, at[set] = len(sets), len(sets)
			var claims []mirror.Claimed
			for _, j := range seen[namespace] {
				claims = append(claims, c.Claims[j])
			}
			sets, namespaces = append(sets, claims), append(namespaces, nil)
		}
		namespaces[i] = append(namespaces[i], namespace)
	}
	for i, claims := range sets {
		if inConflict(c.Kind, claims) {
			all = append(all, conflictOf(mirror.Contest{Kind: c.Kind, What: c.What, Claims: claims}, federation.Visibility{Namespaces: namespaces[i]}.String()))
		}
	}
	return all
}

// merges reports whether istiods merge a resource with others of its kind and host.
func merges(kind mirror.Kind, r *mirror.Resource) bool {
	return kind != federation.ServiceEntry && (kind != federation.VirtualService || !federation.OfMesh(r))
}

// inConflict reports whether claims are in conflict where all of them are seen.
func inConflict(kind mirror.Kind, claims []mirror.Claimed) bool {
	alone := 0
	return slices.ContainsFunc(claims, func(c mirror.Claimed) bool {
		if !merges(kind, c.Resource) {
			alone++
		}
		return alone > 1 || c.Source() != claims[0].Source()
	})
}

// conflictOf describes a conflict.
func conflictOf(c mirror.Contest, visibility string) HostConflict {
	shown := c.Claims[:min(len(c.Claims), maxShown)]
	out := HostConflict{Host: c.What, Kind: c.Kind, Visibility: visibility, Claims: make([]Claim, len(shown)), More: len(c.Claims) - len(shown)}
	for _, claim := range c.Claims {
		if claim.Since.After(out.Since) {
			out.Since = claim.Since
		}
	}
	// If some claims are not public, there is no single winner: istiod prefers the claims that not everyone sees.
	certain := c.Kind == federation.VirtualService && out.More == 0
	for i, claim := range shown {
		of := federation.Visibility{Public: claim.Scopes == nil, Namespaces: claim.Scopes}
		out.Claims[i] = Claim{Namespace: claim.Namespace(), Name: claim.Key().Name, Source: claim.Source(), Visibility: of.String()}
		certain = certain && of.Public && !merges(c.Kind, claim.Resource)
	}
	if certain {
		w := slices.MinFunc(shown, func(a, b mirror.Claimed) int {
			return cmp.Or(a.Metadata().CreateTime.Compare(b.Metadata().CreateTime), cmp.Compare(a.Key().Name+"."+a.Namespace(), b.Key().Name+"."+b.Namespace()))
		}).Key()
		out.Winner = w.Namespace + "/" + w.Name
	}
	return out
}

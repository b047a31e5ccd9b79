package filter

import (
	"fmt"
	"slices"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// The profiles: closed lists of kinds. A kind that no list has needs ProfileAll.
const (
	ProfileServices = "services"
	ProfileRouting  = "routing"
	ProfileAll      = "all"
)

// DefaultRoot is the root namespace of a mesh whose MeshConfig names none.
const DefaultRoot = "istio-system"

func networkingKind(name string) mirror.Kind {
	return mirror.Kind{Group: "networking.istio.io", Kind: name}
}

var (
	serviceKinds = []mirror.Kind{federation.ServiceEntry, networkingKind("WorkloadEntry"), networkingKind("WorkloadGroup"), federation.DestinationRule}
	routingKinds = slices.Concat(serviceKinds, federation.Routing, []mirror.Kind{networkingKind("Gateway"), networkingKind("Sidecar")})
)

// profileKinds returns the kinds of a profile, nil for all.
func profileKinds(profile string) ([]mirror.Kind, error) {
	switch profile {
	case "", ProfileAll:
		return nil, nil
	case ProfileServices:
		return serviceKinds, nil
	case ProfileRouting:
		return routingKinds, nil
	}
	return nil, fmt.Errorf("%q: want one of %s, %s, %s", profile, ProfileServices, ProfileRouting, ProfileAll)
}

// PassesKind reports whether a kind passes Profile and Kinds.
func (f *Filter) PassesKind(kind mirror.Kind) bool { return f.checkKind(kind).Passes() }

// OfKind returns why a kind does not pass Profile and Kinds, in a word and in a clause.
func (f *Filter) OfKind(kind mirror.Kind) (reason Reason, clause string) {
	switch v := f.checkKind(kind); v.Reason {
	case ReasonProfile:
		return v.Reason, "import.profile " + f.rules.Profile + " does not have it"
	case ReasonKind:
		return v.Reason, "import.kinds does not have it"
	}
	return ReasonNone, ""
}

// checkKind returns whether a kind passes Profile and Kinds.
func (f *Filter) checkKind(kind mirror.Kind) Verdict {
	if f.profile != nil && !slices.Contains(f.profile, kind) {
		return leftOut(ReasonProfile, func() string { return fmt.Sprintf("kind %s is not in profile %s", kind, f.rules.Profile) })
	}
	if _, ok := f.kinds[kind]; !ok && f.kinds != nil {
		return leftOut(ReasonKind, func() string { return fmt.Sprintf("kind %s is not one of %s", kind, list(f.rules.Kinds)) })
	}
	return Verdict{}
}

// Closed reports whether the profile is another than ProfileAll: nothing of root namespaces may pass.
func (r Rules) Closed() bool { return r.Profile != "" && r.Profile != ProfileAll }

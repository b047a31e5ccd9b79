package conflicts

import (
	"fmt"
	"testing"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// contest returns claims of a host by n resources, each for the namespaces of scopes.
func contest(t *testing.T, host string, n int, scopes []string) mirror.Contest {
	c := mirror.Contest{Kind: federation.ServiceEntry, What: host}
	for i := range n {
		c.Claims = append(c.Claims, mirror.Claimed{Resource: entryClaim(t, "a", fmt.Sprintf("x%04d", i), scopes, host), Scopes: scopes, Since: time.Now()})
	}
	return c
}

// TestNamespacesOfAnAnswerAreBounded: above the bound, a conflict is told without the namespaces that see several claims.
func TestNamespacesOfAnAnswerAreBounded(t *testing.T) {
	var scopes []string
	for i := range maxScopes/4 - 1 {
		scopes = append(scopes, fmt.Sprintf("ns%06d", i))
	}
	all := hostConflicts([]mirror.Contest{contest(t, "c", 2, []string{"p", "q"}), contest(t, "b", 3, scopes), contest(t, "a", 3, scopes)})
	if len(all) != 3 || all[0].Visibility == tooMany || all[1].Visibility != tooMany || len(all[1].Claims) != 3 || all[2].Visibility != "p,q" {
		t.Errorf("%.300q", brief(all))
	}
}

// TestAPublicClaimAmongManyCostsTheirNumber, not the number of their namespaces.
func TestAPublicClaimAmongManyCostsTheirNumber(t *testing.T) {
	c := contest(t, "a", 2000, []string{"p", "q", "r"})
	public := mirror.Contest{Kind: c.Kind, What: c.What, Claims: append([]mirror.Claimed{{Resource: entryClaim(t, "a", "y", nil, "a")}}, c.Claims...)}
	if n := testing.AllocsPerRun(10, func() { hostConflicts([]mirror.Contest{public}) }); n > 2*maxShown {
		t.Errorf("%v allocations for %d claims of one host", n, len(public.Claims))
	}
}

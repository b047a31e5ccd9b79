package explainview

import (
	"strings"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
)

func TestWhatAnUpstreamWithholdsIsExplained(t *testing.T) {
	for outcome, want := range map[admin.Outcome]string{
		admin.Frozen:   "a/B c/d is not served: upstream west is frozen without it.\n",
		admin.Expired:  "a/B c/d is not served: upstream west has been out of contact for too long.\n",
		admin.Changing: "a/B c/d is not served: upstream west has begun or ceased to have it just now.\n",
		admin.LeftOut:  "a/B c/d is not served: it is left out.\n",
	} {
		e := admin.Explanation{
			Ref: admin.Ref{Kind: "a/B", Namespace: "c", Name: "d"}, Outcome: outcome,
			Sources: []admin.SourceCopy{{Upstream: "east", Outcome: admin.Refused}, {Upstream: "west", Outcome: outcome, Detail: "because of this"}},
		}
		var out strings.Builder
		if err := Explain(&out, e, false, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.HasPrefix(got, want) || !strings.Contains(got, "because of this") {
			t.Errorf("%s:\n%s", outcome, got)
		}
	}
}

func TestConfigsThatAreNotFollowedAreListed(t *testing.T) {
	all := admin.Conflicts{NotFollowed: []conflicts.NotFollowed{
		{Key: mirror.Key{Kind: mirror.Kind{Group: "a", Kind: "B"}, Namespace: "c", Name: "d"}, Source: "east", Hosts: 2000, Namespaces: 3000, Reason: "too many"},
	}}
	var out strings.Builder
	if err := Conflicts(&out, all, time.Now()); err != nil {
		t.Fatal(err)
	}
	want := "NOT FOLLOWED   KIND   SERVED FROM   HOSTS   NAMESPACES   REASON\nc/d            B      east          2000    3000         too many\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at the end\n%s", got, want)
	}
}

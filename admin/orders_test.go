package admin

import (
	"net/http"
	"strings"
	"testing"
)

// An order with an unknown parameter is refused: a misspelt dryRun must not be ignored.
func TestAnOrderThatIsNotUnderstoodIsNotCarriedOut(t *testing.T) {
	f, c, _ := controlled(t, Config{Socket: "/run/relay/admin.sock"})
	for path, want := range map[string]string{
		"freeze?dryrun=true":                        `"dryrun" is no parameter of freeze: want dryRun, reason`,
		"freeze?dryRun=maybe":                       `dryRun is "maybe": want true or false`,
		"unfreeze?force=yes":                        `force is "yes": want true or false`,
		"release":                                   "want hold=ID, only=KIND/NAMESPACE or all=true: /held lists the held deletions",
		"release?all=false":                         "want hold=ID",
		"release?only=vs":                           `only: "vs": want KIND/NAMESPACE`,
		"release?only=nothing/shop":                 "only: ",
		"release?all=true&to=3":                     `"to" is no parameter of release`,
		"rollback":                                  `to is "": want the number of a revision`,
		"rollback?to=0":                             `to is "0": want the number of a revision`,
		"freeze?reason=a%0Ab":                       `the reason "a\nb": want printable characters`,
		"freeze?reason=" + strings.Repeat("a", 257): "the reason has 257 bytes: want 256 at most",
	} {
		code, body, _ := f.do(t, request{method: http.MethodPost, path: "/upstreams/east/" + path, peer: &peer{UID: 1}})
		if code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if len(c.told) > 0 {
		t.Errorf("carried out: %q", c.told)
	}
	code, _, _ := f.do(t, request{method: http.MethodPost, path: "/upstreams/east/release?all=true&reason=the+cluster+is+gone&dryRun=true", peer: &peer{UID: 1}})
	if got := f.logged.String(); code != http.StatusOK || !strings.Contains(got, `msg=operator action=release target=east parameters="all=true dryRun=true" uid=1 pid=0 user=`) {
		t.Errorf("%d, logged:\n%s", code, got)
	}
}

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/jwt"
	"meshrelay/internal/smallfile"
	"meshrelay/internal/text"
)

const (
	// maxToken bounds a token, in bytes.
	maxToken = 64 << 10
	// soonToken is how long before the end of a token there is a warning. maxSkew is how far clocks may differ.
	soonToken = 5 * time.Minute
	maxSkew   = time.Minute
)

// Token is a bearer token, and what a server demands of it.
type Token struct {
	File string                 // that has it, or the name of what Read asks
	Read func() (string, error) // nil: that reads File
	// Audience is an audience that the token must have, and Namespace the namespace that its service
	// account must have. Empty fields are not checked.
	Audience, Namespace string
	Now                 time.Time
}

// Check checks the token, but not its signature. A token that is not a JWT passes.
func (t Token) Check() []Finding {
	content, err := smallfile.Read(t.File, maxToken)
	token := strings.TrimSpace(string(content))
	if t.Read != nil {
		token, err = t.Read()
	}
	switch {
	case err != nil:
		return []Finding{Bad("token", t.File, "the token can not be read", err.Error(), "correct tokenFile or token, and let the user of the relay read it")}
	case token == "":
		return []Finding{Bad("token", t.File, "the token is empty", "", "check what writes the file: in Kubernetes, a projected volume with a serviceAccountToken")}
	}
	c, ok := jwt.Look(token)
	if !ok {
		return []Finding{Good("token", t.File, "there is a token; it is not a JWT, so its audience and end are not checked")}
	}
	var found []Finding
	if f, bad := t.times(c); bad {
		found = append(found, f)
	}
	if t.Audience != "" && !slices.Contains(c.Audiences, t.Audience) {
		found = append(found, Bad("token", t.File, "the token is for another audience than "+t.Audience, "it is for "+orNothing(text.Some(c.Audiences, 3)),
			fmt.Sprintf("project a token with audience: %s, or add the audience to TOKEN_AUDIENCES of the istiod", t.Audience)))
	}
	if namespace, account, ok := c.ServiceAccount(); ok && t.Namespace != "" && namespace != t.Namespace {
		found = append(found, Bad("token", t.File, fmt.Sprintf("the service account of the token is %s in namespace %s, but node.namespace is %s", account, namespace, t.Namespace),
			"an istiod refuses a client whose node.namespace is not the namespace of its identity", "set node.namespace: "+namespace))
	}
	if len(found) == 0 {
		end := "without end"
		if !jwt.Time(c.Expires).IsZero() {
			end = "until " + stamp(jwt.Time(c.Expires))
		}
		found = append(found, Good("token", t.File, "token of %s for %s, %s", orNothing(c.Subject), orNothing(text.Some(c.Audiences, 3)), end))
	}
	return found
}

// times checks when a token is valid.
func (t Token) times(c jwt.Claims) (Finding, bool) {
	begins, ends := jwt.Time(max(c.NotBefore, c.IssuedAt)), jwt.Time(c.Expires)
	switch left := ends.Sub(t.Now); {
	case begins.Sub(t.Now) > maxSkew:
		return Bad("clock", t.File, fmt.Sprintf("the token was issued %s in the future", begins.Sub(t.Now).Round(time.Second)),
			fmt.Sprintf("it is valid from %s, and the clock here shows %s", stamp(begins), stamp(t.Now)), "correct the clock of this host (timedatectl, chronyc tracking)"), true
	case !ends.IsZero() && left <= 0:
		return Bad("token", t.File, fmt.Sprintf("the token expired %s ago", (-left).Round(time.Second)),
			fmt.Sprintf("it ended at %s, and the clock here shows %s", stamp(ends), stamp(t.Now)),
			"renew it: the kubelet renews a projected serviceAccountToken, but not a copy of it"), true
	case !ends.IsZero() && left < soonToken:
		return Doubt("token", t.File, fmt.Sprintf("the token expires in %s", left.Round(time.Second)), "its automatic renewal may be broken", "check what writes the file"), true
	}
	return Finding{}, false
}

// Skew returns a finding when server, the time of a server, and now differ by more than maxSkew.
func Skew(target string, server, now time.Time) []Finding {
	d := server.Sub(now)
	if d.Abs() <= maxSkew {
		return nil
	}
	way := "behind"
	if d < 0 {
		way = "ahead of"
	}
	f := Doubt("clock", target, fmt.Sprintf("the clock of this host is %s %s that of the server", d.Abs().Round(time.Second), way),
		fmt.Sprintf("the server shows %s, and this host %s", stamp(server), stamp(now)), "correct the clock of this host (timedatectl, chronyc tracking): tokens and certificates depend on it")
	if d.Abs() > soonToken {
		f.Level = Failed
	}
	return []Finding{f}
}

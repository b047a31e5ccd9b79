// Package bearer finds out who sent a bearer token. The keys of its issuer verify a JWT. An API server reviews any
// other token.
//
// Errors never quote a token. The package must not know the rights of an identity.
package bearer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"meshrelay/internal/identity"
	"meshrelay/internal/jwt"
	"meshrelay/internal/text"
)

const (
	maxToken   = 16 << 10 // bytes
	maxSubject = 255      // bytes, as OpenID Connect has it
	maxGroups  = 100
	maxGroup   = 256 // bytes
	maxShown   = 200 // bytes of a text in an error
	// maxSkew is how far the clock of an issuer may be ahead.
	maxSkew = 30 * time.Second
)

// Issuer tells which tokens are accepted. It has the keys of the issuer, or a Reviewer.
type Issuer struct {
	// Name is the name of the issuer in identities.
	Name string
	// Issuer is the claim iss of its JWTs. A Reviewer needs none.
	Issuer string
	// Audiences: a token must be for one of them.
	Audiences []string
	// JWKSFile or JWKSURL has the keys. CAFile has the roots that verify the server of the URL, empty for those
	// of the host.
	JWKSFile, JWKSURL, CAFile string
	Reviewer                  Reviewer
	// TrustDomain is that of the SPIFFE IDs of service accounts. Without it, they have none.
	TrustDomain string
	// GroupsClaim is the claim of a JWT that lists groups, empty for none.
	GroupsClaim string
}

// Error tells why a token is refused. Unavailable is set if the token may be good: the relay can not judge it at
// present.
type Error struct {
	Unavailable bool
	text        string
}

func (e *Error) Error() string { return e.text }

// describe describes a token by its claims.
func describe(c jwt.Claims) string {
	end := "without an expiry"
	if at := jwt.Time(c.Expires); !at.IsZero() {
		end = "that expires at " + at.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("a JWT of issuer %q for %s, %s", short(c.Issuer), quoted(c.Audiences), end)
}

// verify returns the identity that a JWT proves. The caller has bounded the JWT and compared its issuer.
func (i *Issuer) verify(ctx context.Context, keys oidc.KeySet, raw string, now time.Time) (identity.Identity, error) {
	v := oidc.NewVerifier(i.Issuer, keys, &oidc.Config{
		SkipClientIDCheck: true, // there may be several audiences
		SupportedSigningAlgs: []string{
			oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA,
		},
		Now: func() time.Time { return now },
	})
	token, err := v.Verify(ctx, raw)
	if expired := (*oidc.TokenExpiredError)(nil); errors.As(err, &expired) {
		if expired.Expiry.IsZero() {
			return identity.Identity{}, errors.New("it has no expiry")
		}
		return identity.Identity{}, errors.New("it has expired")
	} else if err != nil {
		return identity.Identity{}, errors.New(short(err.Error()))
	}
	var c jwt.Claims
	var more map[string]json.RawMessage
	if err := errors.Join(token.Claims(&c), token.Claims(&more)); err != nil {
		return identity.Identity{}, errors.New("its claims do not decode")
	}
	switch {
	case c.NotBefore > float64(now.Add(maxSkew).Unix()):
		return identity.Identity{}, errors.New("it is not valid yet")
	case !i.accepts(c.Audiences):
		return identity.Identity{}, errors.New("it is for another audience")
	}
	var groups []string
	if list := more[i.GroupsClaim]; i.GroupsClaim != "" && len(list) > 0 && json.Unmarshal(list, &groups) != nil {
		return identity.Identity{}, fmt.Errorf("its claim %q is not a list of texts", i.GroupsClaim)
	}
	return i.identity(c, groups)
}

// accepts reports whether a token for some audiences is accepted.
func (i *Issuer) accepts(audiences []string) bool {
	return slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(i.Audiences, a) })
}

// identity returns the identity of the verified claims of a token.
func (i *Issuer) identity(c jwt.Claims, groups []string) (who identity.Identity, err error) {
	switch {
	case !isName(c.Subject, maxSubject):
		return who, fmt.Errorf("its subject is empty, has more than %d bytes, or has characters that are not printed", maxSubject)
	case len(groups) > maxGroups:
		return who, fmt.Errorf("it has %d groups: at most %d are accepted", len(groups), maxGroups)
	case slices.ContainsFunc(groups, func(g string) bool { return !isName(g, maxGroup) }):
		return who, fmt.Errorf("a group is empty, has more than %d bytes, or has characters that are not printed", maxGroup)
	}
	groups = slices.Sorted(slices.Values(groups)) // a server may list them in any order
	who = identity.Identity{Issuer: i.Name, Groups: groups, Expires: jwt.Time(c.Expires)}
	if namespace, account, ok := c.ServiceAccount(); ok && i.TrustDomain != "" {
		td, err := spiffeid.TrustDomainFromString(i.TrustDomain)
		if err != nil {
			return who, err
		}
		id, err := spiffeid.FromSegments(td, "ns", namespace, "sa", account)
		if err != nil {
			return who, fmt.Errorf("its service account has no SPIFFE ID: %w", err)
		}
		who.Names = []string{id.String()}
		who.TrustDomain, who.Namespace, who.ServiceAccount = identity.Workload(id)
	}
	who.Names = append(who.Names, "jwt:"+i.Name+"/"+c.Subject)
	for _, g := range groups {
		who.Names = append(who.Names, "group:"+i.Name+"/"+g)
	}
	return who, nil
}

// isName reports whether a text can be part of an identity.
func isName(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// short cuts a text that comes from a token.
func short(s string) string { return text.Shorten(s, maxShown) }

// quoted lists audiences of a token, at most four.
func quoted(all []string) string {
	if len(all) == 0 {
		return "no audience"
	}
	return "audience " + text.List(all, 4, maxShown)
}

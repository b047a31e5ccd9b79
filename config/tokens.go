package config

import (
	"fmt"
	"net/url"
	"path"
	"reflect"
	"slices"

	"meshrelay/internal/identity"
)

// TokenIssuer tells which bearer tokens of clients are accepted: JWTs that the keys of an issuer verify, or tokens
// that an API server reviews.
type TokenIssuer struct {
	// Name is the issuer's name in identities: jwt:NAME/SUBJECT.
	Name string `yaml:"name"`
	// Issuer is the claim iss of the JWTs. Their keys are in JWKSFile or at JWKSURL, whose server CAFile verifies.
	Issuer   string       `yaml:"issuer"`
	JWKSFile string       `yaml:"jwksFile" path:"file" pem:"jwks"`
	JWKSURL  string       `yaml:"jwksURL"`
	CAFile   string       `yaml:"caFile" path:"file" pem:"roots"`
	Review   *TokenReview `yaml:"kubernetes,omitempty"`
	// Audiences: a token must be for one of them.
	Audiences []string `yaml:"audiences,omitempty"`
	// TrustDomain is that of the SPIFFE IDs of service accounts.
	TrustDomain string `yaml:"trustDomain"`
	// GroupsClaim is the claim of a JWT that lists groups.
	GroupsClaim string `yaml:"groupsClaim"`
}

// TokenReview names the API server that reviews tokens.
type TokenReview struct {
	Kubeconfig string `yaml:"kubeconfig" path:"file"`
	InCluster  bool   `yaml:"inCluster"`
}

// SPIFFE names the Workload API that gives the relay its certificate and the roots of clients.
type SPIFFE struct {
	WorkloadAPI string `yaml:"workloadAPI"`
}

// spiffe checks that the Workload API is a Unix socket and replaces files.
func (v *validator) spiffe(at string, t *ListenerTLS) {
	u, err := url.Parse(t.SPIFFE.WorkloadAPI)
	v.errorIf(err != nil || u.Scheme != "unix" || u.Host != "" || !path.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "", at+".spiffe.workloadAPI",
		"%q is not the address of a Unix socket: write it as unix:///run/spire/agent.sock", t.SPIFFE.WorkloadAPI)
	v.errorIf(t.CertFile != "" || t.KeyFile != "", at+".spiffe", "certFile and spiffe are both set: the Workload API gives the certificate, so leave out certFile and keyFile, or spiffe")
	v.errorIf(len(t.ClientCAs) > 0, at+".spiffe", "clientCAs and spiffe are both set: the Workload API gives the roots of trust domains, so leave out one")
}

// tokens checks the issuers of tokens. before are the listeners before l.
func (v *validator) tokens(at string, l Listener, before []Listener) {
	at += ".tokens"
	v.errorIf(len(l.Tokens) > 0 && l.TLS == nil, at, "tokens without tls: anybody on the way could read and use them: set tls")
	reviewed := -1
	for i, t := range l.Tokens {
		here := fmt.Sprintf("%s[%d]", at, i)
		v.label(here+".name", t.Name)
		if n := slices.IndexFunc(l.Tokens[:i], func(o TokenIssuer) bool { return o.Name == t.Name }); n >= 0 {
			v.errorf(here+".name", "%q is the name of tokens[%d] already: names must differ", t.Name, n)
		}
		for n, other := range before {
			v.errorIf(slices.ContainsFunc(other.Tokens, func(o TokenIssuer) bool {
				return o.Name == t.Name && (o.Issuer != t.Issuer || !reflect.DeepEqual(o.Review, t.Review))
			}), here+".name", "%q is the name of another issuer in listeners[%d]: their tokens would prove the same identities, so names must differ", t.Name, n)
		}
		v.errorIf(len(t.Audiences) == 0 || slices.Contains(t.Audiences, ""), here+".audiences", "missing or empty: name the audience of tokens for this relay, so that tokens for others are not accepted here")
		if err := identity.CheckTrustDomain(t.TrustDomain); t.TrustDomain != "" && err != nil {
			v.errorf(here+".trustDomain", "%q is not a trust domain: %v", t.TrustDomain, err)
		}
		if t.Review == nil {
			v.issuer(here, l.Tokens[:i], t)
			continue
		}
		v.errorIf(t.Issuer != "" || t.JWKSFile != "" || t.JWKSURL != "" || t.CAFile != "" || t.GroupsClaim != "", here+".kubernetes",
			"the API server knows issuer, keys and groups: leave out issuer, jwksFile, jwksURL, caFile and groupsClaim, or kubernetes")
		v.errorIf((t.Review.Kubeconfig != "") == t.Review.InCluster, here+".kubernetes", "exactly one of kubeconfig and inCluster is needed")
		v.errorIf(reviewed >= 0, here+".kubernetes", "tokens[%d] has kubernetes already: a token is sent to one API server only", reviewed)
		reviewed = i
	}
}

// issuer checks an issuer of JWTs. before are the issuers before it.
func (v *validator) issuer(at string, before []TokenIssuer, t TokenIssuer) {
	v.errorIf(t.Issuer == "", at+".issuer", "missing: write the claim iss of its tokens, or kubernetes for an API server that reviews tokens")
	if n := slices.IndexFunc(before, func(o TokenIssuer) bool { return o.Issuer == t.Issuer }); t.Issuer != "" && n >= 0 {
		v.errorf(at+".issuer", "%q is the issuer of tokens[%d] already: put all audiences into one", t.Issuer, n)
	}
	v.errorIf((t.JWKSFile == "") == (t.JWKSURL == ""), at, "exactly one of jwksFile and jwksURL is needed: the public keys of the issuer")
	v.errorIf(t.CAFile != "" && t.JWKSURL == "", at+".caFile", "it is for jwksURL, which is not set: leave it out")
	if t.JWKSURL != "" {
		u, err := url.Parse(t.JWKSURL)
		v.errorIf(err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil, at+".jwksURL", "this is not a URL that begins with https:// and has a host, and no user and password")
	}
}

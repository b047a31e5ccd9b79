package identity

import (
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Identity is what a client has proven. The zero Identity belongs to a client that has proven nothing. It is
// immutable: copies share the lists.
type Identity struct {
	// Names are the texts that patterns match: a SPIFFE ID, dns:NAME, jwt:ISSUER/SUBJECT, group:ISSUER/GROUP.
	// The first one tells clients apart in limits and logs.
	Names []string
	// TrustDomain is that of the SPIFFE ID in Names. Namespace and ServiceAccount are set if its path is
	// /ns/NAMESPACE/sa/ACCOUNT, as those of Istio and Kubernetes are.
	TrustDomain, Namespace, ServiceAccount string
	// Issuer is the name of the token issuer in the config, empty for a certificate. Groups are as the issuer
	// tells them.
	Issuer string
	Groups []string
	// Reviewed is set if an API server has reviewed the token. It may judge the token otherwise later.
	Reviewed bool
	// Expires is when the certificate or the token expires, zero for never.
	Expires time.Time
}

// IsZero reports whether the client has proven nothing.
func (i Identity) IsZero() bool { return len(i.Names) == 0 }

// Claimed returns the Identity of names as Names has them, as a question about a client would. Nobody has
// proven it.
func Claimed(names []string) (who Identity) {
	who.Names = names
	for _, name := range names {
		if id, err := spiffeid.FromString(name); err == nil && who.TrustDomain == "" {
			who.TrustDomain, who.Namespace, who.ServiceAccount = Workload(id)
		}
		if rest, ok := strings.CutPrefix(name, jwt); ok && who.Issuer == "" {
			who.Issuer, _, _ = strings.Cut(rest, "/")
		}
	}
	return who
}

// Workload returns the trust domain of a SPIFFE ID, and the namespace and service account of its path. They are
// empty if the path is not /ns/NAMESPACE/sa/ACCOUNT.
func Workload(id spiffeid.ID) (trustDomain, namespace, account string) {
	parts := strings.Split(id.Path(), "/")
	if len(parts) == 5 && parts[1] == "ns" && parts[3] == "sa" {
		namespace, account = parts[2], parts[4]
	}
	return id.TrustDomain().Name(), namespace, account
}

package identity

import (
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Identity is what a client has proven with its certificate. The zero Identity belongs to a client that has proven
// nothing. It is immutable: copies share the list.
type Identity struct {
	// Names are the texts that patterns match: a SPIFFE ID and dns:NAME. The first one tells clients apart in limits
	// and logs.
	Names []string
	// Namespace and ServiceAccount are those of the SPIFFE ID, if its path is /ns/NAMESPACE/sa/ACCOUNT, as those of
	// Istio and Kubernetes are.
	Namespace, ServiceAccount string
	// Expires is when the certificate expires.
	Expires time.Time
}

// IsZero reports whether the client has proven nothing.
func (i Identity) IsZero() bool { return len(i.Names) == 0 }

// Workload returns the namespace and the service account of a SPIFFE ID. They are empty if its path is not
// /ns/NAMESPACE/sa/ACCOUNT.
func Workload(id spiffeid.ID) (namespace, account string) {
	parts := strings.Split(id.Path(), "/")
	if len(parts) == 5 && parts[1] == "ns" && parts[3] == "sa" {
		namespace, account = parts[2], parts[4]
	}
	return namespace, account
}

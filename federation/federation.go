package federation

import (
	"errors"
	"fmt"

	"github.com/hashicorp/go-multierror"
	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
)

// The kinds of services and of their rules. All but WorkloadEntry claim hosts.
var (
	ServiceEntry    = mirror.Kind{Group: networkingIO, Kind: "ServiceEntry"}
	VirtualService  = mirror.Kind{Group: networkingIO, Kind: "VirtualService"}
	DestinationRule = mirror.Kind{Group: networkingIO, Kind: "DestinationRule"}
	WorkloadEntry   = mirror.Kind{Group: networkingIO, Kind: "WorkloadEntry"}
)

const (
	// MeshGateway is the gateway of a VirtualService that means all sidecars.
	MeshGateway = "mesh"
	// DefaultDomain is the usual cluster domain. It completes hosts that rewrite.ShortHostsKeep has left short.
	DefaultDomain = "cluster.local"
	// SyntheticPrefix begins the names of the ServiceEntries that an istiod makes of Kubernetes
	// services (istio pilot/pkg/serviceregistry/serviceentry/conversion.go ServiceToServiceEntry).
	SyntheticPrefix = "synthetic-"
	// DistributionAnnotation tells which endpoints of a ServiceEntry clients prefer, by where they are.
	DistributionAnnotation = "networking.istio.io/traffic-distribution"
)

// Suffix returns the end of the name of a ServiceEntry that is one of several of a name: the same for the same text.
func Suffix(text string) string { return fmt.Sprintf("-%08x", uint32(xxh3.HashString(text))) }

// RuleError is a mistake in a rule.
type RuleError struct {
	// Field is the path of the mistake: "kinds[2]", "namespaces.include[0]", "selector" or
	// "expression".
	Field string
	// Line and Column are the place within an expression, counted from 1. They are 0 when the mistake has no
	// place.
	Line, Column int
	Err          error
}

// Error returns the mistake with its place.
func (e *RuleError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d:%d: %v", e.Field, e.Line, e.Column, e.Err)
	}
	return e.Field + ": " + e.Err.Error()
}

// Unwrap returns the mistake without its place.
func (e *RuleError) Unwrap() error { return e.Err }

// Mistakes collects the mistakes in rules.
type Mistakes struct{ all *multierror.Error }

// Add adds an error with the path of its field, unless it is nil. It keeps a *RuleError.
func (m *Mistakes) Add(err error, field string, args ...any) {
	if err == nil {
		return
	}
	rule, is := errors.AsType[*RuleError](err)
	if !is {
		rule = &RuleError{Field: fmt.Sprintf(field, args...), Err: err}
	}
	m.all = multierror.Append(m.all, rule)
}

// Err returns a *multierror.Error with a *RuleError for each mistake, nil without mistakes.
func (m *Mistakes) Err() error { return m.all.ErrorOrNil() }

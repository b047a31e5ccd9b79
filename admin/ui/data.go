package ui

import (
	"net/url"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Resources reads the merged resources.
type Resources interface {
	Kinds() []mirror.Kind
	Counts() map[mirror.Kind]int
	All(kind mirror.Kind) []*mirror.Resource
	Resolve(key mirror.Key) mirror.Resolution
}

// Clients reads the connected clients.
type Clients interface {
	Clients() []downstream.ClientStatus
}

// Server is the admin server.
type Server interface {
	Readiness() admin.Readiness
	Version() admin.Version
}

// Data reads what the pages show. All functions must be set, and safe for concurrent use.
type Data struct {
	Resources Resources
	Clients   Clients
	Upstreams func() []upstreams.Status
	// Clusters returns the state of each element of "clusters" in the config.
	Clusters func() []clusters.Status
	Explain  func(q url.Values) (*admin.Explanation, error)
	// Services computes services. The parameters are those of /debug/services.
	Services func(q url.Values) (services.Answer, error)
	// Contests and HostConflicts are as in admin.Views. Conflicts counts the keys and hosts in conflict.
	Contests      func(kinds ...mirror.Kind) []conflicts.KeyConflict
	HostConflicts func() []conflicts.HostConflict
	Conflicts     func() (keys, hosts int)
	// Apart returns why the claims of a host are not united.
	Apart   func(conflicts.HostConflict) string
	Held    func(upstream string) ([]intake.HeldUpstream, error)
	History func(upstream string) ([]state.Revision, error)
	// Events returns a page of the journal.
	Events func(events.Query) events.Page
	// Changes counts the changes of served resources since the start.
	Changes func() uint64
	// Admin is the admin address of the relay, and XDS the address of a listener, as in the config. The shown
	// commands contain them if they are not the defaults.
	Admin, XDS string
}

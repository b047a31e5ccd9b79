package ui

import (
	"net/url"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Resources is the merged view, as the pages read it.
type Resources interface {
	Kinds() []mirror.Kind
	Counts() map[mirror.Kind]int
	All(kind mirror.Kind) []*mirror.Resource
	Resolve(key mirror.Key) mirror.Resolution
}

// Clients are the connected clients, as the pages read them.
type Clients interface {
	Clients() []downstream.ClientStatus
}

// Server is the admin server.
type Server interface {
	Readiness() admin.Readiness
	Version() admin.Version
}

// Data is what the pages show. The functions may be called from any goroutine. None is nil.
type Data struct {
	Resources Resources
	Clients   Clients
	Upstreams func() []upstreams.Status
	// Clusters returns the state of each element of "clusters" in the config.
	Clusters func() []clusters.Status
	Explain  func(q url.Values) (*admin.Explanation, error)
	// Contests, HostConflicts and NotFollowed are as in admin.Views, and Conflicts how many keys
	// and hosts there are of them.
	Contests      func(kinds ...mirror.Kind) []conflicts.KeyConflict
	HostConflicts func() []conflicts.HostConflict
	NotFollowed   func() []conflicts.NotFollowed
	Conflicts     func() (keys, hosts int)
	// Apart tells why the claims of a host are not united.
	Apart   func(conflicts.HostConflict) string
	LeftOut func() []intake.LeftOut
	Held    func(upstream string) ([]intake.HeldUpstream, error)
	History func(upstream string) ([]state.Revision, error)
	// Diff returns what a revision has changed. Its cost grows with what the history has.
	Diff func(upstream string, revision uint64) (upstreams.Differences, error)
	// Events returns a page of the journal.
	Events func(events.Query) events.Page
	// Changes counts the changes of served resources since the start.
	Changes func() uint64
	// Config returns the effective config as YAML.
	Config func() ([]byte, error)
	// ConfigFile is the path of the config file.
	ConfigFile string
	// Admin is the admin address of the relay, and XDS the address of a listener, as the config has
	// them: commands that are shown name those that are not the usual ones.
	Admin, XDS string
}

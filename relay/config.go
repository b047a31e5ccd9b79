package relay

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/downstream/admit"
	"meshrelay/downstream/views"
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
	"meshrelay/push"
	"meshrelay/state"
)

// merging returns a function that has an aggregate merge by a config.
func merging(cfg *config.Config) (use func(*mirror.Aggregate), err error) {
	policies, others, err := MergePolicies(cfg.Merge)
	if err != nil {
		return nil, err
	}
	owners, err := merge.OwnersByName(cfg.HostConflicts)
	return func(a *mirror.Aggregate) {
		a.SetPolicies(policies, others)
		a.SetOwners(owners)
	}, err
}

// MergePolicies returns the merge policies of a config: by kind, and for all other kinds.
func MergePolicies(rules []config.Merge) (byKind map[mirror.Kind]mirror.Policy, others mirror.Policy, err error) {
	byKind = map[mirror.Kind]mirror.Policy{}
	for _, m := range rules {
		if len(m.Kinds) == 0 {
			if others, err = merge.ByName(m.Policy, mirror.Kind{}); err != nil {
				return nil, nil, fmt.Errorf("merge: %w", err)
			}
		}
		for _, word := range m.Kinds {
			kinds, err := mirror.ParseKinds(word)
			if err != nil {
				return nil, nil, fmt.Errorf("merge: %w", err)
			}
			for _, kind := range kinds {
				if byKind[kind], err = merge.ByName(m.Policy, kind); err != nil {
					return nil, nil, fmt.Errorf("merge: %w", err)
				}
			}
		}
	}
	of := byKind[federation.ServiceEntry]
	if of == nil {
		of = others
	}
	byKind[federation.ServiceEntry] = merge.ForEntries(of)
	return byKind, others, nil
}

func viewsOf(all []config.View) ([]views.View, error) {
	var out []views.View
	for _, v := range all {
		filter, err := filter.New(v.Rules())
		if err != nil {
			return nil, fmt.Errorf("view %s: %w", v.Name, err)
		}
		view := views.View{Name: v.Name, Match: views.Match(v.Match), Default: v.Default, ClusterID: v.ClusterID}
		// A view without rules accepts every resource: Accepts stays nil.
		if sources := v.Sources; len(sources) > 0 || v.Rules().LimitsContent() {
			view.Sources, view.Picks = sources, v.Rules().LimitsContent()
			view.Shows = fmt.Sprintf("%q %q", sources, []any{v.Kinds, v.Namespaces.Include, v.Namespaces.Exclude, v.Selector, v.Expression})
			view.Accepts = func(r *mirror.Resource) bool {
				return (len(sources) == 0 || slices.Contains(sources, r.Source())) && filter.Check(r).Passes()
			}
		}
		out = append(out, view)
	}
	return out, nil
}

const (
	// pushShare is the share of the CPUs that pushing may take. More leaves too little for what else has to be in time.
	pushShare = 0.5
	quiet     = 100 * time.Millisecond // ends a burst of an upstream: of an istiod that starts, a directory that is copied
	longest   = time.Second            // that a change waits, whatever pushing costs
)

func pushOptions() push.Options {
	return push.Options{After: quiet, Max: longest, MaxShare: pushShare, CPUs: runtime.GOMAXPROCS(0)}
}

// keeperOptions returns the settings of the state that a reload can change.
func keeperOptions(s config.State) state.Options {
	return state.Options{History: state.History(s.History)}
}

func adminConfig(cfg *config.Config) admin.Config {
	return admin.Config{Address: cfg.Admin.Address, Socket: cfg.AdminSocket(), OwnSocketDir: ownSocketDir(cfg)}
}

// ownSocketDir reports whether only the relay uses the directory of the admin socket: it is state.dir or
// the default.
func ownSocketDir(cfg *config.Config) bool {
	if cfg.Admin.Socket == "" {
		return true
	}
	dir, err := filepath.Abs(cfg.State.Dir)
	return err == nil && cfg.State.Dir != "" && filepath.Dir(cfg.AdminSocket()) == dir
}

// limitsOf returns the limits of clients that a reload can change. A connection is of no use without a stream.
func limitsOf(d config.Downstream) downstream.Limits {
	return downstream.Limits{Limits: admit.Limits{MaxConnections: d.MaxStreams, MaxStreams: d.MaxStreams, MaxRequestBytes: d.MaxRequestBytes}}
}

func downstreamConfig(cfg *config.Config, version string) (downstream.Config, error) {
	d := cfg.Downstream
	all, err := viewsOf(cfg.Views)
	if err != nil {
		return downstream.Config{}, err
	}
	out := downstream.Config{
		NodeID: cfg.Node.ID, RelayName: cfg.Provenance.Relay, Version: version, Views: all, Limits: limitsOf(d),
	}
	for _, l := range d.Listeners {
		listener := downstream.Listener{Address: l.Address, View: l.View, Debug: l.Debug}
		if l.TLS != nil {
			listener.TLS = tlsOf(l)
		}
		out.Listeners = append(out.Listeners, listener)
	}
	return out, nil
}

func tlsOf(l config.Listener) *downstream.TLS {
	t := &downstream.TLS{CertFile: l.TLS.CertFile, KeyFile: l.TLS.KeyFile, AllowAnonymous: l.AllowAnonymous}
	for _, ca := range l.TLS.ClientCAs {
		t.ClientCAs = append(t.ClientCAs, downstream.ClientCA(ca))
	}
	return t
}

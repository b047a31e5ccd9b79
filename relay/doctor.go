package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Doctor is how to look at what a relay needs.
type Doctor struct {
	Config *config.Config
	// Upstream, unless empty, is the only upstream to look at, and nothing else is but MeshConfig.
	Upstream string
	// MeshConfig, unless empty, is a file with the mesh config of an istiod that is to be a client.
	MeshConfig string
	// Running reports whether a relay with that node.id answers at the admin address.
	Running func(ctx context.Context) bool
	// Limit bounds each check, and Files the reading of the files of an upstream.
	Limit, Files time.Duration
	// Memory is the memory limit of the process, math.MaxInt64 for none.
	Memory int64
}

// Examine checks everything that a relay with a config needs. It changes nothing.
func (d Doctor) Examine(ctx context.Context) []doctor.Finding {
	var checks []doctor.Check
	if d.Upstream == "" {
		checks = append(checks, doctor.Check{Name: "host", Run: d.host})
	}
	env := upstreams.Env{Node: d.Config.Node, Relay: d.Config.Provenance.Relay, Log: slog.New(slog.DiscardHandler)}
	if d.MeshConfig != "" {
		checks = append(checks, doctor.Check{Name: "mesh", Run: func(context.Context) []doctor.Finding { return meshConfig(d.MeshConfig, d.Config.Downstream.Listeners) }})
	}
	for _, u := range d.Config.Upstreams {
		if d.Upstream == "" || u.Name == d.Upstream {
			checks = append(checks, d.upstreamChecks(u, env)...)
		}
	}
	if d.Upstream == "" {
		checks = append(checks, clusters.Probe(d.Config)...)
	}
	found := doctor.Run(ctx, d.Limit, checks)
	if d.Upstream != "" {
		return found
	}
	found = append(found, d.memory(found))
	slices.SortStableFunc(found, func(a, b doctor.Finding) int { // what is about the relay comes first
		return cmp.Compare(min(len(a.Upstream+a.Clusters), 1), min(len(b.Upstream+b.Clusters), 1))
	})
	return found
}

func (d Doctor) upstreamChecks(u config.Upstream, env upstreams.Env) (checks []doctor.Check) {
	kind, err := upstreams.KindOf(Kinds(), u)
	if err != nil {
		return nil
	}
	if kind.Probe != nil {
		checks = append(checks, kind.Probe(u, env)...)
	}
	if kind.Read != nil {
		checks = append(checks, doctor.Check{Name: "files", Upstream: u.Name, Run: func(ctx context.Context) []doctor.Finding { return d.files(ctx, kind, u) }})
	}
	return checks
}

const (
	// maxProblems bounds the files with mistakes that are named.
	maxProblems = 5
	// LookAtFiles is how long doctor reads the files of upstreams, when these are not more than atOnce.
	LookAtFiles = 700 * time.Millisecond
	atOnce      = 16
)

// files checks an upstream of files, for its part of Files at most.
func (d Doctor) files(ctx context.Context, kind upstreams.Kind, u config.Upstream) (found []doctor.Finding) {
	limit := d.Files / time.Duration(1+len(d.Config.Upstreams)/atOnce)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	has := kind.Read(ctx, u)
	for _, err := range has.Problems[:min(len(has.Problems), maxProblems)] {
		found = append(found, doctor.Bad("files", "", "a resource or file is refused", err.Error(), "correct it: relay validate lists all"))
	}
	if more := len(has.Problems) - maxProblems; more > 0 {
		found = append(found, doctor.Bad("files", "", fmt.Sprintf("%d more mistakes", more), "", "see relay validate"))
	}
	switch {
	case has.Files < has.All:
		f := doctor.Good("files", "", "looked at %d resources in %v: %d of %d files are read to the end, and the rest is left out: relay validate reads all",
			has.Resources, limit, has.Files, has.All)
		f.Resources = has.About
		found = append(found, f)
	case len(found) == 0:
		f := doctor.Good("files", "", "%d resources", has.Resources)
		f.Resources = has.Resources
		found = append(found, f)
	}
	return found
}

// host checks what is on this host.
func (d Doctor) host(ctx context.Context) (found []doctor.Finding) {
	cfg := d.Config
	running := d.Running(ctx)
	for i, l := range cfg.Downstream.Listeners {
		found = append(found, own(running, doctor.Port(fmt.Sprintf("downstream.listeners[%d].address", i), l.Address)))
		if l.TLS != nil {
			found = append(found, doctor.OwnCertificate(l.TLS.CertFile, l.TLS.KeyFile, time.Now()))
		}
	}
	found = append(found, own(running, doctor.Port("admin.address", cfg.Admin.Address)))
	found = append(found, doctor.Socket("admin.socket", cfg.AdminSocket())...)
	if cfg.State.Dir == "" {
		return append(found, doctor.Doubt("state", "", "nothing is kept on disk", "state.dir is not set: after a restart, clients wait until every upstream answers, and there is no history and no rollback",
			"set state: {dir: /var/lib/relay}"))
	}
	state := doctor.Directory("state.dir", cfg.State.Dir)
	if doctor.Worst(state) != doctor.Failed {
		trouble, inUse := local.Probe(cfg.State.Dir)
		state = append(state, stored(cfg.State.Dir, trouble, inUse, running)...)
	}
	return append(found, state...)
}

// stored returns findings about what local.Probe tells of a directory. A relay that runs with the config
// has its directory in use.
func stored(dir string, trouble []error, inUse, running bool) (found []doctor.Finding) {
	if len(trouble) > 0 {
		texts := make([]string, len(trouble))
		for i, err := range trouble {
			texts[i] = err.Error()
		}
		found = append(found, doctor.Bad("state", dir, "what is in the directory can not be used",
			fmt.Sprintf("%s, for user %d: another user may have run the relay there", some(texts), os.Geteuid()),
			fmt.Sprintf("give all of it to the user that runs the relay: chown -R USER %s; move away what is a link or a directory", dir)))
	}
	switch {
	case inUse && running:
		found = append(found, doctor.Good("lock", dir, "in use by the relay that runs already"))
	case inUse:
		found = append(found, doctor.Bad("lock", dir, "in use by another process",
			"a relay with another config has the same state.dir, or the relay of this one runs and does not answer at admin.address; while one has it, another keeps nothing on disk",
			fmt.Sprintf("give each relay a state.dir of its own, or end the other one: fuser -v %s names it", local.LockPath(dir))))
	}
	return found
}

// some returns the first few texts and the number of the rest.
func some(texts []string) string {
	if more := len(texts) - maxProblems; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:maxProblems], "; "), more)
	}
	return strings.Join(texts, "; ")
}

// own makes a taken port one of the relay that runs already.
func own(running bool, f doctor.Finding) doctor.Finding {
	if !running || f.Level != doctor.Failed {
		return f
	}
	return doctor.Good(f.Check, f.Target, "in use by the relay that runs already")
}

// memory compares the resources that the upstreams have with the memory limit.
func (d Doctor) memory(found []doctor.Finding) doctor.Finding {
	counts := map[string]int{} // each address of an upstream may have counted them
	for _, f := range found {
		counts[f.Upstream] = max(counts[f.Upstream], f.Resources)
	}
	n := 0
	for _, c := range counts {
		n += c
	}
	limit := d.Memory
	if limit == math.MaxInt64 {
		limit = 0
	}
	return doctor.Memory(n, limit)
}

// HasUpstream reports whether a config has an upstream of that name.
func HasUpstream(cfg *config.Config, name string) bool {
	return slices.ContainsFunc(cfg.Upstreams, func(u config.Upstream) bool { return u.Name == name })
}

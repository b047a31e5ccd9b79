package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/sink/promotion"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Doctor are the settings of a check of everything that a relay needs.
type Doctor struct {
	Config *config.Config
	// Upstream, unless empty, limits the check to this upstream.
	Upstream string
	// Running reports whether a relay with this node.id answers at the admin address.
	Running func(ctx context.Context) bool
	// Limit bounds each check, and Files the time to read the files of all upstreams.
	Limit, Files time.Duration
	// Memory is the memory limit of the process in bytes, or math.MaxInt64 for none.
	Memory int64
}

// Examine checks everything that a relay with Config needs. It changes nothing.
func (d Doctor) Examine(ctx context.Context) []doctor.Finding {
	var checks []doctor.Check
	if d.Upstream == "" {
		checks = append(checks, doctor.Check{Name: "host", Run: d.host})
	}
	env := upstreams.Env{Node: d.Config.Node, Relay: d.Config.Provenance.Relay, Log: slog.New(slog.DiscardHandler)}
	for _, u := range d.Config.Upstreams {
		if d.Upstream == "" || u.Name == d.Upstream {
			checks = append(checks, d.upstreamChecks(u, env)...)
		}
	}
	if d.Upstream == "" {
		checks = append(append(checks, clusters.Probe(d.Config)...), d.sites()...)
	}
	found := doctor.Run(ctx, d.Limit, checks)
	if d.Upstream != "" {
		return found
	}
	found = append(found, d.memory(found))
	slices.SortStableFunc(found, func(a, b doctor.Finding) int { // findings about the relay come first
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
	// maxProblems is the most mistakes that are listed.
	maxProblems = 5
	// LookAtFiles is how long doctor reads the files of upstreams by default. With more than atOnce
	// upstreams, each gets less.
	LookAtFiles = 700 * time.Millisecond
	atOnce      = 16
)

// files checks an upstream of files. It reads for at most the upstream's part of Files.
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
	found = append(found, has.Objections.Findings("")...)
	switch {
	case has.Files < has.All:
		f := doctor.Good("files", "", "checked %d resources in %v, and %d of %d files to the end: relay validate checks all",
			has.Resources, limit, has.Files, has.All)
		f.Resources = has.About
		found = append(found, f)
	case doctor.Worst(found) != doctor.Failed:
		f := doctor.Good("files", "", "%d resources", has.Resources)
		f.Resources = has.Resources
		found = append(found, f)
	}
	return found
}

// host checks the ports, certificates, socket and state directory of this host.
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
	found = append(found, doctor.Place("socket", "admin.socket", cfg.AdminSocket(), "can be opened")...)
	if cfg.State.Dir == "" {
		return append(found, doctor.Doubt("state", "", "the relay keeps nothing on disk", "state.dir is not set: after a restart, clients wait until every upstream has answered, and there is no history and no rollback",
			"set state: {dir: /var/lib/relay}"))
	}
	state := doctor.Directory("state.dir", cfg.State.Dir)
	if doctor.Worst(state) != doctor.Failed {
		trouble, inUse := local.Probe(cfg.State.Dir)
		state = append(state, stored(cfg.State.Dir, trouble, inUse, running)...)
	}
	return append(found, state...)
}

// stored turns the results of local.Probe into findings. A directory in use is good if the relay of this
// config is running.
func stored(dir string, trouble []error, inUse, running bool) (found []doctor.Finding) {
	if len(trouble) > 0 {
		texts := make([]string, len(trouble))
		for i, err := range trouble {
			texts[i] = err.Error()
		}
		found = append(found, doctor.Bad("state", dir, "the content of the directory can not be used",
			fmt.Sprintf("%s, for user %d: another user may have run the relay there", some(texts), os.Geteuid()),
			fmt.Sprintf("give all files to the user that runs the relay: chown -R USER %s; move links and directories away", dir)))
	}
	switch {
	case inUse && running:
		found = append(found, doctor.Good("lock", dir, "in use by the running relay"))
	case inUse:
		found = append(found, doctor.Bad("lock", dir, "in use by another process",
			"a relay with another config has the same state.dir, or this relay runs and does not answer at admin.address; a second relay keeps nothing on disk",
			fmt.Sprintf("give each relay its own state.dir, or end the other process: fuser -v %s names it", local.LockPath(dir))))
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

// own makes a taken port a good finding when this relay runs already.
func own(running bool, f doctor.Finding) doctor.Finding {
	if !running || f.Level != doctor.Failed {
		return f
	}
	return doctor.Good(f.Check, f.Target, "in use by the running relay")
}

// memory compares the number of resources of all upstreams with the memory limit.
func (d Doctor) memory(found []doctor.Finding) doctor.Finding {
	counts := map[string]int{} // by upstream; the checks of its addresses may each have counted
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

// sites returns the checks of the API servers of sinks and of the orders of replicas.
func (d Doctor) sites() (checks []doctor.Check) {
	add := func(field string, c config.Cluster, namespace string, needs ...map[string][]string) {
		checks = append(checks, doctor.Check{Name: field, Run: func(ctx context.Context) []doctor.Finding {
			return mayDo(ctx, field, &apiserver.Credentials{Cluster: c}, namespace, needs)
		}})
	}
	for _, s := range d.Config.Sinks {
		name := []string{promotion.ObjectName(s.Name)}
		needs := []map[string][]string{
			{"verbs": {"get", "update"}, "apiGroups": {"coordination.k8s.io"}, "resources": {"leases"}, "resourceNames": name},
		}
		verbs := []string{"get", "list", "watch", "create", "patch"}
		if s.Prune {
			verbs = append(verbs, "delete")
		}
		for _, k := range slices.DeleteFunc(mirror.Kinds(), func(k *mirror.KindInfo) bool { return k.Kind == mirror.MeshConfig }) { // it is no object
			needs = append(needs, map[string][]string{"verbs": slices.Clone(verbs), "apiGroups": {k.Kind.Group}, "resources": {k.Plural}, "resourceNames": {""}})
		}
		add("sink "+s.Name, s.Cluster, s.Namespace, needs...)
	}
	if r := d.Config.Replicas; r != nil {
		needs := []map[string][]string{{"verbs": {"get", "update", "watch"}, "apiGroups": {""}, "resources": {"configmaps"}, "resourceNames": {orders.Name}}}
		if slices.ContainsFunc(d.Config.Upstreams, tellsConditions) || slices.ContainsFunc(d.Config.Clusters, func(c config.Clusters) bool { return tellsConditions(c.Upstream) }) {
			needs = append(needs, map[string][]string{"verbs": {"get", "update"}, "apiGroups": {"coordination.k8s.io"}, "resources": {"leases"}, "resourceNames": {conditionsLease}})
		}
		add("replicas", r.Cluster, r.Namespace, needs...)
	}
	return checks
}

// mayDo compares needs, each of one group, resource and name, with the rules that an API server has for the relay.
func mayDo(ctx context.Context, field string, creds *apiserver.Credentials, namespace string, needs []map[string][]string) []doctor.Finding {
	client := apiserver.NewClient(creds, "meshrelay (doctor)")
	defer client.Close()
	var told struct {
		Status struct{ ResourceRules []map[string][]string }
	}
	err := client.Refresh(ctx)
	if c := client.Current(); err == nil {
		field += " at " + c.Server()
		err = c.Write(ctx, apiserver.Write{Method: http.MethodPost, Path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", Type: apiserver.TypeJSON,
			Body: fmt.Appendf(nil, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":%q}}`, namespace)}, &told)
	}
	var lacks []string
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	for _, n := range needs {
		for _, r := range told.Status.ResourceRules {
			if has(r["apiGroups"], n["apiGroups"][0]) && has(r["resources"], n["resources"][0]) && (len(r["resourceNames"]) == 0 || has(r["resourceNames"], n["resourceNames"][0])) {
				n["verbs"] = slices.DeleteFunc(n["verbs"], func(verb string) bool { return has(r["verbs"], verb) })
			}
		}
		if len(n["verbs"]) > 0 {
			lacks = append(lacks, strings.Join(n["verbs"], ", ")+" "+n["resources"][0])
		}
	}
	switch {
	case err != nil:
		return []doctor.Finding{apiserver.Finding(field, err)}
	case len(lacks) == 0:
		return []doctor.Finding{doctor.Good("permissions", field, "the relay has its rights")}
	}
	return []doctor.Finding{doctor.Doubt("permissions", field, "the relay may lack rights", "no rule that the server tells grants "+some(lacks), "grant them as deploy/kubernetes does; kinds that the view leaves out need none")}
}

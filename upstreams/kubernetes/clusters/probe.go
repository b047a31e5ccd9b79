package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"syscall"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
)

// cure is for whatever kubeconfig is not used: the reason tells what of it.
const cure = "correct the kubeconfig; if you trust who writes it, allow its server or proxy in clusters[].allowServers, and its program in clusters[].allowExec; or name the cluster in clusters[].ignore"

// maxNamed bounds the clusters in the text of a finding.
const maxNamed = 5

// Probe returns a check for each part of "clusters" in a config: whether its place can be read and followed,
// whether the allowed programs exist, and which kubeconfigs can not be used. The check does not connect to
// the clusters. Another check is for the list of clusters in the state.
func Probe(cfg *config.Config) (checks []doctor.Check) {
	checks = append(checks, doctor.Check{Name: "state", Run: func(context.Context) []doctor.Finding { return remembered(cfg.State.Dir) }})
	for i, c := range cfg.Clusters {
		one := *cfg
		one.Clusters = cfg.Clusters[i : i+1]
		checks = append(checks, doctor.Check{Name: "clusters", Clusters: c.Name, Run: func(ctx context.Context) []doctor.Finding {
			r := readerOf(c, Usual)
			defer r.client.Close()
			entries, found, ok := r.probe(ctx)
			if found = append(found, programs(c)...); len(c.AllowExec) > 0 && len(c.AllowServers) == 0 {
				found = append(found, doctor.Doubt("servers", "", "no cluster whose credentials a program gives is followed", "clusters[].allowServers is missing",
					"list the servers that may get those credentials in clusters[].allowServers"))
			}
			if !ok {
				return found
			}
			f, _ := New("", slog.New(slog.DiscardHandler))
			f.Adopt(&one)
			p := f.parts[0]
			p.stop = func() {}
			f.told(p, p.reading, entries, nil)
			return append(found, judged(f.Status()[0])...)
		}})
	}
	return checks
}

// remembered checks that the list of clusters on disk can be read, if there is one.
func remembered(dir string) []doctor.Finding {
	m := memory{dir: dir}
	if _, err := m.load(); err != nil && !errors.Is(err, syscall.ENOTDIR) { // else the state reports it
		return []doctor.Finding{doctor.Doubt("state", dir, "the clusters that were found before can not be read", err.Error(),
			"give the file to the user that runs the relay: chown -R USER "+dir+"; a damaged one is replaced when all clusters are found anew")}
	}
	return nil
}

// programs checks that the programs exist which kubeconfigs may run.
func programs(c config.Clusters) (found []doctor.Finding) {
	allowed := slices.Clone(c.Secrets.Cluster.AllowExec)
	for _, one := range c.AllowExec {
		allowed = append(allowed, one.Command)
	}
	for _, command := range slices.Compact(slices.Sorted(slices.Values(allowed))) {
		if _, err := exec.LookPath(command); err != nil {
			found = append(found, doctor.Doubt("program", command, "an allowed program can not be run", err.Error(), "install it where the relay runs, in a directory of PATH, or take it out of allowExec"))
		}
	}
	return found
}

// judged returns findings about the found kubeconfigs.
func judged(st Status) (found []doctor.Finding) {
	for _, r := range st.Refused[:min(len(st.Refused), maxNamed)] {
		what := "what is there is not followed"
		if r.ID != "" {
			what = fmt.Sprintf("cluster %s is not followed", r.ID)
		}
		found = append(found, doctor.Doubt("kubeconfig", r.Origin, what, r.Reason, cure))
	}
	if more := st.RefusedTotal - maxNamed; more > 0 {
		found = append(found, doctor.Doubt("kubeconfig", st.From, fmt.Sprintf("%d more are not followed", more), "", "see relay clusters, when the relay runs"))
	}
	if len(st.Clusters) == 0 && st.RefusedTotal == 0 {
		return append(found, doctor.Doubt("clusters", st.From, "no cluster is found", "there is no kubeconfig", "look at namespace and selector; istioctl create-remote-secret writes such Secrets"))
	}
	if len(st.Clusters) > 0 {
		var names []string
		for _, c := range st.Clusters {
			names = append(names, c.ID)
		}
		found = append(found, doctor.Good("clusters", st.From, "found: %s", text.Some(names, maxNamed)))
	}
	return found
}

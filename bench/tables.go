package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// table is one table of the documents, without its heading.
type table struct {
	columns []string
	rows    [][]string
}

func (t table) String() string {
	if len(t.rows) == 0 {
		return "Not measured.\n"
	}
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.columns)
	line(slices.Repeat([]string{"---"}, len(t.columns)))
	for _, cells := range t.rows {
		line(cells)
	}
	return b.String()
}

// tableOf has a row for each result that row makes one of.
func tableOf(medians []result, columns []string, row func(result) []string) table {
	t := table{columns: columns}
	for _, m := range medians {
		if m.Error != "" {
			continue
		}
		if cells := row(m); cells != nil {
			t.rows = append(t.rows, cells)
		}
	}
	return t
}

// block is a part of a document that is made from results. Its name stands in the marker there.
type block struct {
	name  string
	title string // of the tables that follow a run
	text  func(r *report, medians []result) string
}

func blocks() []block {
	of := func(f func([]result) table) func(*report, []result) string {
		return func(_ *report, medians []result) string { return f(medians).String() }
	}
	return []block{
		{"run", "The run", func(r *report, _ []result) string { return r.about() }},
		{"targets", "Targets", of(targetTable)},
		{"short", "In short", of(shortTable)},
		{"singles", "Single changes", of(singlesTable)},
		{"burst", "A burst of changes within a second", of(burstTable)},
		{"start", "Starts", of(startTable)},
		{"rates", "Steady rates of changes", of(ratesTable)},
		{"clients", "What the bench itself uses", of(ownTable)},
		{"restart", "The relay is restarted, and the delta clients resume", of(restartTable)},
		{"disk", "Starts from what is on disk", of(diskTable)},
		{"rules", "What rules cost", of(rulesTable)},
		{"stall", "Two clients stop reading", of(stallTable)},
		{"kubernetes", "API servers", of(kubernetesTable)},
		{"services", "Services of API servers", of(servicesTable)},
		{"sinks", "Clusters that are written into", of(sinksTable)},
		{"failed", "Failed", of(failedTable)},
		{"left-out", "Left out", func(*report, []result) string { return leftOutTable().String() }},
		{"contenders", "", func(*report, []result) string { return contendersTable().String() }},
		{"method", "", func(*report, []result) string { return method() }},
		{"coefficients", "Coefficients", func(_ *report, medians []result) string { return coefficientTable(medians).String() }},
		{"predictions", "Predictions", of(predictionTable)},
		{"examples", "Examples", of(exampleTable)},
	}
}

// tables returns everything that has a title.
func (r *report) tables() string {
	var b strings.Builder
	medians := r.medians()
	for _, block := range blocks() {
		if block.title != "" {
			fmt.Fprintf(&b, "## %s\n\n%s\n", block.title, block.text(r, medians))
		}
	}
	return b.String()
}

// about tells what was run, when and on what.
func (r *report) about() string {
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+": "+r.Versions[name])
	}
	var seconds float64
	for _, res := range r.Results {
		seconds += res.Seconds
	}
	lasted := ""
	if seconds > 0 {
		lasted = fmt.Sprintf(", %.0f minutes", seconds/60)
	}
	note := ""
	if r.Note != "" {
		note = "\n" + r.Note + "\n"
	}
	return fmt.Sprintf("`%s`\n\n%s%s, %d CPUs (%s), Linux %s, %s. Built with: %s.\n%s",
		strings.Join(r.Command, " "), r.Date, lasted, r.CPUs, r.Machine, r.Kernel, r.Go, strings.Join(versions, "; "), note)
}

func singlesTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "runs × changes", "first sync, first / last", "CPU a change", "median / p99 / max", "bytes a change and client", "RSS / peak",
	}, func(m result) []string {
		if m.Changes == 0 || m.Kubernetes != nil || m.Sink != nil {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, fmt.Sprintf("%d × %d", m.Run, m.Changes), duration(m.SyncFirstMS) + " / " + duration(m.SyncLastMS), duration(m.CPUPerChangeMS),
			durations(m.MedianMS, m.P99MS, m.MaxMS), size(m.BytesPerChange), memory(m),
		}
	})
}

func burstTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "changes", "until all hold all", "CPU", "bytes a client", "messages a client",
	}, func(m result) []string {
		if m.Burst == 0 {
			return nil
		}
		return []string{m.Scenario, m.Contender, fmt.Sprint(m.Burst), duration(m.BurstMS), duration(m.BurstCPUMS), size(m.BurstBytes), fmt.Sprintf("%.0f", m.BurstMessages)}
	})
}

func startTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "CPU until all hold all", "first / last client", "messages to a client", "the largest", "bytes a client", "RSS / peak",
	}, func(m result) []string {
		if !strings.HasPrefix(m.Scenario, startPrefix) {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, duration(m.SyncCPUMS), durations(m.SyncFirstMS, m.SyncLastMS), fmt.Sprintf("%.0f", m.SyncMessages), size(m.LargestBytes), size(m.SyncBytes), memory(m),
		}
	})
}

// startPrefix begins the names of scenarios about starts.
const startPrefix = "start-"

func ratesTable(medians []result) table {
	t := table{columns: []string{
		"scenario", "contender", "one change every", "median / p99 / max", "CPU, of one core", "messages a client and second", "RSS after",
	}}
	for _, m := range medians {
		for _, r := range m.Rates {
			every := gapText(r.GapMS)
			if r.Together > 0 {
				every += fmt.Sprintf(", %d at once", r.Together)
			}
			t.rows = append(t.rows, []string{
				m.Scenario, m.Contender, every, durations(r.MedianMS, r.P99MS, r.MaxMS),
				fmt.Sprintf("%.2f", r.Cores), fmt.Sprintf("%.0f", r.Messages), fmt.Sprintf("%.0f MiB", r.RSSMiB),
			})
		}
	}
	return t
}

func ownTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "last client", "CPU until then, contender / bench", "share of the bench", "CPU a change, contender / bench",
	}, func(m result) []string {
		if m.SyncOwnCPUMS == 0 || m.Sink != nil || m.Contender != "relay" && m.Contender != "floor" {
			return nil
		}
		change := ""
		if m.Changes > 0 {
			change = durations(m.CPUPerChangeMS, m.OwnPerChangeMS)
		}
		return []string{
			m.Scenario, m.Contender, duration(m.SyncLastMS), durations(m.SyncCPUMS, m.SyncOwnCPUMS), fmt.Sprintf("%.0f %%", 100*m.SyncOwnCPUMS/(m.SyncCPUMS+m.SyncOwnCPUMS)), change,
		}
	})
}

func restartTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "until all are answered", "bytes a client", "share of a full sync",
	}, func(m result) []string {
		if !m.Restarted {
			return nil
		}
		return []string{m.Scenario, m.Contender, duration(m.ResumeMS), size(m.ResumeBytes), fmt.Sprintf("%.3f %%", 100*m.ResumeBytes/m.SyncBytes)}
	})
}

func diskTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "runs × starts", "median / shortest / longest", "CPU / the client's own", "on disk", "peak", "messages",
	}, func(m result) []string {
		d := m.Disk
		if d == nil {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, fmt.Sprintf("%d × %d", m.Run, d.Starts), durations(d.MedianMS, d.MinMS, d.MaxMS),
			durations(d.CPUMS, d.ClientCPUMS), mibText(d.StateMiB), mibText(d.PeakMiB), fmt.Sprintf("%.0f", d.Messages),
		}
	})
}

func rulesTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "runs × changes", "CPU a change, without / with", "ratio", "median, without / with", "CPU until all hold all, without / with", "RSS, without / with",
	}, func(m result) []string {
		p, ok := find(medians, m.Scenario, "relay")
		if m.Contender != "relay-rules" || !ok {
			return nil
		}
		return []string{
			m.Scenario, fmt.Sprintf("%d × %d", m.Run, m.Changes), durations(p.CPUPerChangeMS, m.CPUPerChangeMS), ratio(m.CPUPerChangeMS, p.CPUPerChangeMS),
			durations(p.MedianMS, m.MedianMS), durations(p.SyncCPUMS, m.SyncCPUMS), fmt.Sprintf("%.0f / %.0f MiB", p.RSSMiB, m.RSSMiB),
		}
	})
}

func stallTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "p99 of the others, before / during", "RSS grows by, against no SotW client / against both reading", "RSS / peak", "messages to each once it reads again", "until it holds all",
	}, func(m result) []string {
		if m.Stall == nil {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, durations(m.Stall.P99BeforeMS, m.Stall.P99DuringMS), fmt.Sprintf("%.1f / %.1f MiB", m.Stall.GrownMiB, m.Stall.StalledMiB),
			memory(m), fmt.Sprintf("%.1f", m.Stall.ResumedMessages), duration(m.Stall.ResumedMS),
		}
	})
}

func kubernetesTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "first list, time / CPU", "CPU of the API server", "change to a client, median / p99", "CPU a change", "RSS / peak", "status writes a second: pushes, cores", "list of the same: CPU, of the first",
	}, func(m result) []string {
		k := m.Kubernetes
		if k == nil || m.Scenario == servicesScenario {
			return nil
		}
		cells := []string{m.Scenario, m.Contender, durations(k.ListMS, k.ListCPUMS), duration(k.ServerCPUMS), "", "", fmt.Sprintf("%.0f / %.0f MiB", k.ListedRSSMiB, k.ListedPeakMiB), "", ""}
		if m.Changes > 0 {
			cells[4], cells[5], cells[6] = durations(m.MedianMS, m.P99MS), duration(m.CPUPerChangeMS), memory(m)
		}
		if k.Statuses > 0 {
			cells[7] = fmt.Sprintf("%.0f: %.0f, %.2f", k.StatusRate, k.StatusPushes, k.StatusCores)
		}
		if k.Relisted {
			cells[8] = fmt.Sprintf("%s, %s", duration(k.RelistCPUMS), ratio(k.RelistCPUMS, k.ListCPUMS))
		}
		return cells
	})
}

func servicesTable(medians []result) table {
	return tableOf(medians, []string{
		"scenario", "contender", "until all hold all, time / CPU", "CPU of the API server", "RSS / peak", "status writes a second: pushes, cores, allocations each",
	}, func(m result) []string {
		k := m.Kubernetes
		if k == nil || m.Scenario != servicesScenario {
			return nil
		}
		cells := []string{m.Scenario, m.Contender, durations(k.ListMS, k.ListCPUMS), duration(k.ServerCPUMS), memory(m), ""}
		if m.RSSMiB == 0 { // it serves nobody
			cells[4] = fmt.Sprintf("%.0f / %.0f MiB", k.ListedRSSMiB, k.ListedPeakMiB)
		}
		if k.Statuses > 0 {
			cells[5] = fmt.Sprintf("%.0f: %.0f, %.2f, %.0f", k.StatusRate, k.StatusPushes, k.StatusCores, k.StatusAllocs)
		}
		return cells
	})
}

func failedTable(medians []result) table {
	t := table{columns: []string{"scenario", "contender", "reason"}}
	for _, m := range medians {
		if m.Error == "" {
			continue
		}
		reason, _, _ := strings.Cut(m.Error, "\n")
		if len(reason) > 80 {
			reason = strings.ToValidUTF8(reason[:80], "") + "…"
		}
		t.rows = append(t.rows, []string{m.Scenario, m.Contender, reason})
	}
	if len(t.rows) == 0 {
		t.rows = [][]string{{"none", "", ""}}
	}
	return t
}

// leftOutTable tells which contenders are not run in a scenario that others are compared in.
func leftOutTable() table {
	t := table{columns: []string{"contender", "reason", "scenarios"}}
	scenariosOf := map[[2]string][]string{}
	for _, s := range scenarios() {
		for name, reason := range s.Without {
			scenariosOf[[2]string{name, reason}] = append(scenariosOf[[2]string{name, reason}], s.Name)
		}
	}
	keys := slices.SortedFunc(maps.Keys(scenariosOf), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		t.rows = append(t.rows, []string{k[0], k[1], strings.Join(scenariosOf[k], ", ")})
	}
	return t
}

func contendersTable() table {
	t := table{columns: []string{"contender", ""}}
	for _, c := range contenders(binaries{}) {
		t.rows = append(t.rows, []string{c.name, c.what})
	}
	return t
}

// method tells how the figures come about.
func method() string {
	return fmt.Sprintf("*First sync* is from the start of the process to the first and to the last client that holds everything. "+
		"*A change* is one resource, made %v after the previous one was everywhere, the first at least %v after the first sync; of linear and istiod, which have no such rest, %d changes are timed. Its time is from the moment the control plane has it to each client's having it; "+
		"CPU is user and system time of the contender's process, everything in between included; bytes are of the gRPC messages. "+
		"RSS is read at least %v after the first sync and %v after the last change, and after steady rates at their end; "+
		"the peak is of the whole run, or of the start in the scenarios `%s*`. A control plane that speaks SotW sends its full state on each change, and waits %v before it does so again, as istiods do: "+
		"that is part of the times at steady rates. The registry of `registry*` does not wait.\n", gap, rest, slowChanges, age, rest, startPrefix, pushInterval)
}

func memory(m result) string { return fmt.Sprintf("%.0f / %.0f MiB", m.RSSMiB, m.PeakMiB) }

func ratio(a, b float64) string {
	if b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

func gapText(ms float64) string { return fmt.Sprintf("%.4g ms", ms) }

func durations(ms ...float64) string {
	texts := make([]string, len(ms))
	for i := range ms {
		texts[i] = duration(ms[i])
	}
	return strings.Join(texts, " / ")
}

func duration(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

func size(bytes float64) string {
	switch {
	case bytes < 10_000:
		return fmt.Sprintf("%.0f B", bytes)
	case bytes < 1_000_000:
		return fmt.Sprintf("%.0f kB", bytes/1000)
	case bytes < 1e9:
		return fmt.Sprintf("%.2f MB", bytes/1e6)
	}
	return fmt.Sprintf("%.2f GB", bytes/1e9)
}

package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is all results of one invocation.
type report struct {
	Command  []string          `json:"command"`
	Date     string            `json:"date"`
	Machine  string            `json:"machine"`
	CPUs     int               `json:"cpus"`
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"`
	Results  []result          `json:"results"`
}

func newReport(command []string, bin binaries) *report {
	r := &report{
		Command: append([]string{"bench"}, command[1:]...), Date: time.Now().UTC().Format(time.DateOnly),
		CPUs: runtime.NumCPU(), Go: runtime.Version(), Versions: map[string]string{},
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				r.Machine = strings.TrimSpace(value)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(b))
	}
	for name, path := range map[string]string{"relay": bin.relay, "floor": bin.floor, "linear": bin.linear, "istiod": bin.istiod} {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			continue
		}
		for _, m := range info.Deps {
			switch {
			case m.Path == "google.golang.org/grpc":
				r.Versions[name] = strings.TrimPrefix(r.Versions[name]+", grpc "+m.Version, ", ")
			case name == "linear" && m.Path == "github.com/envoyproxy/go-control-plane",
				name == "istiod" && m.Path == "istio.io/istio":
				r.Versions[name] = strings.TrimSuffix(m.Path+" "+m.Version+", "+r.Versions[name], ", ")
			}
		}
		r.Versions[name] = strings.TrimPrefix(r.Versions[name]+", "+info.GoVersion, ", ")
	}
	return r
}

func readReport(path string) (*report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// save writes the results that there are, whole or not at all.
func (r *report) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "results.json")
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// write saves the results, writes their tables and the plots, and shows the tables. The
// tables are shown also when they can not be written.
func (r *report) write(dir string) error {
	var tables bytes.Buffer
	r.tables(&tables)
	_, err := os.Stdout.Write(tables.Bytes())
	if err := errors.Join(err, r.save(dir)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.md"), tables.Bytes(), 0o644); err != nil {
		return err
	}
	return r.plot(filepath.Join(dir, "cpu.svg"))
}

// line is a result in short.
func (r result) line() string {
	if r.Error != "" {
		return fmt.Sprintf("%s %s: %s", r.Scenario, r.Contender, r.Error)
	}
	if r.Stall != nil {
		return fmt.Sprintf("%s %s: p99 %.1f ms before, %.1f ms during; %+.1f MiB, %+.1f by not reading", r.Scenario, r.Contender, r.Stall.P99BeforeMS, r.Stall.P99DuringMS, r.Stall.GrownMiB, r.Stall.StalledMiB)
	}
	if len(r.Rates) > 0 {
		line := fmt.Sprintf("%s %s:", r.Scenario, r.Contender)
		for _, rate := range r.Rates {
			line += fmt.Sprintf(" every %.4g ms %.1f/%.1f/%.1f ms, %.2f cores, %.0f messages;", rate.GapMS, rate.MedianMS, rate.P99MS, rate.MaxMS, rate.Cores, rate.Messages)
		}
		return line
	}
	if d := r.Disk; d != nil {
		return fmt.Sprintf("%s %s: %d starts, %.0f..%.0f ms, median %.0f; %.0f ms of CPU, the client's %.0f; %.0f MiB on disk, peak %.0f MiB",
			r.Scenario, r.Contender, d.Starts, d.MinMS, d.MaxMS, d.MedianMS, d.CPUMS, d.ClientCPUMS, d.StateMiB, d.PeakMiB)
	}
	line := fmt.Sprintf("%s %s: sync %.0f..%.0f ms; %.1f/%.1f/%.1f ms; %.2f ms of CPU and %.0f B a change; %.0f, peak %.0f MiB; burst %.0f ms, %.0f ms of CPU, %.1f messages",
		r.Scenario, r.Contender, r.SyncFirstMS, r.SyncLastMS, r.MedianMS, r.P99MS, r.MaxMS, r.CPUPerChangeMS, r.BytesPerChange, r.RSSMiB, r.PeakMiB, r.BurstMS, r.BurstCPUMS, r.BurstMessages)
	if r.Restarted {
		line += fmt.Sprintf("; resumed in %.0f ms with %.0f B of %.0f", r.ResumeMS, r.ResumeBytes, r.SyncBytes)
	}
	return line
}

// medians joins the runs of each scenario and contender: each figure is the median of the
// runs that have it.
func (r *report) medians() []result {
	var out []result
	groups := map[[2]string][]result{}
	var order [][2]string
	for _, res := range r.Results {
		k := [2]string{res.Scenario, res.Contender}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], res)
	}
	for _, k := range order {
		runs := groups[k]
		good := slices.DeleteFunc(slices.Clone(runs), func(r result) bool { return r.Error != "" })
		if len(good) == 0 {
			out = append(out, runs[0])
			continue
		}
		m := good[0]
		m.Run = len(good)
		mediansOf(&m, good, figures, func(r *result) *result { return r })
		if m.Stall != nil {
			m.Stall = &stallResult{}
			mediansOf(m.Stall, good, stallFigures, func(r *result) *stallResult { return r.Stall })
		}
		if m.Disk != nil {
			m.Disk = &diskResult{Starts: m.Disk.Starts}
			mediansOf(m.Disk, good, diskFigures, func(r *result) *diskResult { return r.Disk })
		}
		m.Rates = slices.Clone(m.Rates)
		for i := range m.Rates {
			mediansOf(&m.Rates[i], good, rateFigures, func(r *result) *rateResult { return &r.Rates[i] })
		}
		out = append(out, m)
	}
	return out
}

// mediansOf sets each figure to its median over the runs; part finds in a run what has the figures.
func mediansOf[R, T any](to *T, runs []R, figures []func(*T) *float64, part func(*R) *T) {
	for _, f := range figures {
		values := make([]float64, len(runs))
		for i := range runs {
			values[i] = *f(part(&runs[i]))
		}
		*f(to) = median(values)
	}
}

var figures = []func(*result) *float64{
	func(r *result) *float64 { return &r.SyncFirstMS },
	func(r *result) *float64 { return &r.SyncLastMS },
	func(r *result) *float64 { return &r.SyncBytes },
	func(r *result) *float64 { return &r.SyncCPUMS },
	func(r *result) *float64 { return &r.MedianMS },
	func(r *result) *float64 { return &r.P99MS },
	func(r *result) *float64 { return &r.MaxMS },
	func(r *result) *float64 { return &r.CPUPerChangeMS },
	func(r *result) *float64 { return &r.BytesPerChange },
	func(r *result) *float64 { return &r.RSSMiB },
	func(r *result) *float64 { return &r.PeakMiB },
	func(r *result) *float64 { return &r.BurstMS },
	func(r *result) *float64 { return &r.BurstCPUMS },
	func(r *result) *float64 { return &r.BurstBytes },
	func(r *result) *float64 { return &r.BurstMessages },
	func(r *result) *float64 { return &r.ResumeMS },
	func(r *result) *float64 { return &r.ResumeBytes },
}

var stallFigures = []func(*stallResult) *float64{
	func(r *stallResult) *float64 { return &r.P99BeforeMS },
	func(r *stallResult) *float64 { return &r.P99DuringMS },
	func(r *stallResult) *float64 { return &r.GrownMiB },
	func(r *stallResult) *float64 { return &r.StalledMiB },
	func(r *stallResult) *float64 { return &r.ResumedMessages },
	func(r *stallResult) *float64 { return &r.ResumedMS },
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// tables writes the medians as Markdown.
func (r *report) tables(w io.Writer) {
	fmt.Fprintf(w, "`%s`\n\n%s, %d CPUs (%s), Linux %s, %s\n\n", strings.Join(r.Command, " "), r.Date, r.CPUs, r.Machine, r.Kernel, r.Go)
	medians := r.medians()
	write := func(title string, columns []string, rows [][]string) {
		if len(rows) == 0 {
			return
		}
		fmt.Fprintf(w, "%s\n\n", title)
		tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
		fmt.Fprintf(tw, "| %s\t|\n", strings.Join(columns, "\t| "))
		fmt.Fprintf(tw, "| %s\t|\n", strings.Join(slices.Repeat([]string{"---"}, len(columns)), "\t| "))
		for _, cells := range rows {
			fmt.Fprintf(tw, "| %s\t|\n", strings.Join(cells, "\t| "))
		}
		_ = tw.Flush()
		fmt.Fprintln(w)
	}
	table := func(title string, columns []string, row func(result) []string) {
		var rows [][]string
		for _, m := range medians {
			if cells := row(m); cells != nil {
				rows = append(rows, cells)
			}
		}
		write(title, columns, rows)
	}
	table("Single changes.", []string{
		"scenario", "contender", "runs × changes", "first sync, first / last", "CPU a change", "median / p99 / max", "bytes a change and client", "RSS / peak",
	}, func(m result) []string {
		switch {
		case m.Stall != nil, m.Disk != nil, len(m.Rates) > 0:
			return nil
		case m.Error != "":
			reason, _, _ := strings.Cut(m.Error, "\n")
			if len(reason) > 80 {
				reason = strings.ToValidUTF8(reason[:80], "") + "…"
			}
			return []string{m.Scenario, m.Contender, fmt.Sprint(m.Run), "failed: " + reason, "", "", "", ""}
		}
		return []string{
			m.Scenario, m.Contender, fmt.Sprintf("%d × %d", m.Run, m.Changes), duration(m.SyncFirstMS) + " / " + duration(m.SyncLastMS), duration(m.CPUPerChangeMS),
			duration(m.MedianMS) + " / " + duration(m.P99MS) + " / " + duration(m.MaxMS), size(m.BytesPerChange),
			fmt.Sprintf("%.0f / %.0f MiB", m.RSSMiB, m.PeakMiB),
		}
	})
	table("A burst of 2,000 changes within a second.", []string{
		"scenario", "contender", "until all hold all", "CPU", "bytes a client", "messages a client",
	}, func(m result) []string {
		if m.Burst == 0 || m.Error != "" {
			return nil
		}
		return []string{m.Scenario, m.Contender, duration(m.BurstMS), duration(m.BurstCPUMS), size(m.BurstBytes), fmt.Sprintf("%.0f", m.BurstMessages)}
	})
	table("The relay is restarted, and the delta clients resume.", []string{
		"scenario", "contender", "until all are answered", "bytes a client", "share of a full sync",
	}, func(m result) []string {
		if !m.Restarted {
			return nil
		}
		return []string{m.Scenario, m.Contender, duration(m.ResumeMS), size(m.ResumeBytes), fmt.Sprintf("%.3f %%", 100*m.ResumeBytes/m.SyncBytes)}
	})
	table("What rules cost: the relay with import rules, rewriting and union (relay-rules) against the relay without (relay), in the same world.", []string{
		"scenario", "runs × changes", "CPU a change, without / with", "ratio", "median, without / with", "CPU until all hold all, without / with", "RSS, without / with",
	}, func(m result) []string {
		plain := slices.IndexFunc(medians, func(p result) bool { return p.Scenario == m.Scenario && p.Contender == "relay" })
		if m.Contender != "relay-rules" || m.Error != "" || plain < 0 || medians[plain].Error != "" {
			return nil
		}
		p := medians[plain]
		return []string{
			m.Scenario, fmt.Sprintf("%d × %d", m.Run, m.Changes), duration(p.CPUPerChangeMS) + " / " + duration(m.CPUPerChangeMS),
			fmt.Sprintf("%.2f", m.CPUPerChangeMS/p.CPUPerChangeMS), duration(p.MedianMS) + " / " + duration(m.MedianMS),
			duration(p.SyncCPUMS) + " / " + duration(m.SyncCPUMS), fmt.Sprintf("%.0f / %.0f MiB", p.RSSMiB, m.RSSMiB),
		}
	})
	table("Starts from what is on disk, with all upstreams down: from the start of the process until a delta client holds all.", []string{
		"scenario", "contender", "runs × starts", "median / shortest / longest", "CPU / the client's own", "on disk", "peak", "messages",
	}, func(m result) []string {
		d := m.Disk
		if d == nil || m.Error != "" {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, fmt.Sprintf("%d × %d", m.Run, d.Starts), duration(d.MedianMS) + " / " + duration(d.MinMS) + " / " + duration(d.MaxMS),
			duration(d.CPUMS) + " / " + duration(d.ClientCPUMS), fmt.Sprintf("%.0f MiB", d.StateMiB), fmt.Sprintf("%.0f MiB", d.PeakMiB), fmt.Sprintf("%.0f", d.Messages),
		}
	})
	var rates [][]string
	for _, m := range medians {
		for _, r := range m.Rates {
			rates = append(rates, []string{
				m.Scenario, m.Contender, fmt.Sprintf("%.4g ms", r.GapMS), duration(r.MedianMS) + " / " + duration(r.P99MS) + " / " + duration(r.MaxMS),
				fmt.Sprintf("%.2f", r.Cores), fmt.Sprintf("%.0f", r.Messages),
			})
		}
	}
	write("Steady rates of changes.", []string{
		"scenario", "contender", "one change every", "median / p99 / max", "CPU, of one core", "messages a client and second",
	}, rates)
	table("Two clients stop reading while 1,000 changes a second go on.", []string{
		"scenario", "contender", "p99 of the others, before / during", "RSS grows by, against no SotW client / against both reading", "RSS / peak", "messages to each once it reads again", "until it holds all",
	}, func(m result) []string {
		if m.Stall == nil || m.Error != "" {
			return nil
		}
		return []string{
			m.Scenario, m.Contender, duration(m.Stall.P99BeforeMS) + " / " + duration(m.Stall.P99DuringMS), fmt.Sprintf("%.1f / %.1f MiB", m.Stall.GrownMiB, m.Stall.StalledMiB),
			fmt.Sprintf("%.0f / %.0f MiB", m.RSSMiB, m.PeakMiB), fmt.Sprintf("%.1f", m.Stall.ResumedMessages), duration(m.Stall.ResumedMS),
		}
	})
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
	}
	return fmt.Sprintf("%.2f MB", bytes/1e6)
}

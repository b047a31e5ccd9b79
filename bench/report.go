package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report is all results of one invocation.
type report struct {
	Command  []string          `json:"command"`
	Note     string            `json:"note,omitempty"` // what a reader must know of the run
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

// write saves the results, writes their tables, and shows them. They are shown also when they can not be written.
func (r *report) write(dir string) error {
	tables := r.tables()
	_, err := os.Stdout.WriteString(tables)
	if err := errors.Join(err, r.save(dir)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "results.md"), []byte(tables), 0o644)
}

// line returns a result in short.
func (r result) line() string {
	line := r.Scenario + " " + r.Contender + ":"
	if r.Error != "" {
		return line + " " + r.Error
	}
	line += fmt.Sprintf(" sync %.0f..%.0f ms, %.0f ms of CPU, %.0f messages up to %s;", r.SyncFirstMS, r.SyncLastMS, r.SyncCPUMS, r.SyncMessages, size(r.LargestBytes))
	if r.Changes > 0 {
		line += fmt.Sprintf(" %.1f/%.1f/%.1f ms, %.2f ms of CPU and %.0f B a change;", r.MedianMS, r.P99MS, r.MaxMS, r.CPUPerChangeMS, r.BytesPerChange)
	}
	if r.Burst > 0 {
		line += fmt.Sprintf(" burst %.0f ms, %.0f ms of CPU, %.1f messages;", r.BurstMS, r.BurstCPUMS, r.BurstMessages)
	}
	for _, rate := range r.Rates {
		line += fmt.Sprintf(" every %.4g ms %.1f/%.1f/%.1f ms, %.2f cores, %.0f messages;", rate.GapMS, rate.MedianMS, rate.P99MS, rate.MaxMS, rate.Cores, rate.Messages)
	}
	if r.Stall != nil {
		line += fmt.Sprintf(" p99 %.1f ms before, %.1f ms during; %+.1f MiB, %+.1f by not reading;", r.Stall.P99BeforeMS, r.Stall.P99DuringMS, r.Stall.GrownMiB, r.Stall.StalledMiB)
	}
	if d := r.Disk; d != nil {
		line += fmt.Sprintf(" %d starts, %.0f..%.0f ms, median %.0f; %.0f ms of CPU, the client's %.0f; %.0f MiB on disk, peak %.0f MiB;",
			d.Starts, d.MinMS, d.MaxMS, d.MedianMS, d.CPUMS, d.ClientCPUMS, d.StateMiB, d.PeakMiB)
	}
	if r.Restarted {
		line += fmt.Sprintf(" resumed in %.0f ms with %.0f B of %.0f;", r.ResumeMS, r.ResumeBytes, r.SyncBytes)
	}
	return line + fmt.Sprintf(" %.0f, peak %.0f MiB", r.RSSMiB, r.PeakMiB)
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
		if k := m.Sink; k != nil {
			m.Sink = &sinkResult{Restarted: k.Restarted}
			mediansOf(m.Sink, good, sinkFigures, func(r *result) *sinkResult { return r.Sink })
		}
		if k := m.Kubernetes; k != nil {
			m.Kubernetes = &kubernetesResult{Statuses: k.Statuses, Relisted: k.Relisted}
			mediansOf(m.Kubernetes, good, kubernetesFigures, func(r *result) *kubernetesResult { return r.Kubernetes })
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
	func(r *result) *float64 { return &r.SyncOwnCPUMS },
	func(r *result) *float64 { return &r.SyncMessages },
	func(r *result) *float64 { return &r.LargestBytes },
	func(r *result) *float64 { return &r.MedianMS },
	func(r *result) *float64 { return &r.P99MS },
	func(r *result) *float64 { return &r.MaxMS },
	func(r *result) *float64 { return &r.CPUPerChangeMS },
	func(r *result) *float64 { return &r.OwnPerChangeMS },
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

// find returns the medians of a contender in a scenario, if a run of it worked.
func find(medians []result, scenario, contender string) (result, bool) {
	i := slices.IndexFunc(medians, func(m result) bool { return m.Scenario == scenario && m.Contender == contender })
	if i < 0 || medians[i].Error != "" {
		return result{}, false
	}
	return medians[i], true
}

package main

import (
	"fmt"
	"strings"
)

// target is a figure that the relay is held to.
type target struct {
	what string
	// limit is the most that it may be, as show prints it.
	limit float64
	show  func(float64) string
	// of returns the figure of a contender, if that was measured.
	of func(medians []result, contender string) (float64, bool)
	// alone marks a figure of the relay that has none of the floor beside it: the floor can not do
	// that, or the figure is a ratio to the floor already.
	alone bool
}

func targets() []target {
	return []target{
		{"300,000 resources from 250 upstreams, until 4 delta clients hold all: CPU", 10_000, duration, inResult("start-300k-250", func(m result) float64 { return m.SyncCPUMS }), false},
		{"the same: RSS settled", 700, mibText, inResult("start-300k-250", func(m result) float64 { return m.RSSMiB }), false},
		{"the same: the peak, against RSS settled", 1.4, times, inResult("start-300k-250", func(m result) float64 { return m.PeakMiB / m.RSSMiB }), false},
		{"100,000 resources from 4 upstreams: CPU", 2000, duration, inResult("start-100k-4", func(m result) float64 { return m.SyncCPUMS }), false},
		{"100,000 resources from 250 upstreams, against 4: CPU", 1.6, times, against("start-100k-250", "start-100k-4", func(m result) float64 { return m.SyncCPUMS }), false},
		{"one change in an istiod with 25,000 resources: CPU", 12, duration, inResult("start-100k-4", func(m result) float64 { return m.CPUPerChangeMS }), true},
		{"300,000 resources from disk, with all upstreams down, until a delta client holds all", 2000, duration, inDisk, true},
		{"delta × 20, from one change every 150 ms to one every 3 ms: the worst median", 10, duration, worst("rates-delta-10k-20", func(r rateResult) float64 { return r.MedianMS }), false},
		{"the same: the worst p99", 50, duration, worst("rates-delta-10k-20", func(r rateResult) float64 { return r.P99MS }), false},
		{"the same: the most CPU, of one core", 0.5, cores, worst("rates-delta-10k-20", func(r rateResult) float64 { return r.Cores }), false},
		{"delta × 100, 1,000 changes a second: p99", 150, duration, worst("rates-delta-10k-100", func(r rateResult) float64 { return r.P99MS }), false},
		{"SotW, 10,000 × 20, 20 changes a second: p99", 250, duration, worst("rates-sotw-10k-20", func(r rateResult) float64 { return r.P99MS }), false},
		{"a registry of 2,000 × 10 instances, which tells all each 100 ms, 10 of them changed, delta × 20: p99", 300, duration, worst("registry-2k-20", func(r rateResult) float64 { return r.P99MS }), true},
		{"the same: CPU, of one core", 0.5, cores, worst("registry-2k-20", func(r rateResult) float64 { return r.Cores }), true},
		{"10,000 delta streams: RSS", 500, mibText, inResult("delta-1k-10000", func(m result) float64 { return m.RSSMiB }), false},
		{"the same: a stream, against 20 of them", 45_000, size, perStream, false},
		{"the same: CPU a change", 450, duration, inResult("delta-1k-10000", func(m result) float64 { return m.CPUPerChangeMS }), false},
		{"the same: the first sync of the last", 10_000, duration, inResult("delta-1k-10000", func(m result) float64 { return m.SyncLastMS }), false},
		{"the largest message to a delta client until it holds all", 4 << 20, size, largest, false},
		{"an API server, 10,000 objects, delta × 20: RSS", 95, mibText, inKubernetes("kubernetes-10k-20", func(m result) float64 { return m.RSSMiB }), true},
		{"the same: the first list, against a raw reader", 1.6, times, toReader("kubernetes-10k-20"), true},
		{"the same: the median of a change, after a raw reader has it", 3.5, duration, inKubernetes("kubernetes-10k-20", func(m result) float64 { return m.MedianMS }), true},
		{"the same: the p99", 10, duration, inKubernetes("kubernetes-10k-20", func(m result) float64 { return m.P99MS }), true},
		{"the same: pushes of 500 writes of statuses a second, for a minute", 0, count, inKubernetes("kubernetes-10k-20", func(m result) float64 { return m.Kubernetes.StatusPushes }), true},
		{"100,000 objects: RSS", 245, mibText, inKubernetes("kubernetes-100k-4", func(m result) float64 { return m.RSSMiB }), true},
		{"the same: a list of the same, against the first: CPU", 0.45, times, inKubernetes("kubernetes-100k-4", func(m result) float64 { return m.Kubernetes.RelistCPUMS / m.Kubernetes.ListCPUMS }), true},
		{"an API server, 5,000 Services of 10 pods, until 20 delta clients hold all, against a raw reader", 1.6, times, toReader(servicesScenario), true},
		{"the same: RSS, more than with `services.mode: omit`", 100, mibText, moreThanOmitted, true},
		{"the same: 100 changes of pods a second: p99", 150, duration, worst(servicesScenario, func(r rateResult) float64 { return r.P99MS }), true},
		{"the same: CPU, of one core", 0.5, cores, worst(servicesScenario, func(r rateResult) float64 { return r.Cores }), true},
		{"the same: pushes of 500 writes of statuses of pods a second", 0, count, inServices(func(k kubernetesResult) float64 { return k.StatusPushes }), true},
		{"the same: allocations for each, of which decoding a pod takes nearly all", 150, count, inServices(func(k kubernetesResult) float64 { return k.StatusAllocs }), true},
		{"10,000 resources into an empty cluster, against four plain writers", 1.3, times, toApply, true},
		{"the same: writes of a restart", 0, count, inSink(func(r sinkResult) float64 { return r.RestartWrites }), true},
		{"the same: lists of a kind of a restart", 3, count, inSink(func(r sinkResult) float64 { return r.RestartLists }), true},
		{"the same: the median of a change, after a client of the relay has it", 20, duration, inSink(func(r sinkResult) float64 { return r.MedianMS }), true},
		{"the same: writes of a change", 1, count, inSink(func(r sinkResult) float64 { return r.ChangeWrites }), true},
		{"SotW, 10,000 × 20: CPU a change, against the floor", 1.2, times, toFloor("sotw-10k-20", func(m result) float64 { return m.CPUPerChangeMS }), true},
		{"the same: bytes a change and client, where resources may come back", 1.15, times, toFloor("sotw-10k-20", func(m result) float64 { return m.BytesPerChange }), true},
		{"the same: where they can not", 1.07, times, toFloor("sotw-10k-20-elsewhere", func(m result) float64 { return m.BytesPerChange }), true},
	}
}

func targetTable(medians []result) table {
	t := table{columns: []string{"target", "at most", "relay", "floor", "holds"}}
	for _, target := range targets() {
		cells := []string{target.what, target.show(target.limit), "not measured", "", ""}
		if v, ok := target.of(medians, "relay"); ok {
			cells[2], cells[4] = target.show(v), "yes"
			if v > target.limit {
				cells[4] = "**no**"
			}
		}
		if v, ok := target.of(medians, "floor"); ok && !target.alone {
			cells[3] = target.show(v)
		}
		t.rows = append(t.rows, cells)
	}
	return t
}

func mibText(v float64) string { return fmt.Sprintf("%.0f MiB", v) }
func count(v float64) string   { return fmt.Sprintf("%.0f", v) }
func times(v float64) string   { return fmt.Sprintf("%.2f ×", v) }
func cores(v float64) string   { return fmt.Sprintf("%.2f", v) }

type figure = func(medians []result, contender string) (float64, bool)

func inResult(scenario string, f func(result) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, scenario, contender)
		return f(m), ok
	}
}

// inKubernetes is inResult for runs against an API server that were measured to their end.
func inKubernetes(scenario string, f func(result) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, scenario, contender)
		if !ok || m.Kubernetes == nil || m.Changes == 0 {
			return 0, false
		}
		return f(m), true
	}
}

// inServices is inKubernetes for the scenario with Services.
func inServices(f func(kubernetesResult) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, servicesScenario, contender)
		if !ok || m.Kubernetes == nil || m.Kubernetes.Statuses == 0 {
			return 0, false
		}
		return f(*m.Kubernetes), true
	}
}

// moreThanOmitted returns how much more memory the relay takes for Services, in MiB.
func moreThanOmitted(medians []result, contender string) (float64, bool) {
	m, ok := find(medians, servicesScenario, contender)
	o, also := find(medians, servicesScenario, "relay-omit")
	return m.RSSMiB - o.RSSMiB, ok && also
}

// toReader compares the first list with that of the raw reader.
func toReader(scenario string) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, scenario, contender)
		reader, also := find(medians, scenario, "watch")
		if !ok || !also || m.Kubernetes == nil || reader.Kubernetes == nil {
			return 0, false
		}
		return m.Kubernetes.ListMS / reader.Kubernetes.ListMS, true
	}
}

func inDisk(medians []result, contender string) (float64, bool) {
	m, ok := find(medians, "disk-300k-250", contender)
	if !ok || m.Disk == nil {
		return 0, false
	}
	return m.Disk.MedianMS, true
}

// against compares a contender in one scenario with itself in another.
func against(scenario, other string, f func(result) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, scenario, contender)
		o, also := find(medians, other, contender)
		return f(m) / f(o), ok && also
	}
}

// toFloor compares a contender with the floor in the same scenario.
func toFloor(scenario string, f func(result) float64) figure {
	return func(medians []result, contender string) (float64, bool) {
		m, ok := find(medians, scenario, contender)
		floor, also := find(medians, scenario, "floor")
		return f(m) / f(floor), ok && also
	}
}

// worst returns the largest figure of all rates of a scenario.
func worst(scenario string, f func(rateResult) float64) figure {
	return func(medians []result, contender string) (v float64, ok bool) {
		m, _ := find(medians, scenario, contender)
		for _, r := range m.Rates {
			v = max(v, f(r))
		}
		return v, len(m.Rates) > 0
	}
}

// perStream returns the bytes of memory that each stream more costs.
func perStream(medians []result, contender string) (float64, bool) {
	many, ok := find(medians, "delta-1k-10000", contender)
	few, also := find(medians, "delta-1k-20", contender)
	return (many.RSSMiB - few.RSSMiB) * (1 << 20) / (10_000 - 20), ok && also
}

// largest returns the bytes of the largest message of all scenarios with delta clients.
func largest(medians []result, contender string) (v float64, ok bool) {
	for _, s := range scenarios() {
		if m, measured := find(medians, s.Name, contender); s.Delta && measured && m.LargestBytes > 0 {
			v, ok = max(v, m.LargestBytes), true
		}
	}
	return v, ok
}

// shortTable is the first that a reader sees.
func shortTable(medians []result) table {
	t := table{columns: []string{"", "relay", "beside", "ratio"}}
	row := func(what, scenario, beside string, f func(result) float64, show func(float64) string) {
		m, ok := find(medians, scenario, "relay")
		if !ok {
			return
		}
		cells := []string{what + " (`" + scenario + "`)", show(f(m)), "", ""}
		if o, ok := find(medians, scenario, beside); ok {
			cells[2], cells[3] = beside+" "+show(f(o)), ratioText(f(m), f(o))
		}
		t.rows = append(t.rows, cells)
	}
	cpu, middle, p99 := func(m result) float64 { return m.CPUPerChangeMS }, func(m result) float64 { return m.MedianMS }, func(m result) float64 { return m.P99MS }
	bytes, synced, rss := func(m result) float64 { return m.BytesPerChange }, func(m result) float64 { return m.SyncLastMS }, func(m result) float64 { return m.RSSMiB }
	for _, s := range []string{"sotw-10k-20", "sotw-10k-100"} {
		of := "SotW, " + strings.TrimPrefix(s, "sotw-10k-") + " clients: "
		row(of+"CPU a change", s, "floor", cpu, duration)
		row("median to a client", s, "floor", middle, duration)
		row("p99 to a client", s, "floor", p99, duration)
		row("first sync of all", s, "floor", synced, duration)
		row("RSS settled", s, "floor", rss, mibText)
	}
	row("delta, 100 clients: CPU a change", "delta-10k-100", "floor", cpu, duration)
	row("CPU a change", "delta-10k-100", "istiod", cpu, duration)
	row("median to a client", "delta-10k-100", "istiod", middle, duration)
	row("bytes a change and client", "delta-10k-100", "istiod", bytes, size)
	row("ten times the resources: CPU a change", "delta-100k-100", "floor", cpu, duration)
	row("RSS settled", "delta-100k-100", "floor", rss, mibText)
	row("5,000 clients: first sync of all", "delta-1k-5000", "floor", synced, duration)
	row("median to a client", "delta-1k-5000", "floor", middle, duration)
	row("10,000 clients: first sync of all", "delta-1k-10000", "floor", synced, duration)
	row("median to a client", "delta-1k-10000", "floor", middle, duration)
	row("RSS settled", "delta-1k-10000", "floor", rss, mibText)
	return t
}

// ratioText writes small ratios as fractions of one.
func ratioText(a, b float64) string {
	switch {
	case a <= 0 || b <= 0:
		return ""
	case a/b < 0.05:
		return fmt.Sprintf("1/%.0f", b/a)
	}
	return ratio(a, b)
}

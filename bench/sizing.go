package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// load is what a relay has to bear.
type load struct {
	resources, upstreams  int
	size                  float64 // bytes of a resource, as its upstream sends it
	deltaClients, clients int     // clients are those that ask for SotW
	istiods               bool    // the upstreams send their full state on each change
}

// coefficients are what the formulas of docs/sizing.md reckon with. Each comes from the difference
// between two measured loads.
type coefficients struct {
	base     float64 // MiB, of a relay without resources and clients
	record   float64 // bytes of memory of a resource, more than its size
	upstream float64 // KiB of memory of an upstream
	stream   float64 // KiB of memory of a delta client
	sotw     float64 // KiB of memory of a SotW client
	peak     float64 // the most memory that a start takes, against what is settled

	start   float64 // µs of CPU for a resource until it is served
	connect float64 // ms of CPU for an upstream at the start
	round   float64 // ms of CPU of a change, before it goes to clients
	send    float64 // µs of CPU of a change for each delta client
	repeat  float64 // µs of CPU of a change for each resource of its istiod
	move    float64 // ns of CPU of a change for each byte to SotW clients

	frame float64 // bytes more than size that a delta client is sent of a resource
	mark  float64 // bytes more than size that a SotW client is sent of a resource
	disk  float64 // bytes of state for each byte of resources
}

// loadOf returns the load of a scenario under which its figures are taken.
func loadOf(s scenario, size int) load {
	l := load{resources: s.Configs, upstreams: s.Upstreams, size: float64(size), istiods: !s.Delta || s.SotWUpstreams}
	if s.Delta {
		l.deltaClients = s.Clients
	} else {
		l.clients = s.Clients
	}
	return l
}

// memory returns the MiB that a relay keeps resident once it has settled.
func (c coefficients) memory(l load) float64 {
	resource := l.size + c.record
	if l.clients > 0 {
		resource += l.size + c.mark // the pages that all of them share
	}
	return c.base + (float64(l.resources)*resource+1024*(float64(l.upstreams)*c.upstream+float64(l.deltaClients)*c.stream+float64(l.clients)*c.sotw))/(1<<20)
}

// limit returns the MiB that a relay is to be given.
func (c coefficients) limit(l load) float64 { return c.memory(l) * c.peak }

// diskMiB returns what the newest state takes on disk.
func (c coefficients) diskMiB(l load) float64 {
	return float64(l.resources) * l.size * c.disk / (1 << 20)
}

// startCPU returns the milliseconds of CPU until a relay serves everything to a few clients.
func (c coefficients) startCPU(l load) float64 {
	return float64(l.resources)*c.start/1000 + float64(l.upstreams)*c.connect
}

// changeCPU returns the milliseconds of CPU that a single change costs.
func (c coefficients) changeCPU(l load) float64 {
	used := c.round + float64(l.deltaClients)*c.send/1000 + float64(l.clients)*c.sotwBytes(l)*c.move/1e6
	if l.istiods {
		used += float64(l.resources) / float64(l.upstreams) * c.repeat / 1000
	}
	return used
}

// deltaBytes returns the bytes that a change costs a delta client.
func (c coefficients) deltaBytes(l load) float64 { return l.size + c.frame }

// sotwBytes returns the bytes that a change costs a SotW client: everything.
func (c coefficients) sotwBytes(l load) float64 { return float64(l.resources) * (l.size + c.mark) }

// syncBytes returns the bytes that a client is sent until it holds everything.
func (c coefficients) syncBytes(l load) float64 {
	if l.clients > 0 {
		return c.sotwBytes(l)
	}
	return float64(l.resources) * c.deltaBytes(l)
}

// fit works the coefficients out from the medians of one run.
func fit(medians []result) (c coefficients, err error) {
	of := func(scenario string) result {
		m, ok := find(medians, scenario, "relay")
		if !ok {
			err = errors.Join(err, fmt.Errorf("there is no result of the relay in %s", scenario))
		}
		return m
	}
	delta, deltaLarge, deltaMany := of("delta-10k-20"), of("delta-100k-100"), of("delta-1k-5000")
	deltaHundred, deltaIstiods := of("delta-10k-100"), of("delta-10k-100-istiods")
	sotw, sotwHundred := of("sotw-10k-20"), of("sotw-10k-100")
	start, startMany := of("start-100k-4"), of("start-100k-250")
	startLarge, disk := of("start-300k-250"), of("disk-300k-250")
	if err != nil {
		return c, err
	}
	size := float64(delta.ResourceBytes)

	c.frame = round(delta.BytesPerChange - size)
	if disk.Disk == nil {
		return c, errors.New("there is no state on disk in disk-300k-250")
	}
	c.disk = round(disk.Disk.StateMiB * (1 << 20) / (300_000 * float64(disk.ResourceBytes)))
	c.mark = round(sotw.BytesPerChange/10_000 - size)

	c.stream = round((deltaMany.RSSMiB - delta.RSSMiB + 9000*(deltaLarge.RSSMiB-deltaHundred.RSSMiB)/90_000) * 1024 / (5000 - 20))
	c.record = round((deltaLarge.RSSMiB-deltaHundred.RSSMiB)*(1<<20)/90_000 - size)
	c.upstream = round((startMany.RSSMiB - start.RSSMiB) * 1024 / (250 - 4))
	c.sotw = round((sotwHundred.RSSMiB - sotw.RSSMiB) * 1024 / (100 - 20))
	for _, m := range []result{start, startMany, startLarge} {
		c.peak = max(c.peak, round(m.PeakMiB/m.RSSMiB))
	}
	c.base = round(delta.RSSMiB - c.memory(load{resources: 10_000, upstreams: 4, size: size, deltaClients: 20}))

	c.connect = round((startMany.SyncCPUMS - start.SyncCPUMS) / (250 - 4))
	c.start = round((start.SyncCPUMS - 4*c.connect) / 100_000 * 1000)
	c.send = round((deltaMany.CPUPerChangeMS - delta.CPUPerChangeMS) / (5000 - 20) * 1000)
	c.round = round(deltaHundred.CPUPerChangeMS - 100*c.send/1000)
	c.repeat = round((deltaIstiods.CPUPerChangeMS - deltaHundred.CPUPerChangeMS) / 2500 * 1000)
	c.move = round((sotwHundred.CPUPerChangeMS - sotw.CPUPerChangeMS) / ((100 - 20) * sotw.BytesPerChange) * 1e6)
	return c, nil
}

// round keeps two digits that count, and takes what is below zero for noise.
func round(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(max(0, v), 'g', 2, 64), 64)
	return r
}

// prediction is what the formulas tell of a load that was measured.
type prediction struct {
	what, scenario      string
	predicted, measured float64
	show                func(float64) string
}

// off is how far a prediction is from what was measured, as a share of that.
func (p prediction) off() float64 { return p.predicted/p.measured - 1 }

// predictions compares the formulas with all results of the relay that they are about.
func predictions(c coefficients, medians []result) (out []prediction) {
	for _, s := range scenarios() {
		m, ok := find(medians, s.Name, "relay")
		if !ok || s.Federated || s.Stall > 0 || s.Changes == 0 && !s.Settle {
			continue
		}
		l := loadOf(s, m.ResourceBytes)
		add := func(what string, predicted, measured float64, show func(float64) string) {
			out = append(out, prediction{what, s.Name, predicted, measured, show})
		}
		add("memory", c.memory(l), m.RSSMiB, mibText)
		if s.Settle {
			add("CPU of the start", c.startCPU(l), m.SyncCPUMS, duration)
		}
		if m.Changes > 0 {
			add("CPU of a change", c.changeCPU(l), m.CPUPerChangeMS, duration)
			bytes := c.deltaBytes(l)
			if l.clients > 0 {
				bytes = c.sotwBytes(l)
			}
			add("bytes of a change to a client", bytes, m.BytesPerChange, size)
		}
		add("bytes of a first sync to a client", c.syncBytes(l), m.SyncBytes, size)
	}
	return out
}

func coefficientTable(medians []result) table {
	c, err := fit(medians)
	if err != nil {
		return table{}
	}
	return table{columns: []string{"name", "value", "what"}, rows: coefficientRows(c)}
}

func coefficientRows(c coefficients) [][]string {
	row := func(name string, v float64, unit, what string) []string {
		return []string{"`" + name + "`", strconv.FormatFloat(v, 'f', -1, 64) + " " + unit, what}
	}
	return [][]string{
		row("base", c.base, "MiB", "memory of a relay without resources and clients"),
		row("record", c.record, "B", "memory of a resource, more than its size"),
		row("upstream", c.upstream, "KiB", "memory of an upstream"),
		row("stream", c.stream, "KiB", "memory of a delta client"),
		row("sotw", c.sotw, "KiB", "memory of a SotW client"),
		row("peak", c.peak, "×", "the most memory that a start takes, against what is settled"),
		row("start", c.start, "µs", "CPU for a resource until it is served"),
		row("connect", c.connect, "ms", "CPU for an upstream at the start"),
		row("round", c.round, "ms", "CPU of a change before it goes to clients"),
		row("send", c.send, "µs", "CPU of a change for each delta client"),
		row("repeat", c.repeat, "µs", "CPU of a change for each resource of its istiod, which repeats all"),
		row("move", c.move, "ns", "CPU of a change for each byte to SotW clients"),
		row("frame", c.frame, "B", "what a delta client is sent of a resource, more than its size"),
		row("mark", c.mark, "B", "what a SotW client is sent of a resource, more than its size"),
		row("disk", c.disk, "×", "state on disk, against the size of all resources, without history"),
	}
}

func predictionTable(medians []result) table {
	c, err := fit(medians)
	if err != nil {
		return table{}
	}
	t := table{columns: []string{"what", "scenario", "by the formulas", "measured", "off by"}}
	for _, p := range predictions(c, medians) {
		t.rows = append(t.rows, []string{p.what, "`" + p.scenario + "`", p.show(p.predicted), p.show(p.measured), fmt.Sprintf("%+.0f %%", math.Round(100*p.off()))})
	}
	return t
}

// exampleRate is the rate of changes of the examples, in changes a second.
const exampleRate = 10

func exampleTable(medians []result) table {
	c, err := fit(medians)
	if err != nil {
		return table{}
	}
	t := table{columns: []string{
		"resources", "upstreams", "clients", "memory / limit", "disk", "CPU of a start", "CPU of a change", fmt.Sprintf("cores at %d changes a second, at most", exampleRate),
		"sent at that rate, a second, at most", "first sync of all",
	}}
	const size1k = 1000
	for _, l := range []load{
		{resources: 500, upstreams: 3, size: size1k, clients: 3, istiods: true},
		{resources: 10_000, upstreams: 20, size: size1k, clients: 20, istiods: true},
		{resources: 10_000, upstreams: 20, size: size1k, deltaClients: 20, istiods: true},
		{resources: 300_000, upstreams: 250, size: size1k, deltaClients: 250, istiods: true},
		{resources: 2000, upstreams: 4, size: size1k, deltaClients: 10_000},
	} {
		count, protocol, bytes := l.deltaClients, "delta", c.deltaBytes(l)
		if l.clients > 0 {
			count, protocol, bytes = l.clients, "SotW", c.sotwBytes(l)
		}
		upstreams := "relays"
		if l.istiods {
			upstreams = "istiods"
		}
		change := c.changeCPU(l)
		t.rows = append(t.rows, []string{
			fmt.Sprint(l.resources), fmt.Sprintf("%d %s", l.upstreams, upstreams), fmt.Sprintf("%d %s", count, protocol),
			fmt.Sprintf("%.0f / %.0f MiB", c.memory(l), c.limit(l)), mibText(c.diskMiB(l)), duration(c.startCPU(l)), duration(change), fmt.Sprintf("%.2f", exampleRate*change/1000),
			size(exampleRate * float64(count) * bytes), size(float64(count) * c.syncBytes(l)),
		})
	}
	return t
}

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

// coefficients are what the formulas of docs/sizing.md reckon with.
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
	send    float64 // µs of CPU of a change for each client
	repeat  float64 // ns of CPU of a change for each byte of what its istiod repeats
	move    float64 // ns of CPU of a change for each byte to SotW clients

	frame   float64 // bytes more than size that a delta client is sent of a resource
	message float64 // bytes more that a delta client is sent of a change
	mark    float64 // bytes more than size that a SotW client is sent of a resource
	disk    float64 // bytes of state for each byte of resources
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
	return c.base + (c.known(l)+float64(l.resources)*c.record+1024*(float64(l.upstreams)*c.upstream+float64(l.deltaClients)*c.stream+float64(l.clients)*c.sotw))/(1<<20)
}

// known returns the bytes of resources that a relay holds: those of its upstreams and, once for all
// SotW clients, as it serves them.
func (c coefficients) known(l load) float64 {
	held := float64(l.resources) * l.size
	if l.clients > 0 {
		held += c.sotwBytes(l)
	}
	return held
}

// limit returns the MiB that a start takes for a while.
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
	return c.round + float64(l.deltaClients+l.clients)*c.send/1000 + float64(l.clients)*c.sotwBytes(l)*c.move/1e6 + l.repeated()*l.size*c.repeat/1e6
}

// repeated returns how many resources come again with a change: all of an istiod.
func (l load) repeated() float64 {
	if l.istiods {
		return float64(l.resources) / float64(l.upstreams)
	}
	return 0
}

// deltaBytes returns the bytes that a change costs a delta client.
func (c coefficients) deltaBytes(l load) float64 { return l.size + c.frame + c.message }

// sotwBytes returns the bytes that a change costs a SotW client: everything.
func (c coefficients) sotwBytes(l load) float64 { return float64(l.resources) * (l.size + c.mark) }

// syncBytes returns the bytes that a client is sent until it holds everything.
func (c coefficients) syncBytes(l load) float64 {
	if l.clients > 0 {
		return c.sotwBytes(l)
	}
	return float64(l.resources) * (l.size + c.frame)
}

// fit works the coefficients out from the medians of one run, so that the errors of the formulas, as
// shares of what was measured, are least.
func fit(medians []result) (c coefficients, err error) {
	of := func(scenario string) result {
		m, ok := find(medians, scenario, "relay")
		if !ok {
			err = errors.Join(err, fmt.Errorf("there is no result of the relay in %s", scenario))
		}
		return m
	}
	delta, sotw, disk := of("delta-10k-20"), of("sotw-10k-20"), of("disk-300k-250")
	for _, name := range []string{"start-100k-4", "start-100k-250", "start-300k-250"} {
		m := of(name)
		c.peak = max(c.peak, round(m.PeakMiB/m.RSSMiB))
	}
	if err != nil {
		return c, err
	}
	if disk.Disk == nil {
		return c, errors.New("there is no state on disk in disk-300k-250")
	}
	size := float64(delta.ResourceBytes)
	c.frame = round(delta.SyncBytes/10_000 - size)
	c.message = round(delta.BytesPerChange - delta.SyncBytes/10_000)
	c.mark = round(sotw.BytesPerChange/10_000 - size)
	c.disk = round(disk.Disk.StateMiB * (1 << 20) / (300_000 * float64(disk.ResourceBytes)))

	var memory, start, change equations
	each(medians, func(s scenario, m result) {
		l := loadOf(s, m.ResourceBytes)
		resources, upstreams, deltas, sotws := float64(l.resources), float64(l.upstreams), float64(l.deltaClients), float64(l.clients)
		memory.add(m.RSSMiB-c.known(l)/(1<<20), m.RSSMiB, 1, resources/(1<<20), upstreams/1024, deltas/1024, sotws/1024)
		if s.Settle {
			start.add(m.SyncCPUMS, m.SyncCPUMS, resources/1000, upstreams)
		}
		if m.Changes > 0 {
			change.add(m.CPUPerChangeMS, m.CPUPerChangeMS, 1, (deltas+sotws)/1000, sotws*c.sotwBytes(l)/1e6, l.repeated()*l.size/1e6)
		}
	})
	into := func(e equations, to ...*float64) {
		for i, v := range e.solve() {
			*to[i] = round(v)
		}
	}
	into(memory, &c.base, &c.record, &c.upstream, &c.stream, &c.sotw)
	into(start, &c.start, &c.connect)
	into(change, &c.round, &c.send, &c.move, &c.repeat)
	return c, nil
}

// each calls f with all results of the relay that the formulas are about.
func each(medians []result, f func(scenario, result)) {
	for _, s := range scenarios() {
		m, ok := find(medians, s.Name, "relay")
		if ok && !s.Federated && !s.Sink && s.Pods == 0 && s.Stall == 0 && (s.Changes > 0 || s.Settle) {
			f(s, m)
		}
	}
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
	each(medians, func(s scenario, m result) {
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
	})
	for _, s := range scenarios() {
		if m, ok := find(medians, s.Name, "relay"); ok && s.Instances > 0 {
			for _, r := range m.Rates {
				out = append(out, prediction{"CPU of a full answer", s.Name, c.changeCPU(loadOf(s, m.ResourceBytes)), r.Cores * r.GapMS, duration})
			}
		}
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
		row("send", c.send, "µs", "CPU of a change for each client"),
		row("repeat", c.repeat, "ns", "CPU of a change for each byte of the resources of its istiod, which repeats all"),
		row("move", c.move, "ns", "CPU of a change for each byte to SotW clients"),
		row("frame", c.frame, "B", "what a delta client is sent of a resource, more than its size"),
		row("message", c.message, "B", "what a delta client is sent more of a change"),
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
			thousands(l.resources), thousands(l.upstreams) + " " + upstreams, thousands(count) + " " + protocol,
			fmt.Sprintf("%.0f / %.0f MiB", c.memory(l), c.limit(l)), mibText(c.diskMiB(l)), duration(c.startCPU(l)), duration(change), fmt.Sprintf("%.2f", exampleRate*change/1000),
			size(exampleRate * float64(count) * bytes), size(float64(count) * c.syncBytes(l)),
		})
	}
	return t
}

// thousands writes a number below a million with its comma.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}

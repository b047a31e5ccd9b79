package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// TestFormulasHoldForTheCommittedRun compares what docs/sizing.md tells with what was measured.
func TestFormulasHoldForTheCommittedRun(t *testing.T) {
	const off, milliseconds = 0.25, 1.0 // of CPU of a change, less is noise
	r, err := readReport(filepath.Join(committed, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	medians := r.medians()
	c, err := fit(medians)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, p := range predictions(c, medians) {
		of[p.what]++
		if strings.HasPrefix(p.what, "CPU of a ") && math.Abs(p.predicted-p.measured) < milliseconds {
			continue
		}
		if math.Abs(p.off()) > off {
			t.Errorf("%s in %s: %s by the formulas, and %s was measured", p.what, p.scenario, p.show(p.predicted), p.show(p.measured))
		}
	}
	for what, least := range map[string]int{"memory": 11, "CPU of the start": 3, "CPU of a change": 10, "bytes of a change to a client": 10, "bytes of a first sync to a client": 11} {
		if of[what] < least {
			t.Errorf("%s: held to %d results, want %d", what, of[what], least)
		}
	}
}

// TestFitFindsTheCoefficientsOfARunThatFollowsTheFormulas makes a run from coefficients, and finds those.
func TestFitFindsTheCoefficientsOfARunThatFollowsTheFormulas(t *testing.T) {
	want := coefficients{
		base: 30, record: 700, upstream: 200, stream: 40, sotw: 250, peak: 1.5,
		start: 20, connect: 3, round: 1, send: 50, repeat: 1.5, move: 0.4, frame: 120, message: 46, mark: 70, disk: 1.2,
	}
	var medians []result
	for _, s := range scenarios() {
		l := loadOf(s, 330)
		m := result{Scenario: s.Name, Contender: "relay", ResourceBytes: 330, Changes: s.Changes}
		m.RSSMiB, m.SyncCPUMS, m.CPUPerChangeMS, m.SyncBytes = want.memory(l), want.startCPU(l), want.changeCPU(l), want.syncBytes(l)
		m.PeakMiB = m.RSSMiB * want.peak
		if m.BytesPerChange = want.deltaBytes(l); !s.Delta {
			m.BytesPerChange = want.sotwBytes(l)
		}
		if s.Starts > 0 {
			m.Disk = &diskResult{StateMiB: want.diskMiB(l)}
		}
		medians = append(medians, m)
	}
	got, err := fit(medians)
	if err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want float64) {
		if math.Abs(got/want-1) > 0.1 {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
	near("base", got.base, want.base)
	near("record", got.record, want.record)
	near("upstream", got.upstream, want.upstream)
	near("stream", got.stream, want.stream)
	near("sotw", got.sotw, want.sotw)
	near("peak", got.peak, want.peak)
	near("start", got.start, want.start)
	near("connect", got.connect, want.connect)
	near("round", got.round, want.round)
	near("send", got.send, want.send)
	near("repeat", got.repeat, want.repeat)
	near("move", got.move, want.move)
	near("frame", got.frame, want.frame)
	near("message", got.message, want.message)
	near("mark", got.mark, want.mark)
	near("disk", got.disk, want.disk)
	if _, err := fit(medians[:3]); err == nil || !strings.Contains(err.Error(), "start-100k-250") {
		t.Errorf("fitted to a part of a run: %v", err)
	}
}

// TestTheFormulasOfTheDocumentAreThoseOfTheCode works out what docs/sizing.md has as text.
func TestTheFormulasOfTheDocumentAreThoseOfTheCode(t *testing.T) {
	_, after, _ := strings.Cut(string(mustRead(t, filepath.Join(docsDir, "sizing.md"))), "```text\n")
	formulas, _, _ := strings.Cut(after, "```")
	c := coefficients{
		base: 31, record: 701, upstream: 201, stream: 41, sotw: 251, peak: 1.5,
		start: 20, connect: 3, round: 1, send: 50, repeat: 1.5, move: 0.4, frame: 121, message: 46, mark: 71, disk: 1.2,
	}
	for _, s := range scenarios() {
		l := loadOf(s, 330)
		names := map[string]float64{ // in bytes and seconds
			"base": c.base * (1 << 20), "record": c.record, "upstream": c.upstream * 1024, "stream": c.stream * 1024, "sotw": c.sotw * 1024, "peak": c.peak,
			"start": c.start / 1e6, "connect": c.connect / 1e3, "round": c.round / 1e3, "send": c.send / 1e6, "repeat": c.repeat / 1e9, "move": c.move / 1e9,
			"frame": c.frame, "message": c.message, "mark": c.mark, "disk": c.disk,
		}
		for _, row := range coefficientRows(c) {
			if _, ok := names[strings.Trim(row[0], "`")]; !ok {
				t.Errorf("%s is not known here", row[0])
			}
		}
		maps.Copy(names, map[string]float64{
			"resources": float64(l.resources), "upstreams": float64(l.upstreams), "size": l.size, "deltas": float64(l.deltaClients), "sotws": float64(l.clients),
			"shared": 0, "repeated": l.repeated(),
		})
		if l.clients > 0 {
			names["shared"] = 1
		}
		for line := range strings.Lines(formulas) {
			name, right, _ := strings.Cut(line, " = ")
			expression, err := parser.ParseExpr(strings.ReplaceAll(right, "×", "*"))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			names[strings.TrimSpace(name)] = evaluate(t, expression, names)
		}
		for name, want := range map[string]float64{
			"memory": c.memory(l) * (1 << 20), "limit": c.limit(l) * (1 << 20), "state": c.diskMiB(l) * (1 << 20),
			"start_cpu": c.startCPU(l) / 1e3, "change_cpu": c.changeCPU(l) / 1e3, "delta_bytes": c.deltaBytes(l), "sotw_bytes": c.sotwBytes(l), "delta_sync": float64(l.resources) * (l.size + c.frame),
		} {
			if got := names[name]; math.Abs(got-want) > 1e-6*want {
				t.Errorf("%s of %s is %g by the document, and %g by the code", name, s.Name, got, want)
			}
		}
	}
}

// evaluate works out sums and products of names.
func evaluate(t *testing.T, e ast.Expr, names map[string]float64) float64 {
	t.Helper()
	switch e := e.(type) {
	case *ast.Ident:
		v, ok := names[e.Name]
		if !ok {
			t.Fatalf("%q is not known", e.Name)
		}
		return v
	case *ast.ParenExpr:
		return evaluate(t, e.X, names)
	case *ast.BinaryExpr:
		x, y := evaluate(t, e.X, names), evaluate(t, e.Y, names)
		switch e.Op {
		case token.ADD:
			return x + y
		case token.MUL:
			return x * y
		}
	}
	t.Fatalf("neither a sum nor a product: %v", e)
	return 0
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	committed = "baseline"
	docsDir   = "../docs"
)

// rendered returns a committed document, and the same made anew from the committed results.
func rendered(t *testing.T, name string) (have, want []byte) {
	t.Helper()
	have, err := os.ReadFile(filepath.Join(docsDir, name))
	if err != nil {
		t.Fatal(err)
	}
	if want, err = renderDocument(committed, have); err != nil {
		t.Fatal(err)
	}
	return have, want
}

func TestDocumentsAreMadeFromTheCommittedResults(t *testing.T) {
	for _, name := range documents {
		have, want := rendered(t, name)
		if bytes.Equal(have, want) {
			continue
		}
		haveLines, wantLines := strings.Split(string(have), "\n"), strings.Split(string(want), "\n")
		for i := range wantLines {
			if i >= len(haveLines) || haveLines[i] != wantLines[i] {
				t.Errorf("docs/%s, line %d, is not what `make bench-docs` writes:\n%s", name, i+1, wantLines[i])
				break
			}
		}
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMeasuredFiguresStandInBlocksOnly finds times, sizes and shares in the text that is written by
// hand: after the next run they would be wrong.
func TestMeasuredFiguresStandInBlocksOnly(t *testing.T) {
	measured := regexp.MustCompile(`[0-9.,]+[  ]?(ns|µs|ms|s|B|KB|kB|MB|GB|KiB|MiB|GiB|%)\b|[0-9.]+ ?×|[0-9.]+ ?%`)
	for _, name := range documents {
		text := blockMarkers.ReplaceAll(mustRead(t, filepath.Join(docsDir, name)), nil)
		for i, line := range strings.Split(string(text), "\n") {
			if found := measured.FindString(line); found != "" {
				t.Errorf("docs/%s, line %d without blocks: %q looks measured: %s", name, i+1, found, line)
			}
		}
	}
}

func TestEveryBlockIsInADocument(t *testing.T) {
	var used []string
	for _, name := range documents {
		for _, m := range blockMarkers.FindAllSubmatch(mustRead(t, filepath.Join(docsDir, name)), -1) {
			used = append(used, string(m[1]))
		}
	}
	for _, b := range blocks() {
		if !slices.Contains(used, b.name) {
			t.Errorf("no document has the block %q", b.name)
		}
	}
}

func TestABlockThatIsUnknownOrTornIsAnError(t *testing.T) {
	for _, text := range []string{
		"<!-- bench:nothing -->\n<!-- /bench -->\n",
		"<!-- bench:run -->\n",
		"<!-- bench:run -->\n<!-- bench:short -->\n<!-- /bench -->\n",
	} {
		if out, err := renderDocument(committed, []byte(text)); err == nil {
			t.Errorf("%q became %q", text, out)
		}
	}
	out, err := renderDocument(committed, []byte("before\n<!-- bench:left-out -->\nstale\n<!-- /bench -->\nafter\n"))
	if err != nil || bytes.Contains(out, []byte("stale")) || !bytes.HasPrefix(out, []byte("before\n<!-- bench:left-out -->\n| ")) || !bytes.HasSuffix(out, []byte("|\n<!-- /bench -->\nafter\n")) {
		t.Errorf("%q, %v", out, err)
	}
}

func TestTheTargetsAreComparedWithTheirLimits(t *testing.T) {
	medians := []result{
		{Scenario: "start-300k-250", Contender: "relay", SyncCPUMS: 9000, RSSMiB: 800, PeakMiB: 1000},
		{Scenario: "start-300k-250", Contender: "floor", SyncCPUMS: 3000},
		{Scenario: "rates-delta-10k-20", Contender: "relay", Rates: []rateResult{{MedianMS: 2, P99MS: 80}, {MedianMS: 4, P99MS: 30}}},
		{Scenario: "sotw-10k-20", Contender: "relay", CPUPerChangeMS: 11}, {Scenario: "sotw-10k-20", Contender: "floor", CPUPerChangeMS: 10},
		{Scenario: "delta-1k-10000", Contender: "relay", Error: "broken", RSSMiB: 1},
	}
	rows := map[string][]string{}
	for _, row := range targetTable(medians).rows {
		rows[row[0]] = row[1:]
	}
	for what, want := range map[string][]string{
		"300,000 resources from 250 upstreams, until 4 delta clients hold all: CPU": {"10.00 s", "9.00 s", "3.00 s", "yes"},
		"the same: RSS settled":                              {"700 MiB", "800 MiB", "0 MiB", "**no**"},
		"the same: the worst p99":                            {"50 ms", "80 ms", "", "**no**"},
		"SotW, 10,000 × 20: CPU a change, against the floor": {"1.20 ×", "1.10 ×", "", "yes"},
		"10,000 delta streams: RSS":                          {"500 MiB", "not measured", "", ""},
	} {
		if !slices.Equal(rows[what], want) {
			t.Errorf("%s: %q, want %q", what, rows[what], want)
		}
	}
}

func TestMicroBenchmarksBecomeMedians(t *testing.T) {
	printed := "goos: linux\npkg: meshrelay/mirror\ncpu: any\nBenchmarkPut/new-key-2 \t 10\t 1500 ns/op\t 48 B/op\t 2 allocs/op\n" +
		"BenchmarkPut/new-key-2 \t 10\t 2500 ns/op\t 48 B/op\t 2 allocs/op\nBenchmarkPut/new-key-2 \t 10\t 1700 ns/op\t 48 B/op\t 2 allocs/op\nPASS\n" +
		"pkg: meshrelay/push\nBenchmarkChanged-2 \t 10\t 3.21 ns/op\n"
	want := [][]string{{"`mirror`", "Put/new-key", "1.7 µs", "48", "2"}, {"`push`", "Changed", "3.21 ns", "0", "0"}}
	if got := microTable([]byte(printed)).rows; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A client of a sink's relay only tells when a change can be written: what it is sent is not measured.
func TestASinkHasNoRowAmongSingleChangesAndClients(t *testing.T) {
	medians := []result{{Scenario: sinkScenario, Contender: "relay", Changes: 40, SyncOwnCPUMS: 5, Sink: &sinkResult{WriteMS: 40_000}}}
	for name, table := range map[string]table{"singles": singlesTable(medians), "clients": ownTable(medians)} {
		if len(table.rows) != 0 {
			t.Errorf("%s: %q", name, table.rows)
		}
	}
	if rows := sinksTable(medians).rows; len(rows) != 1 {
		t.Errorf("sinks: %q", rows)
	}
}

// TestARunOfEverythingIsEstimatedAtAnHour adds up what the scenarios ask for: how long that
// takes somewhere is not looked at.
func TestARunOfEverythingIsEstimatedAtAnHour(t *testing.T) {
	if took := total(plan(regexp.MustCompile("."), contenders(binaries{}), 1, 0)); took > time.Hour {
		t.Errorf("one run of everything takes %v", took)
	}
}

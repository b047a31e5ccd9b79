package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

func testBinaries(t *testing.T) binaries {
	t.Helper()
	abs := func(path string) string {
		path, err := filepath.Abs(path)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			t.Fatalf("%v; `make test` builds it", err)
		}
		return path
	}
	return binaries{relay: abs("../bin/relay"), floor: abs("bin/floor"), linear: abs("bin/linear")}
}

// TestContendersServeWhatIsRight runs small forms of the scenarios. What is measured is
// not looked at, but for what may never differ.
func TestContendersServeWhatIsRight(t *testing.T) {
	all := contenders(testBinaries(t))
	for _, s := range []scenario{
		{Name: "sotw", Configs: 200, Upstreams: 3, Clients: 4, Changes: 3, Burst: 200},
		{Name: "delta", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Changes: 3, Burst: 200, Restart: true},
		{Name: "delta-istiods", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, SotWUpstreams: true, Changes: 3, Burst: 200, Only: []string{"relay"}},
		{Name: "stall", Configs: 200, Upstreams: 3, Clients: 4, Delta: true, Stall: 2 * time.Second, Rate: 200, Only: []string{"relay"}},
	} {
		for _, c := range all {
			if c.name == "istiod" || len(s.Only) > 0 && !slices.Contains(s.Only, c.name) {
				continue
			}
			t.Run(s.Name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				r := measure(s, c, 1, "")
				if r.Error != "" {
					t.Fatal(r.Error)
				}
				t.Log(r.line())
				if s.Stall > 0 {
					return
				}
				if r.SyncLastMS <= 0 || r.CPUPerChangeMS <= 0 || r.RSSMiB <= 0 || r.MedianMS <= 0 || r.MaxMS < r.MedianMS {
					t.Errorf("figures are missing: %+v", r)
				}
				if s.Delta && c.name == "relay" && r.BytesPerChange > 1.4*float64(r.ResourceBytes) {
					t.Errorf("a change costs a client %.0f bytes, and a resource has %d", r.BytesPerChange, r.ResourceBytes)
				}
				if r.Restarted && r.ResumeBytes > 1.4*restartChanges*float64(r.ResourceBytes) {
					t.Errorf("resuming costs a client %.0f bytes, and %d resources of %d bytes changed", r.ResumeBytes, restartChanges, r.ResourceBytes)
				}
			})
		}
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	w, err := newWorld(10, 2, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	held := make([]uint64, 10)
	for i := range held {
		held[i] = w.items[i].hash
	}
	if err := w.check(held); err != nil {
		t.Fatal(err)
	}
	w.change(3)
	if err := w.check(held); err == nil || !strings.Contains(err.Error(), itemName(3)+" has other content") {
		t.Errorf("an old resource: %v", err)
	}
	held[3] = w.items[3].hash
	held[7] = 0
	if err := w.check(held); err == nil || !strings.Contains(err.Error(), itemName(7)+" is missing") {
		t.Errorf("a missing resource: %v", err)
	}
}

func TestMarkersAreFoundWhereverTheyLie(t *testing.T) {
	it, err := makeItem(42, 7)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range it.element {
		for _, more := range []int{0, 1, 5} { // in up to three buffers
			end := min(cut+more, len(it.element))
			data := mem.BufferSlice{mem.SliceBuffer(it.element[:cut]), mem.SliceBuffer(it.element[cut:end]), mem.SliceBuffer(it.element[end:])}
			var found [][2]int
			eachMarker(data, func(index, seq int) { found = append(found, [2]int{index, seq}) })
			if len(found) != 1 || found[0] != [2]int{42, 7} {
				t.Fatalf("cut at %d and %d: found %v", cut, end, found)
			}
		}
	}
	unchanged, err := makeItem(42, 0)
	if err != nil {
		t.Fatal(err)
	}
	eachMarker(mem.BufferSlice{mem.SliceBuffer(unchanged.element)}, func(int, int) { t.Error("a resource that has not changed has a marker") })
}

func TestMediansAreOfTheRunsThatWorked(t *testing.T) {
	r := &report{Results: []result{
		{Scenario: "s", Contender: "c", CPUPerChangeMS: 1}, {Scenario: "s", Contender: "c", Error: "broken", CPUPerChangeMS: 100},
		{Scenario: "s", Contender: "c", CPUPerChangeMS: 5}, {Scenario: "s", Contender: "c", CPUPerChangeMS: 3},
		{Scenario: "s", Contender: "d", Error: "broken"},
	}}
	m := r.medians()
	if len(m) != 2 || m[0].CPUPerChangeMS != 3 || m[0].Run != 3 || m[0].Error != "" || m[1].Error != "broken" {
		t.Errorf("medians %+v", m)
	}
	dir := t.TempDir()
	r.Results = append(r.Results, result{Scenario: "sotw-1k-20", Contender: "relay", CPUPerChangeMS: 2, MedianMS: 1})
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	again, err := readReport(filepath.Join(dir, "results.json"))
	if err != nil || len(again.Results) != len(r.Results) {
		t.Errorf("read back: %v, %v", again, err)
	}
	for _, name := range []string{"results.md", "cpu.svg"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// documents have blocks that are made from results, between two markers. What is outside is
// written by hand, and has no measured figures.
var documents = []string{"performance.md", "sizing.md"}

var blockMarkers = regexp.MustCompile(`(?s)<!-- bench:([a-z-]+) -->\n.*?<!-- /bench -->\n`)

// renderDocuments writes results, and the micro-benchmarks beside them, into the documents of a
// directory.
func renderDocuments(results, docs string) error {
	for _, name := range documents {
		path := filepath.Join(docs, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = renderDocument(results, text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// renderDocument returns a document with its blocks made anew from the results in a directory.
func renderDocument(results string, text []byte) ([]byte, error) {
	r, err := readReport(filepath.Join(results, "results.json"))
	if err != nil {
		return nil, err
	}
	micro, err := os.ReadFile(filepath.Join(results, "micro.txt"))
	if err != nil {
		return nil, err
	}
	made := map[string]string{"micro": microTable(micro).String()}
	medians := r.medians()
	for _, b := range blocks() {
		made[b.name] = b.text(r, medians)
	}
	var errs []error
	out := blockMarkers.ReplaceAllFunc(text, func(found []byte) []byte {
		name := string(blockMarkers.FindSubmatch(found)[1])
		block, ok := made[name]
		if !ok {
			errs = append(errs, fmt.Errorf("there is no block %q", name))
		}
		return fmt.Appendf(nil, "<!-- bench:%s -->\n%s<!-- /bench -->\n", name, block)
	})
	if opened, closed := bytes.Count(text, []byte("<!-- bench:")), len(blockMarkers.FindAll(text, -1)); opened != closed {
		errs = append(errs, fmt.Errorf("%d blocks begin and %d are whole", opened, closed))
	}
	return out, errors.Join(errs...)
}

// microTable has the medians of the micro-benchmarks that `go test -bench` printed.
func microTable(printed []byte) table {
	t := table{columns: []string{"package", "benchmark", "time", "bytes", "allocations"}}
	type key struct{ pkg, name string }
	var order []key
	figures := map[key]map[string][]float64{}
	pkg := ""
	for lines := bufio.NewScanner(bytes.NewReader(printed)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 2 && f[0] == "pkg:":
			_, pkg, _ = strings.Cut(f[1], "/")
		case len(f) >= 4 && strings.HasPrefix(f[0], "Benchmark"):
			name := f[0]
			if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of CPUs
				name = name[:i]
			}
			k := key{pkg, strings.TrimPrefix(name, "Benchmark")}
			if figures[k] == nil {
				figures[k] = map[string][]float64{}
				order = append(order, k)
			}
			for i := 2; i+1 < len(f); i += 2 {
				if v, err := strconv.ParseFloat(f[i], 64); err == nil {
					figures[k][f[i+1]] = append(figures[k][f[i+1]], v)
				}
			}
		}
	}
	middle := func(values []float64) float64 {
		if len(values) == 0 {
			return 0
		}
		return median(slices.Clone(values))
	}
	for _, k := range order {
		t.rows = append(t.rows, []string{
			"`" + k.pkg + "`", k.name, nanoseconds(middle(figures[k]["ns/op"])), fmt.Sprintf("%.0f", middle(figures[k]["B/op"])), fmt.Sprintf("%.0f", middle(figures[k]["allocs/op"])),
		})
	}
	return t
}

func nanoseconds(ns float64) string {
	switch {
	case ns < 1000:
		return fmt.Sprintf("%.3g ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%.3g µs", ns/1000)
	}
	return duration(ns / 1e6)
}

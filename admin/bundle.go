package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/expfmt"

	"meshrelay/events"
	"meshrelay/internal/bundle"
)

const (
	// usualSeconds and maxBundleSeconds are the default and the longest CPU profile of a bundle, in seconds.
	usualSeconds     = 10
	maxBundleSeconds = 60
	// maxProcFile bounds the part of a system file in a bundle, in bytes.
	maxProcFile = 64 << 10
	// maxBundleEvents bounds the events of a bundle.
	maxBundleEvents = 10_000
)

// Supports write the parts of a support bundle that are not debug documents. Each may be nil.
type Supports struct {
	// Config writes the effective config, with paths instead of secrets.
	Config func(io.Writer) error
	// Log writes the last lines of the log, including level debug.
	Log func(io.Writer) error
	// State describes the state on disk: sizes and times, without content.
	State func(io.Writer) error
}

// supportBundle answers with an archive. It makes one at a time.
func (s *Server) supportBundle(w http.ResponseWriter, r *http.Request, o *order) (_ any, err error) {
	o.reads = true
	seconds := usualSeconds
	if text := r.FormValue("seconds"); text != "" {
		if seconds, err = strconv.Atoi(text); err != nil || seconds < 0 || seconds > maxBundleSeconds {
			return nil, badRequestf("seconds is %.32q: want a number up to %d", text, maxBundleSeconds)
		}
	}
	resources, err := switchOf(r.URL.Query(), "resources")
	if err != nil {
		return nil, err
	}
	if !s.bundles.TryLock() {
		return nil, Refuse(http.StatusServiceUnavailable, "another support bundle is being made; try again")
	}
	defer s.bundles.Unlock()
	n, err := s.stream(w, r, "application/gzip", func(out io.Writer) error {
		return s.writeBundle(r.Context(), out, time.Duration(seconds)*time.Second, resources)
	})
	if err == nil {
		o.after = fmt.Sprintf("%d bytes", n)
	}
	return nil, err
}

// writeBundle writes the archive. It profiles the CPU for the duration while.
func (s *Server) writeBundle(ctx context.Context, w io.Writer, while time.Duration, resources bool) error {
	now := time.Now()
	b := bundle.New(w, fmt.Sprintf("relay-support-%s-%s", cmp.Or(s.deps.Name, "relay"), now.UTC().Format("20060102-150405")), now)
	object := func(v any) func(io.Writer) error { return func(w io.Writer) error { return writeJSON(w, v) } }
	b.Text("version.json", "the build, and when the process began", object(s.Version()))
	b.Text("ready.json", "the readiness, with reasons", object(s.readiness()))
	b.Text("metrics-start.txt", "metrics at the start", s.writeMetrics)
	for _, doc := range documents() {
		switch doc.name {
		case "explain", "events":
			continue
		case "configz":
			if !resources {
				continue
			}
		}
		b.Text(doc.name+".json", doc.help, func(w io.Writer) error { return doc.write(s.deps.Debug, w, url.Values{}) })
	}
	for _, part := range []struct {
		name, why string
		write     func(io.Writer) error
	}{
		{"config.yaml", "the effective config, with all defaults", s.deps.Supports.Config},
		{"log.txt", "the last lines of the log, including level debug (at most 100 a second)", s.deps.Supports.Log},
		{"state.json", "the state on disk: sizes and times, no content", s.deps.Supports.State},
	} {
		if part.write != nil {
			b.Text(part.name, part.why, part.write)
		}
	}
	b.Text("events.json", "the newest events of the journal, the newest first", s.writeEvents)
	b.Text("held.json", "deletions that guards hold", func(w io.Writer) error {
		held, err := s.deps.Controls.Held("")
		return errors.Join(err, writeJSON(w, notNil(held)))
	})
	b.Text("history.json", "the newest revisions of each upstream", s.writeHistories)
	b.Text("goroutines.txt", "the stacks of all goroutines", profile("goroutine", 1))
	b.Binary("heap.pprof", "memory profile: go tool pprof", profile("heap", 0))
	b.Binary("mutex.pprof", "profile of waits for locks: go tool pprof", profile("mutex", 0))
	b.Text("proc-limits.txt", "limits of the process", systemFile("/proc/self/limits"))
	b.Text("proc-status.txt", "memory and threads of the process", systemFile("/proc/self/status"))
	b.Text("cgroup-memory.txt", "memory limit of the container", systemFile("/sys/fs/cgroup/memory.max"))
	if while > 0 {
		b.Binary("cpu.pprof", fmt.Sprintf("CPU profile of %v: go tool pprof", while), func(w io.Writer) error { return cpuProfile(ctx, w, while) })
	}
	b.Text("metrics-end.txt", "metrics at the end, for rates", s.writeMetrics)
	return b.Close()
}

// writeEvents writes the newest events of the journal, the newest first, so that the oldest are left out if there are too
// many.
func (s *Server) writeEvents(w io.Writer) error {
	out := &arrayWriter{w: w}
	for q := (events.Query{Limit: events.MaxPage}); out.n < maxBundleEvents; {
		page := s.deps.Debug.views.Events.Read(q)
		for _, e := range slices.Backward(page.Events) {
			out.add(e)
			q.Before = e.Seq
		}
		if !page.More {
			break
		}
	}
	return out.close()
}

func (s *Server) writeMetrics(w io.Writer) error {
	families, err := s.deps.Gatherer.Gather()
	for _, f := range families {
		if _, failed := expfmt.MetricFamilyToText(w, f); failed != nil {
			return failed
		}
	}
	return err
}

// maxHeads is the most revisions of each upstream in a bundle.
const maxHeads = 20

func (s *Server) writeHistories(w io.Writer) error {
	heads := map[string]any{}
	for _, u := range s.deps.Debug.views.Upstreams() {
		revisions, err := s.deps.Controls.History(u.Name)
		if err != nil {
			heads[u.Name] = err.Error()
			continue
		}
		heads[u.Name] = revisions[:min(len(revisions), maxHeads)]
	}
	return writeJSON(w, heads)
}

func profile(name string, debug int) func(io.Writer) error {
	return func(w io.Writer) error { return pprof.Lookup(name).WriteTo(w, debug) }
}

func cpuProfile(ctx context.Context, w io.Writer, while time.Duration) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	select {
	case <-time.After(while):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// systemFile writes the first maxProcFile bytes of a system file.
func systemFile(path string) func(io.Writer) error {
	return func(w io.Writer) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, io.LimitReader(f, maxProcFile))
		return err
	}
}

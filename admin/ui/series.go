package ui

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	sampleEvery = 10 * time.Second
	maxSamples  = 360 // an hour
)

// series has the samples of the last hour.
type series struct {
	mu      sync.Mutex // guards samples
	samples []sample
}

type sample struct {
	at      time.Time
	changes uint64 // since the start of the process
	served  int
}

func (s *series) add(one sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.samples) == maxSamples {
		s.samples = slices.Delete(s.samples, 0, 1)
	}
	s.samples = append(s.samples, one)
}

// Chart is a line over time. Points has pairs of Unix time and value, as JSON. Sketch is an SVG polyline, shown
// without JavaScript.
type Chart struct {
	ID, Title, Summary, Points, Sketch string
}

const sketchWidth, sketchHeight = 440, 120

// charts returns two charts: the changes per minute, and the number of served resources.
func (s *series) charts() []Chart {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := make([]int64, len(s.samples))
	changes, served := make([]float64, len(s.samples)), make([]float64, len(s.samples))
	for i, one := range s.samples {
		times[i], served[i] = one.at.Unix(), float64(one.served)
		if i > 0 {
			if past := one.at.Sub(s.samples[i-1].at).Minutes(); past > 0 {
				changes[i] = float64(one.changes-s.samples[i-1].changes) / past
			}
		}
	}
	return []Chart{
		chart("changes", "Changes per minute", times, changes),
		chart("served", "Served resources", times, served),
	}
}

func chart(id, title string, times []int64, values []float64) Chart {
	c := Chart{ID: id, Title: title, Summary: "no samples yet"}
	if len(values) == 0 {
		return c
	}
	least, most := values[0], values[0]
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	c.Summary = fmt.Sprintf("now %.0f, between %.0f and %.0f", values[len(values)-1], least, most)
	var points, sketch strings.Builder
	span := max(float64(times[len(times)-1]-times[0]), 1)
	for i, v := range values {
		sep := ","
		if i == 0 {
			sep = ""
		}
		fmt.Fprintf(&points, "%s[%d,%.4g]", sep, times[i], v)
		fmt.Fprintf(&sketch, "%.0f,%.0f ", float64(times[i]-times[0])/span*sketchWidth, sketchHeight-4-v/max(most, 1)*(sketchHeight-8))
	}
	c.Points, c.Sketch = "["+points.String()+"]", strings.TrimSpace(sketch.String())
	return c
}

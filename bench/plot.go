package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var colors = map[string]color.Color{
	"floor":  color.RGBA{R: 0x66, G: 0x66, B: 0x66, A: 0xff},
	"relay":  color.RGBA{R: 0x12, G: 0x6f, B: 0xd6, A: 0xff},
	"linear": color.RGBA{R: 0xd9, G: 0x82, B: 0x0c, A: 0xff},
	"istiod": color.RGBA{R: 0xb3, G: 0x1b, B: 0x3a, A: 0xff},
}

// plot draws the CPU time of a change: against resources and against clients, of SotW and of
// delta, one line for each contender and count of the other.
func (r *report) plot(path string) error {
	const width, height = 24 * vg.Centimeter, 18 * vg.Centimeter
	canvas := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: 2, Cols: 2, PadX: vg.Centimeter, PadY: vg.Centimeter, PadTop: 4, PadBottom: 4, PadLeft: 4, PadRight: 8}
	plots := [][]*plot.Plot{make([]*plot.Plot, 2), make([]*plot.Plot, 2)}
	drawn := false
	for row, delta := range []bool{false, true} {
		for col, x := range []string{"configs", "clients"} {
			p, lines, err := r.panel(delta, x)
			if err != nil {
				return err
			}
			plots[row][col] = p
			drawn = drawn || lines > 0
		}
	}
	if !drawn {
		return nil
	}
	dc := draw.New(canvas)
	for row, canvases := range plot.Align(plots, tiles, dc) {
		for col, c := range canvases {
			plots[row][col].Draw(c)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (r *report) panel(delta bool, x string) (p *plot.Plot, lines int, err error) {
	byName := map[string]scenario{}
	for _, s := range scenarios() {
		byName[s.Name] = s
	}
	type key struct {
		contender string
		other     int
	}
	points := map[key]plotter.XYs{}
	low, high := math.Inf(1), math.Inf(-1)
	lowX, highX := math.Inf(1), math.Inf(-1)
	for _, m := range r.medians() {
		s, ok := byName[m.Scenario]
		if !ok || s.Delta != delta || s.SotWUpstreams || s.Federated || m.Error != "" || m.CPUPerChangeMS <= 0 {
			continue
		}
		at, other := s.Configs, s.Clients
		if x == "clients" {
			at, other = s.Clients, s.Configs
		}
		k := key{m.Contender, other}
		points[k] = append(points[k], plotter.XY{X: float64(at), Y: m.CPUPerChangeMS})
		low, high = min(low, m.CPUPerChangeMS), max(high, m.CPUPerChangeMS)
		lowX, highX = min(lowX, float64(at)), max(highX, float64(at))
	}
	protocol, of := "SotW", "clients"
	if delta {
		protocol = "delta"
	}
	if x == "clients" {
		of = "configs"
	}
	p = plot.New()
	p.Title.Text = fmt.Sprintf("%s: CPU time of a change against %s", protocol, x)
	p.X.Label.Text, p.Y.Label.Text = x, "ms"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{}, decades{}
	if len(points) == 0 {
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 10, 1, 10
		return p, 0, nil
	}
	p.Add(plotter.NewGrid())
	keys := make([]key, 0, len(points))
	for k := range points {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		if c := strings.Compare(a.contender, b.contender); c != 0 {
			return c
		}
		return a.other - b.other
	})
	dashes := map[int][]vg.Length{}
	for _, k := range keys {
		pts := points[k]
		slices.SortFunc(pts, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, dots, err := plotter.NewLinePoints(pts)
		if err != nil {
			return nil, 0, err
		}
		if _, ok := dashes[k.other]; !ok {
			dashes[k.other] = [][]vg.Length{nil, {4, 2}, {1, 2}, {6, 2, 1, 2}}[len(dashes)%4]
		}
		line.Color, line.Width, line.Dashes = colors[k.contender], vg.Points(1.5), dashes[k.other]
		dots.Color, dots.Shape, dots.Radius = colors[k.contender], draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(line, dots)
		p.Legend.Add(fmt.Sprintf("%s, %d %s", k.contender, k.other, of), line, dots)
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size = vg.Points(8)
	p.X.Min, p.X.Max = lowX/1.3, highX*1.3
	p.Y.Min, p.Y.Max = low/2, high*200 // room for the legend
	return p, len(points), nil
}

// decades ticks a logarithmic axis at powers of ten.
type decades struct{}

func (decades) Ticks(low, high float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		v := math.Pow(10, e)
		if v >= low && v <= high {
			ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
		}
		for m := 2.0; m < 10; m++ {
			if v*m >= low && v*m <= high {
				ticks = append(ticks, plot.Tick{Value: v * m})
			}
		}
	}
	return ticks
}

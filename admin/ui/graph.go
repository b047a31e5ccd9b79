package ui

import (
	"fmt"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
)

const (
	// maxBoxes is the most boxes in a column of the graph.
	maxBoxes             = 10
	boxWidth, boxHeight  = 240, 46
	graphWidth, boxPitch = 960, 60
	maxLabel             = 28
)

// Graph shows upstreams, the relay and clients in three columns, with lines between them.
type Graph struct {
	Width, Height int
	Boxes         []Box
	Lines         []Line
}

// Box is a part of the graph, with two lines of text.
type Box struct {
	X, Y, W, H  int
	Level       view.Level
	Name, Below string
	Href        string
}

// Line connects a box with one in the next column.
type Line struct {
	X1, Y1, X2, Y2, Bend int
	// Broken is set when the upstream is not connected.
	Broken bool
}

// drawGraph draws upstreams on the left and groups of clients on the right. If there are too many upstreams, those
// with problems come first.
func drawGraph(ups []upstreams.Status, clients []downstream.ClientStatus, served, contested int, r *request) *Graph {
	left, broken := upstreamBoxes(ups, r)
	right := clientBoxes(clients)
	rows := max(len(left), len(right), 1)
	g := &Graph{Width: graphWidth, Height: rows*boxPitch + 8}
	middle := Box{
		X: (graphWidth - boxWidth) / 2, Y: (g.Height - boxHeight) / 2, W: boxWidth, H: boxHeight, Level: r.head.Level, Href: "/resources",
		Name: "relay " + text.Shorten(r.version.Name, maxLabel-6), Below: fmt.Sprintf("%s, %d contested", view.Count(served, "resource"), contested),
	}
	for i, b := range left {
		b.X, b.Y, b.W, b.H = 4, 4+i*boxPitch, boxWidth, boxHeight
		g.Boxes = append(g.Boxes, b)
		g.Lines = append(g.Lines, lineTo(b, middle, broken[i]))
	}
	g.Boxes = append(g.Boxes, middle)
	for i, b := range right {
		b.X, b.Y, b.W, b.H = graphWidth-boxWidth-4, 4+i*boxPitch, boxWidth, boxHeight
		g.Boxes = append(g.Boxes, b)
		g.Lines = append(g.Lines, lineTo(middle, b, false))
	}
	return g
}

func lineTo(a, b Box, broken bool) Line {
	l := Line{X1: a.X + a.W, Y1: a.Y + a.H/2, X2: b.X, Y2: b.Y + b.H/2, Broken: broken}
	l.Bend = (l.X1 + l.X2) / 2
	return l
}

func upstreamBoxes(ups []upstreams.Status, r *request) (boxes []Box, broken []bool) {
	many := len(ups) > maxBoxes
	if many { // fewer upstreams keep their order
		ups = falseFirst(ups, view.IsHealthy)
	}
	for _, u := range ups {
		if many && len(boxes) == maxBoxes-1 {
			return append(boxes, Box{Level: view.None, Name: fmt.Sprintf("and %d more", len(ups)-len(boxes)), Below: "all upstreams", Href: "/upstreams"}), append(broken, false)
		}
		boxes = append(boxes, Box{
			Level: view.UpstreamLevel(u), Name: text.Shorten(u.Name, maxLabel), Href: upstreamHref(u.Name),
			Below: text.Shorten(fmt.Sprintf("%d, %s", admin.Total(u.Resources), view.UpstreamState(u, r.now)), maxLabel+6),
		})
		broken = append(broken, u.State != upstreams.StateSynced && u.State != upstreams.StateSyncing)
	}
	return boxes, broken
}

func clientBoxes(clients []downstream.ClientStatus) (boxes []Box) {
	all := groups(clients)
	for i, g := range all {
		if i == maxBoxes-1 && len(all) > maxBoxes {
			return append(boxes, Box{Level: view.None, Name: fmt.Sprintf("and %d more", len(all)-i), Below: "all clients", Href: "/clients"})
		}
		below := view.Count(g.n, "client") + " synced"
		if g.behind > 0 {
			below = fmt.Sprintf("%s, %d not up to date", view.Count(g.n, "client"), g.behind)
		}
		boxes = append(boxes, Box{Level: view.OKIf(g.behind == 0, view.Warn), Name: text.Shorten(g.name, maxLabel), Below: below, Href: "/clients"})
	}
	if len(all) == 0 {
		boxes = append(boxes, Box{Level: view.None, Name: "no clients", Below: "none is connected", Href: "/clients"})
	}
	return boxes
}

package upstreams

import "time"

// peaks remembers the largest size of a source within guardWindow, second by second.
type peaks struct {
	bySecond []peak // oldest first, sizes falling: what is followed by more does not matter
	most     int
}

type peak struct {
	at   time.Time
	size int
}

// note says how large the source is now.
func (p *peaks) note(now time.Time, size int) {
	for len(p.bySecond) > 0 && now.Sub(p.bySecond[0].at) > guardWindow {
		p.bySecond = p.bySecond[1:]
	}
	for len(p.bySecond) > 0 && p.bySecond[len(p.bySecond)-1].size <= size {
		p.bySecond = p.bySecond[:len(p.bySecond)-1]
	}
	if n := len(p.bySecond); n == 0 || now.Sub(p.bySecond[n-1].at) >= time.Second {
		p.bySecond = append(p.bySecond, peak{now, size})
	}
	p.most = max(p.bySecond[0].size, size)
}

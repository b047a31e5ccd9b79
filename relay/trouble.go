package relay

import (
	"context"
	"time"

	"meshrelay/downstream"
)

const (
	// troublePause is the least time between two looks for trouble, and troubleShare the share of the time that they may take.
	troublePause = 500 * time.Millisecond
	troubleShare = 50
)

// tellTrouble tells clients that are relays what is wrong with the upstreams, whenever that may have changed.
func (r *Relay) tellTrouble(ctx context.Context) error {
	for {
		began := time.Now()
		r.server.Tell(r.trouble(), r.manager.Has)
		pause := time.NewTimer(max(troublePause, troubleShare*time.Since(began)))
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-r.manager.Moved():
		}
	}
}

// trouble returns the problems of all upstreams: first those of this relay's own, then what others tell it.
func (r *Relay) trouble() (all []downstream.Trouble) {
	var behind []downstream.Trouble
	relay := r.config.Load().Provenance.Relay
	for _, st := range r.upstreams() {
		own, told := st.Trouble(relay)
		for _, p := range own {
			all = append(all, downstream.Trouble{Problem: p, From: st.Name})
		}
		for _, p := range told {
			behind = append(behind, downstream.Trouble{Problem: p, From: st.Name})
		}
	}
	return append(all, behind...)
}

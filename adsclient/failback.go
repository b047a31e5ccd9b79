package adsclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// noAnswer is how long a probe waits for an answer if SyncTimeout is off.
const noAnswer = 30 * time.Second

var (
	// errStayed ends a probe that succeeded.
	errStayed        = errors.New("worked for long enough")
	errNothingWanted = errors.New("there is nothing to ask for")
	errNoAnswer      = status.Error(codes.DeadlineExceeded, "the probe was not answered in time")
)

// failBack probes the addresses before at until one works, and returns its number. It returns false when ctx
// ends.
//
// One probe runs at a time. A server that does not work gets an attempt now and then. A server that works
// gets one stream of the first type for FailbackAfter.
func (c *Client) failBack(ctx context.Context, at int) (to int, ok bool) {
	after := c.cfg.FailbackAfter
	if after < 0 || at == 0 {
		return 0, false
	}
	for wait := time.Duration(0); ; {
		if !sleep(ctx, max(wait, after/4+rand.N(after/2+1), c.cfg.MinBackoff)) {
			return 0, false
		}
		wait = 0
		for p := range at {
			switch err := c.probe(ctx, p); {
			case ctx.Err() != nil:
				return 0, false
			case err == nil:
				return p, true
			case denied(err):
				wait = max(wait, jitter(c.cfg.DeniedBackoff))
			}
		}
	}
}

// probe returns nil if an address answers the first type, and then keeps the stream open for
// FailbackAfter plus a random time: all clients of a server see it return at the same moment.
func (c *Client) probe(ctx context.Context, p int) error {
	address := c.cfg.Addresses[p]
	c.health.tried(p)
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := c.cfg.SyncTimeout
	if patience < 0 {
		patience = noAnswer
	}
	timer := time.AfterFunc(patience, func() { cancel(errNoAnswer) })
	defer func() { timer.Stop() }()
	one := *c
	one.handler, one.health, one.cfg.Addresses = ignore{}, newAddressHealth([]string{address}), []string{address}
	one.cfg.SyncTimeout, one.cfg.ResyncInterval, one.cfg.Met, one.cfg.Silent = -1, 0, nil, nil
	one.repeat, one.namesChanged, one.leftOut = nil, nil, map[string]string{}
	one.noResume, one.sotwOnly = map[string]bool{}, map[string]bool{address: true} // a relay answers both
	one.cfg.onSync = func(string) {
		if timer.Stop() { // else the probe is ending
			c.health.works(p)
			stay := c.cfg.FailbackAfter
			timer = time.AfterFunc(stay+rand.N(stay/8+1), func() { cancel(errStayed) })
		}
	}
	err := fmt.Errorf("%s: %w", address, errNothingWanted)
	if one.narrow() {
		err = one.attempt(within, 0).err
	}
	switch {
	case errors.Is(err, errStayed):
		return nil
	case ctx.Err() != nil:
		c.health.probeEnded(p, nil)
		return err
	}
	err = explain(err)
	c.health.probeEnded(p, err)
	c.log.Debug("preferred address does not work yet", "address", address, "err", err)
	return err
}

// narrow makes c ask for the first type that the server offers only, or for one name of the first type
// that has names. It returns false if there is nothing to ask for.
func (c *Client) narrow() bool {
	names, isSilent := c.cfg.Names, func(typeURL string) bool { return c.silent[typeURL] }
	types := slices.DeleteFunc(slices.Clone(c.cfg.TypeURLs(false)), isSilent)
	if names != nil {
		wanted := func(typeURL string) bool { fit, _ := FitNames(names(typeURL)); return len(fit) > 0 }
		types = slices.DeleteFunc(types, func(typeURL string) bool { return !wanted(typeURL) })
		c.cfg.Names = func(typeURL string) []string {
			fit, _ := FitNames(names(typeURL))
			return fit[:min(len(fit), 1)]
		}
	}
	if len(types) == 0 {
		return false
	}
	c.cfg.TypeURLs = func(bool) []string { return types[:1] }
	return true
}

// ignore is the Handler of a probe.
type ignore struct{}

func (ignore) HandleResponse(*Response) error          { return nil }
func (ignore) ResumeVersions(string) map[string]string { return nil }
func (ignore) HandleState(State)                       {}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// State is what the relay keeps on disk, so that it serves that at once after a restart.
type State struct {
	Dir           string   `yaml:"dir" path:"own"` // empty: the relay keeps nothing
	FlushInterval Duration `yaml:"flushInterval" default:"1s" range:"10ms 1m"`
	History       History  `yaml:"history"`
}

// History bounds the past states of each upstream, to which it can be rolled back.
type History struct {
	Revisions int      `yaml:"revisions" default:"100" range:"0 10000"`
	MaxAge    Duration `yaml:"maxAge" default:"168h" range:"1s 87600h"`
	MaxBytes  int      `yaml:"maxBytes" default:"64Mi" range:"1Ki 1024Gi"`
}

// Values of Upstream.FirstSync.
const (
	// FirstSyncAuto waits for as long as it takes where State.Dir is set and has never been
	// served from, and for Downstream.StartupTimeout elsewhere.
	FirstSyncAuto = "auto"
	// FirstSyncWait waits for as long as it takes.
	FirstSyncWait = "wait"
	// FirstSyncOptional does not wait.
	FirstSyncOptional = "optional"
)

// OnStaleDrop is a value of Staleness.OnStale.
const OnStaleDrop = "drop"

// Staleness configures what becomes of the resources of an upstream while it is out of contact.
type Staleness struct {
	StaleAfter  Duration  `yaml:"staleAfter" default:"5m" range:"1s 8760h"`
	OnStale     string    `yaml:"onStale" default:"keep" oneof:"keep drop"`
	ExpireAfter OpenEnded `yaml:"expireAfter" range:"1s 87600h" endless:"never"`
	Annotate    bool      `yaml:"annotate"`
	// Kinds are exceptions. The first exception with a kind counts for it.
	Kinds []KindStaleness `yaml:"kinds,omitempty"`
}

// KindStaleness is the same for some kinds. Fields that the file leaves out are as for the others.
type KindStaleness struct {
	Kinds       []string  `yaml:"kinds"`
	StaleAfter  Duration  `yaml:"staleAfter" range:"1s 8760h"`
	OnStale     string    `yaml:"onStale" oneof:"keep drop"`
	ExpireAfter OpenEnded `yaml:"expireAfter" range:"1s 87600h" endless:"never"`
}

// Values of Guard.Empty.
const (
	EmptyHold = "hold"
	EmptyPass = "pass"
)

// Guard holds deletions that look like an accident. Those of a minute count together.
type Guard struct {
	// An update that removes more than Percent and more than Count is held.
	Percent int `yaml:"percent" default:"30" range:"0 100"`
	Count   int `yaml:"count" default:"10" range:"0 1000000000"`
	// Empty is about deletions that leave nothing of a kind that had three resources or more,
	// or of an upstream that comes back. Default hold; pass where Percent is 100.
	Empty string `yaml:"empty" oneof:"hold pass"`
	// HoldFor counts while the upstream is in contact.
	HoldFor OpenEnded `yaml:"holdFor" default:"10m" range:"1s 8760h" endless:"forever"`
}

// Limits bound what the relay holds of one upstream. Config.FitMemory sets those without a
// default.
type Limits struct {
	MaxResources     int `yaml:"maxResources" default:"500000" range:"1 100000000"`
	MaxBytes         int `yaml:"maxBytes,omitempty" range:"1 1024Gi"`
	MaxResourceBytes int `yaml:"maxResourceBytes" default:"4Mi" range:"1 1Gi"`
	MaxResponseBytes int `yaml:"maxResponseBytes,omitempty" range:"1 2147483647"`
}

const (
	// usualMemory is what a process without a memory limit is taken to have.
	usualMemory = 2 << 30
	// mostResponse is what gRPC can frame.
	mostResponse = 1<<31 - 1
)

// FitMemory fills in the limits of upstreams that follow from the memory limit of the process,
// in bytes: a response may have an eighth of it, and what is held of all upstreams half, in
// equal shares. Without a limit (math.MaxInt64) they are as for 2 GiB.
func (c *Config) FitMemory(limit int64) {
	if limit <= 0 || limit == math.MaxInt64 {
		limit = usualMemory
	}
	for i := range c.Upstreams { // without any, clusters are still to be found
		l := &c.Upstreams[i].Limits
		if l.MaxBytes == 0 {
			l.MaxBytes = int(max(limit/2/int64(len(c.Upstreams)), 1))
		}
		if l.MaxResponseBytes == 0 {
			l.MaxResponseBytes = int(min(max(limit/8, 1), mostResponse))
		}
	}
}

// OpenEnded is a duration that may also have no end: it is written like a Duration, or
// as never or forever, which are 0.
type OpenEnded time.Duration

// D returns o as a time.Duration, 0 when it has no end.
func (o OpenEnded) D() time.Duration { return time.Duration(o) }

// MarshalText implements encoding.TextMarshaler.
func (o OpenEnded) MarshalText() ([]byte, error) {
	if o == 0 {
		return []byte("never"), nil
	}
	return []byte(o.D().String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *OpenEnded) UnmarshalText(text []byte) error {
	if s := string(text); s == "never" || s == "forever" {
		*o = 0
		return nil
	}
	v, err := time.ParseDuration(string(text))
	if err != nil || v == 0 {
		return errors.New("want a duration like 90s, 5m or 1h, or never, or forever")
	}
	*o = OpenEnded(v)
	return nil
}

// completeResilience sets the defaults that depend on other fields. at is the field Staleness.
func (v *validator) completeResilience(at string, u *Upstream) {
	s := &u.Staleness
	for i := range s.Kinds {
		k := &s.Kinds[i]
		k.StaleAfter = cmp.Or(k.StaleAfter, s.StaleAfter)
		k.OnStale = cmp.Or(k.OnStale, s.OnStale)
		if !v.noted(fmt.Sprintf("%s.kinds[%d].expireAfter", at, i)) {
			k.ExpireAfter = s.ExpireAfter
		}
	}
	if u.Guard.Empty == "" {
		u.Guard.Empty = EmptyHold
		if u.Guard.Percent == 100 {
			u.Guard.Empty = EmptyPass
		}
	}
}

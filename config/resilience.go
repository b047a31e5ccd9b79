package config

import (
	"cmp"
	"errors"
	"math"
	"path/filepath"
	"time"
)

// State configures what the relay keeps on disk, to serve it at once after a restart.
type State struct {
	Dir     string  `yaml:"dir" path:"own"` // empty: the relay keeps nothing
	History History `yaml:"history"`
}

// History limits the revisions kept of each upstream for a rollback.
type History struct {
	Revisions int `yaml:"revisions" default:"100" range:"0 10000"`
	MaxBytes  int `yaml:"maxBytes" default:"64Mi" range:"1Ki 1024Gi"`
}

// Values of Upstream.FirstSync.
const (
	// FirstSyncAuto waits without limit if State.Dir is set and no relay has served from it yet,
	// and for Downstream.StartupTimeout otherwise.
	FirstSyncAuto = "auto"
	// FirstSyncWait waits without limit.
	FirstSyncWait = "wait"
	// FirstSyncOptional does not wait.
	FirstSyncOptional = "optional"
)

// Staleness configures what is served of an upstream that is out of contact.
type Staleness struct {
	StaleAfter  Duration  `yaml:"staleAfter" default:"5m" range:"1s 8760h"`
	ExpireAfter OpenEnded `yaml:"expireAfter" range:"1s 87600h" endless:"never"`
}

// Values of Guard.Empty.
const (
	EmptyHold = "hold"
	EmptyPass = "pass"
)

// ProfileRegistry is the only value of Guard.Profile.
const ProfileRegistry = "registry"

// Guard holds deletions that look like an accident. It counts the deletions of one minute together.
type Guard struct {
	// An update is held if it removes more than Percent and more than Count.
	Percent int `yaml:"percent" default:"30" range:"0 100"`
	Count   int `yaml:"count" default:"10" range:"0 1000000000"`
	// HoldFor counts only the time in which the upstream is in contact.
	HoldFor OpenEnded `yaml:"holdFor" range:"1s 8760h" endless:"forever"`
	// Profile registry is for servers that leave out services without a healthy instance.
	Profile string `yaml:"profile,omitempty" oneof:"registry"`
	// Empty applies to deletions that remove the last resources of a kind that had three or more,
	// or of an upstream that reconnects: hold, or pass if Percent is 100.
	Empty string `yaml:"-"`
}

// Limits limits what the relay keeps of one upstream. Config.FitMemory sets the fields without
// a default.
type Limits struct {
	MaxResources     int `yaml:"maxResources" default:"500000" range:"1 100000000"`
	MaxBytes         int `yaml:"maxBytes,omitempty" range:"1 1024Gi"`
	MaxResourceBytes int `yaml:"-" default:"4Mi"` // twice what an API server takes
	MaxResponseBytes int `yaml:"-"`
}

const (
	// usualMemory is the memory limit that FitMemory assumes for a process without one, in bytes.
	usualMemory = 2 << 30
	// mostResponse is the size of the largest gRPC message, in bytes.
	mostResponse = 1<<31 - 1
	// streamMemory is the memory of a stream with a connection of its own, in bytes: idle, its headers,
	// and what it may send uncounted. besideStreams is that of everything else.
	streamMemory, besideStreams = 64 << 10, 256 << 20
)

// FitMemory sets the unset limits of upstreams and clients from the memory limit of the process, in bytes.
// An upstream gets an eighth of it for a response, and an equal share of its half for its resources.
// Without a limit (math.MaxInt64), FitMemory assumes 2 GiB for upstreams, and the largest defaults for clients.
func (c *Config) FitMemory(limit int64) {
	if limit <= 0 {
		limit = math.MaxInt64
	}
	c.Downstream.fitMemory(limit)
	if limit == math.MaxInt64 {
		limit = usualMemory
	}
	for i := range c.Upstreams { // may be empty before clusters are found
		l := &c.Upstreams[i].Limits
		l.MaxBytes = cmp.Or(l.MaxBytes, int(max(limit/2/int64(len(c.Upstreams)), 1)))
		l.MaxResponseBytes = cmp.Or(l.MaxResponseBytes, int(min(max(limit/8, 1), mostResponse)))
	}
}

// fitMemory sets the unset limits of clients, so that the streams of all peers fit in the memory limit. docs/attacks.md
// has the sum.
func (d *Downstream) fitMemory(limit int64) {
	d.MaxStreams = cmp.Or(d.MaxStreams, int(min(max((limit-besideStreams)/streamMemory, 1000), 20_000)))
	d.MaxRequestBytes = cmp.Or(d.MaxRequestBytes, int(min(max(limit/96, 4<<20), 32<<20)))
}

// OpenEnded is a duration that may have no end. Its text is that of a Duration, or never or
// forever, which both mean 0.
type OpenEnded time.Duration

// D returns o as a time.Duration, or 0 if it has no end.
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

// staleness checks that resources expire after they become stale.
func (v *validator) staleness(at string, s Staleness) {
	v.errorIf(s.ExpireAfter != 0 && s.ExpireAfter.D() < s.StaleAfter.D(), at+".expireAfter", "%v is less than staleAfter, which is %v: set both, or write never", s.ExpireAfter.D(), s.StaleAfter.D())
}

func (v *validator) socket(c *Config) {
	path := c.Admin.Socket
	if path == "" {
		return
	}
	path = absolute(path)
	v.errorIf(len(path) > maxSocketPath, "admin.socket", "%s is %d bytes long, and a Unix socket can have %d at most: choose a shorter path", path, len(path), maxSocketPath)
	v.errorIf(filepath.Base(path) == "/", "admin.socket", "%s is not the name of a file", path)
}

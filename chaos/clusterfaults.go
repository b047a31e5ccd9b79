package main

import (
	"net/http"
	"strings"
	"time"

	"meshrelay/internal/testing/fakekube"
)

// versionsApart is how far the versions of a server are apart before and after it went astray.
const versionsApart = 100_000

// reflectorAllowance is how much longer an API server may take. After some failures within two minutes
// kinds wait for up to a minute, but for a scout at least each ten seconds, and for all kinds at most
// ten seconds after the scout has found that the server works. A request that was never answered ends
// meanwhile, and may need another scout.
const reflectorAllowance = 30 * time.Second

// refusals are how an API server may refuse a request.
var refusals = []struct {
	code   int
	reason string
}{
	{401, "Unauthorized"},
	{403, "Forbidden"},
	{404, "NotFound"},
	{410, "Expired"},
	{429, "TooManyRequests"},
	{500, "InternalError"},
	{503, "ServiceUnavailable"},
	{504, "Timeout"},
}

func onCluster(kind, what string, begin, end func(c *cluster, f *fault) error) faultKind {
	return faultKind{
		least: time.Second, most: 4 * time.Second, targets: func(sc scenario) int { return sc.clusters }, allowance: reflectorAllowance,
		claims: func(_ scenario, n int) []string { return []string{upstreamOf(n), linkOf(n)} },
		begin: func(st *stage, f *fault) error {
			c := st.clusters[f.target]
			st.journal.fault(kind, "API server %s: %s, for %v", c.name, what, f.lasts.Round(time.Millisecond))
			return begin(c, f)
		},
		end: func(st *stage, f *fault) error { return end(st.clusters[f.target], f) },
	}
}

// clusterFaults are the faults of API servers.
func clusterFaults() map[string]faultKind {
	return map[string]faultKind{
		"api-crash": onCluster("api-crash", "crashes", func(c *cluster, _ *fault) error { c.stop(); return nil }, func(c *cluster, f *fault) error {
			c.fake.Set(func() { c.fake.NoStreams = f.dice[0]%2 == 0 })
			return c.start()
		}),
		"api-compact": onCluster("api-compact", "crashes, and knows no past afterwards", func(c *cluster, _ *fault) error { c.stop(); return nil }, func(c *cluster, _ *fault) error {
			c.fake.Compact()
			return c.start()
		}),
		"api-empty": onCluster("api-empty", "restarts with an empty etcd", func(c *cluster, _ *fault) error {
			return c.strays(ownUID, 1)
		}, (*cluster).returns),
		"api-other": onCluster("api-other", "restarts as one of another cluster", func(c *cluster, _ *fault) error {
			return c.strays(otherUID, c.version()+versionsApart)
		}, (*cluster).returns),
		"api-refuse": onCluster("api-refuse", "refuses requests", func(c *cluster, f *fault) error {
			all, retryAfter, refusal := f.dice[1]%2 == 0, f.dice[2]%2 == 0, refusals[f.dice[0]%len(refusals)]
			c.fault(func(w http.ResponseWriter, r *http.Request) bool {
				if !all && strings.Count(r.URL.Path, "/") != 4 { // /apis/GROUP/VERSION/PLURAL
					return false
				}
				if retryAfter && refusal.code >= 429 {
					w.Header().Set("Retry-After", "1")
				}
				fakekube.Fail(w, refusal.code, refusal.reason)
				return true
			})
			return nil
		}, func(c *cluster, _ *fault) error { c.fault(nil); return nil }),
		"api-hang": onCluster("api-hang", "accepts requests and never answers", func(c *cluster, f *fault) error {
			c.fake.Set(func() { c.fake.Silent = true })
			c.fault(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
			return nil
		}, func(c *cluster, f *fault) error {
			c.fake.Set(func() { c.fake.Silent = false })
			c.fault(nil)
			if f.dice[0]%2 == 0 {
				return nil // what was asked meanwhile is never answered
			}
			return c.restart(func() {})
		}),
		"api-end":   onCluster("api-end", "ends all watches, before and after", endWatches, endWatches),
		"api-short": onCluster("api-short", "ends streaming lists in the middle", short(true), short(false)),
		"api-spoil": onCluster("api-spoil", "has objects that can not be decoded", func(c *cluster, f *fault) error {
			c.how = f.dice[0]
			return c.spoil(func(key int) bool { return key/len(kinds)%3 == f.dice[1]%3 })
		}, func(c *cluster, _ *fault) error { return c.spoil(nil) }),
		"api-token": onCluster("api-token", "does not accept the token any more", func(c *cluster, f *fault) error {
			if f.dice[0]%2 == 0 {
				c.renew() // streams go on
				return nil
			}
			return c.restart(c.renew)
		}, func(c *cluster, _ *fault) error { return c.writeKubeconfig() }),
	}
}

func endWatches(c *cluster, _ *fault) error {
	c.fake.Set(func() { c.fake.Stops++ })
	return nil
}

func short(on bool) func(c *cluster, _ *fault) error {
	return func(c *cluster, _ *fault) error {
		return c.restart(func() {
			c.fake.Set(func() { c.fake.Cut = on })
			c.fake.Compact()
		})
	}
}

// fault has requests answered by something else, nil for nothing, and ends all watches.
func (c *cluster) fault(answer func(http.ResponseWriter, *http.Request) bool) {
	c.fake.Set(func() {
		c.fake.Fault = answer
		c.fake.Stops++
	})
}

// version returns the version of the server.
func (c *cluster) version() int {
	c.fake.Lock()
	defer c.fake.Unlock()
	return c.fake.Version
}

// strays restarts the server astray, and returns restarts it with what the source has.
func (c *cluster) strays(uid string, version int) error {
	c.newest = c.version()
	c.stop()
	if err := c.stray(uid, version); err != nil {
		return err
	}
	return c.start()
}

func (c *cluster) returns(*fault) error {
	c.newest = max(c.newest, c.version()) + versionsApart
	c.stop()
	if err := c.restore(c.newest); err != nil {
		return err
	}
	return c.start()
}

// spoil has the content of some keys be such that it can not be decoded, nil for none. Each is written anew.
func (c *cluster) spoil(spoils func(key int) bool) error {
	before := c.spoils
	c.spoils = spoils
	for _, key := range c.source.present() {
		if before != nil && before(key) || spoils != nil && spoils(key) {
			if err := c.follow(key); err != nil {
				return err
			}
		}
	}
	return nil
}

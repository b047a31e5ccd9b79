package relay

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/upstreams"
)

// expiryInterval is the time between two reads of the files of certificates and tokens.
const expiryInterval = 5 * time.Second

// expiries knows when the certificates of listeners, and the certificates and tokens of upstreams, end. It is a
// prometheus.Collector. Run reads the files, so that a file system that hangs delays neither metrics nor status.
type expiries struct {
	config    func() *config.Config
	listeners []config.Listener // those that run: a reload does not change them
	found     atomic.Pointer[[]expiry]
}

// expiry is the life of one certificate or token.
type expiry struct {
	token bool
	// where is a listener or an upstream, with its name in the config. name is the name alone.
	where, name string
	doctor.Life
	next doctor.Life // of a new certificate that is not valid yet, while this one is used
}

var (
	certificateExpiry = prometheus.NewDesc("relay_certificate_expiry_timestamp_seconds", "When the certificate of a listener or for an upstream ends.", []string{"where"}, nil)
	certificateLife   = prometheus.NewDesc("relay_certificate_lifetime_seconds", "Time from the begin to the end of that certificate.", []string{"where"}, nil)
	tokenExpiry       = prometheus.NewDesc("relay_token_expiry_timestamp_seconds", "When the token for an upstream ends, if it is a JWT with an end.", []string{"upstream"}, nil)
	tokenLife         = prometheus.NewDesc("relay_token_lifetime_seconds", "Time from the begin to the end of that token, if it has a begin.", []string{"upstream"}, nil)
)

// Run reads the files now, and every expiryInterval until ctx ends.
func (e *expiries) Run(ctx context.Context) error {
	again := time.NewTicker(expiryInterval)
	defer again.Stop()
	for {
		e.look()
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

// look reads the files. What can not be read stays as it was read last.
func (e *expiries) look() {
	var now []expiry
	for _, l := range e.listeners {
		if l.TLS != nil {
			life, err := doctor.CertificateLife(l.TLS.CertFile)
			now = e.note(now, err, expiry{where: "listener " + l.Address, name: l.Address, Life: life})
		}
	}
	kinds := Kinds()
	for _, u := range e.config().Upstreams {
		kind, err := upstreams.KindOf(kinds, u)
		if err != nil || kind.Lives == nil {
			continue
		}
		certificate, token, err := kind.Lives(u)
		where := "upstream " + u.Name
		now = e.note(now, err, expiry{where: where, name: u.Name, Life: certificate}, expiry{token: true, where: where, name: u.Name, Life: token})
	}
	e.found.Store(&now)
}

// note appends expiries, or with an error those of before.
func (e *expiries) note(to []expiry, err error, found ...expiry) []expiry {
	for _, x := range found {
		for _, before := range e.all() {
			switch now := time.Now(); {
			case before.token != x.token || before.where != x.where:
			case err != nil:
				x = before
			case !x.token && x.Begins.After(now) && now.After(before.Begins) && now.Before(before.Ends):
				x.next, x.Life = x.Life, before.Life
			}
		}
		if !x.Ends.IsZero() {
			to = append(to, x)
		}
	}
	return to
}

func (e *expiries) all() []expiry {
	if found := e.found.Load(); found != nil {
		return *found
	}
	return nil
}

// problems returns one line for each certificate or token whose renewal is late, or is not valid yet.
func (e *expiries) problems(now time.Time) (lines []string) {
	for _, x := range e.all() {
		if !x.next.Begins.IsZero() {
			lines = append(lines, fmt.Sprintf("%s: its new certificate is valid from %s; the one before, which ends at %s, is used until then; look at the clocks, or issue it again",
				x.where, x.next.Begins.UTC().Format(time.RFC3339), x.Ends.UTC().Format(time.RFC3339)))
		}
		if !x.Soon(now) {
			continue
		}
		what, verb := "certificate", "expires"
		if x.token {
			what = "token"
		}
		if !now.Before(x.Ends) {
			verb = "expired"
		}
		lines = append(lines, fmt.Sprintf("%s: its %s %s at %s; renew the file, which the relay reads again by itself; see \"relay help runbook RelayCredentialExpires\"",
			x.where, what, verb, x.Ends.UTC().Format(time.RFC3339)))
	}
	return lines
}

// Describe implements prometheus.Collector.
func (e *expiries) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{certificateExpiry, certificateLife, tokenExpiry, tokenLife} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (e *expiries) Collect(ch chan<- prometheus.Metric) {
	for _, x := range e.all() {
		ends, life, label := certificateExpiry, certificateLife, x.where
		if x.token {
			ends, life, label = tokenExpiry, tokenLife, x.name
		}
		ch <- prometheus.MustNewConstMetric(ends, prometheus.GaugeValue, float64(x.Ends.Unix()), label)
		if !x.Begins.IsZero() {
			ch <- prometheus.MustNewConstMetric(life, prometheus.GaugeValue, x.Ends.Sub(x.Begins).Seconds(), label)
		}
	}
}

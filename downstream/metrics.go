package downstream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/push"
)

// metrics are the metrics of a Server. Types that are not well known are counted as "other", because clients
// could invent any number.
type metrics struct {
	clients      *prometheus.GaugeVec
	refused      *prometheus.CounterVec
	refusals     *prometheus.CounterVec
	credentials  *prometheus.CounterVec
	delayed      prometheus.Counter
	panics       prometheus.Counter
	pushRequests *prometheus.CounterVec
	pages        prometheus.Counter
	latency      prometheus.Histogram
	answers      prometheus.Histogram
	distribution prometheus.Histogram
	pushes       *prometheus.CounterVec
	bytes        *prometheus.CounterVec
	acks         *prometheus.CounterVec
	nacks        *prometheus.CounterVec
	byType       map[subscription.Type]*typeMetrics
	other        *typeMetrics
}

// typeMetrics are the counters of one type.
type typeMetrics struct {
	pushes, bytes, acks, nacks prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	of := promauto.With(reg)
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return of.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return of.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return of.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &metrics{
		clients: of.NewGaugeVec(prometheus.GaugeOpts{
			Name: "relay_downstream_clients", Help: "Connected clients, by protocol (sotw, delta)."}, []string{"protocol"}),
		refused:      counterVec("relay_downstream_streams_refused_total", "Streams that were ended with an error of the client's making, by gRPC status code.", "code"),
		refusals:     counterVec("relay_downstream_refused_total", "Connections and streams that were refused or ended, by the limit or rule that they were over.", "reason"),
		credentials:  counterVec("relay_downstream_credential_errors_total", "Reads of the files by which clients are judged that have failed, by what was read.", "what"),
		delayed:      counter("relay_downstream_requests_delayed_total", "Requests that had to wait because their client was too fast."),
		panics:       counter("relay_downstream_panics_total", "Panics while a stream was served, which ended, or a change was pushed, which was left out."),
		pushRequests: counterVec("relay_downstream_push_requests_total", "Merged changes that were pushed, by their reasons: one may have several.", "reason"),
		pages:        counter("relay_downstream_pages_encoded_total", "Pages of resources encoded for SotW responses."),
		latency: histogram("relay_downstream_push_latency_seconds", "Time from the oldest change in a response being noticed to the response being handed to the client's transport.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		answers: histogram("relay_downstream_ack_latency_seconds", "Time from a response being made for a client to the client's ACK or NACK, which includes the time in which the client reads it.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60),
		distribution: histogram("relay_distribution_seconds", "Time from the oldest change in a push to the ACK of the last client that was connected.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300),
		pushes: counterVec("relay_downstream_pushes_total", "Responses sent, by kind.", "kind"),
		bytes:  counterVec("relay_downstream_push_bytes_total", "Encoded bytes of the responses sent, by kind.", "kind"),
		acks:   counterVec("relay_downstream_acks_total", "Responses acknowledged by clients, by kind.", "kind"),
		nacks:  counterVec("relay_downstream_nacks_total", "Responses rejected by clients, by kind.", "kind"),
		byType: map[subscription.Type]*typeMetrics{},
	}
	for _, p := range []string{protocolSotW, protocolDelta} {
		m.clients.WithLabelValues(p)
	}
	for _, why := range push.Reasons() {
		m.pushRequests.WithLabelValues(string(why))
	}
	for _, why := range refusal.Reasons() {
		m.refusals.WithLabelValues(string(why))
	}
	for _, what := range []string{badCertificate, badCA} {
		m.credentials.WithLabelValues(what)
	}
	for _, t := range types {
		m.byType[t] = m.forType(t.String())
	}
	m.other = m.forType("other")
	return m
}

func (m *metrics) forType(label string) *typeMetrics {
	return &typeMetrics{
		pushes: m.pushes.WithLabelValues(label), bytes: m.bytes.WithLabelValues(label),
		acks: m.acks.WithLabelValues(label), nacks: m.nacks.WithLabelValues(label),
	}
}

func (m *metrics) of(t subscription.Type) *typeMetrics {
	if tm := m.byType[t]; tm != nil {
		return tm
	}
	return m.other
}

func (m *metrics) pageEncoded(int) { m.pages.Inc() }

// pushed counts a response. changedAt is zero for a response without a change.
func (m *metrics) pushed(t subscription.Type, size int, changedAt, now time.Time) {
	tm := m.of(t)
	tm.pushes.Inc()
	tm.bytes.Add(float64(size))
	if !changedAt.IsZero() {
		m.latency.Observe(now.Sub(changedAt).Seconds())
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// link is a TCP proxy between two parties, that can be made bad.
type link struct {
	name  string
	proxy *toxiproxy.Proxy
	toxic string // the name of the present toxic
	down  bool
}

// healPatience is how long a toxic may take to leave connections that nobody reads from;
// then they are closed.
const healPatience = time.Second

func newProxies() *toxiproxy.ApiServer {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics have a logger of their own
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
}

// newLink returns a link that listens at an address and leads to another.
func newLink(server *toxiproxy.ApiServer, name, listen, to string) (*link, error) {
	l := &link{name: name, proxy: toxiproxy.NewProxy(server, name, listen, to)}
	if err := l.proxy.Start(); err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return l, nil
}

// toxic makes a link bad: stream is upstream, for what the client sends, or downstream.
func (l *link) poison(kind, stream string, attributes map[string]int) error {
	l.toxic = kind
	text, err := json.Marshal(map[string]any{"name": kind, "type": kind, "stream": stream, "toxicity": 1.0, "attributes": attributes})
	if err != nil {
		return err
	}
	_, err = l.proxy.Toxics.AddToxicJson(strings.NewReader(string(text)))
	return err
}

// cut ends all connections of a link and refuses new ones.
func (l *link) cut() {
	l.down = true
	l.proxy.Stop()
}

// heal makes a link good again.
func (l *link) heal() error {
	if l.toxic != "" {
		healed := make(chan struct{})
		go func() {
			defer close(healed)
			l.proxy.Toxics.ResetToxics(context.Background())
		}()
		select {
		case <-healed:
		case <-time.After(healPatience):
			// A toxic waits for somebody to take what it holds.
			l.down = true
			l.proxy.Stop()
			<-healed
		}
		l.toxic = ""
	}
	if l.down {
		l.down = false
		return l.proxy.Start()
	}
	return nil
}

func (l *link) close() {
	if !l.down {
		l.proxy.Stop()
	}
}

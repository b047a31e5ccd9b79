package config_test

import (
	"fmt"
	"strings"
	"testing"

	"meshrelay/config"
)

func TestMistakesInPeersAreNamed(t *testing.T) {
	const files = "certFile: c.pem, keyFile: k.pem, caFile: ca.pem"
	for text, want := range map[string]string{
		"service: \"relay:15016\", " + files: "",
		files:                                "replicas.peers.service: missing",
		"service: relay, " + files:           "replicas.peers.service: \"relay\" is not host:port",
		"service: \"relay:0\", " + files:     "replicas.peers.service: \"relay:0\": the port",
		"service: \"relay:1\", certFile: c.pem, keyFile: k.pem":                      "replicas.peers: certFile, keyFile and caFile are all needed",
		"service: \"relay:1\", listen: \":15010\", " + files:                         "already the address of downstream.listeners[0]",
		"service: \"relay:1\", listen: \":15014\", " + files:                         "already admin.address",
		"service: \"relay:1\", identities: [relay.example], " + files:                "write \"dns:relay.example\"",
		"service: \"relay:1\", identities: [\"spiffe://*/ns/*/sa/relay\"], " + files: "",
	} {
		_, err := config.Parse("relay.yaml", []byte(fmt.Sprintf("upstreams: [{name: a, file: {path: .}}]\ndownstream: {listeners: [{address: \"127.0.0.1:15010\", plaintext: true}]}\nreplicas: {peers: {%s}}\n", text)), sources()...)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

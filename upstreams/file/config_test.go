package file

import (
	"strings"
	"testing"

	"meshrelay/config"
)

func TestAFileUpstreamNeedsAPath(t *testing.T) {
	const text = `upstreams:
- name: west
  file: {}
downstream: {listeners: [{address: "127.0.0.1:15010", plaintext: true}]}
`
	_, err := config.Parse("relay.yaml", []byte(text), &Config{})
	if err == nil || !strings.Contains(err.Error(), "relay.yaml:3: upstreams[0].file.path: missing: name a file or a directory") {
		t.Error(err)
	}
}

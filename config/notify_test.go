package config_test

import (
	"strings"
	"testing"
)

// TestMistakesOfReceiversAreNamed, without what may be a secret.
func TestMistakesOfReceiversAreNamed(t *testing.T) {
	const base = `
upstreams: [{name: east, file: {path: x}}]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
notify:
- `
	for text, want := range map[string]string{
		`{url: "http://x/", on: [held]}`:                                                         "notify[0].name",
		`{name: a, on: [held]}`:                                                                  `notify[0]: receiver "a" needs either url or urlFile`,
		`{name: a, url: "ftp://x/canary", on: [held]}`:                                           "notify[0].url: it is not a URL as in https://receiver.example/hook",
		`{name: a, url: "http://u:canary@x/", on: [held]}`:                                       "notify[0].url: it has a user or parameters, which may be secrets",
		`{name: a, url: "http://x/?t=canary", on: [held]}`:                                       "put it into a file, and name that in urlFile",
		`{name: a, url: "https://hooks.slack.com/canary", format: slack, on: [held]}`:            "notify[0].url: the URL of a Slack webhook is a secret",
		`{name: a, url: "http://x/", on: [hold]}`:                                                "notify[0].on[0]",
		`{name: a, url: "http://x/"}`:                                                            "notify[0].on: it is empty",
		`{name: a, url: "http://x/", on: [held], upstreams: [west]}`:                             `notify[0].upstreams[0]: there is no upstream "west"`,
		`{name: a, url: "http://x/", on: [held], format: xml}`:                                   "notify[0].format",
		`{name: a, url: "http://x/", on: [held], timeout: 2h}`:                                   "notify[0].timeout",
		`{name: a, url: "http://x/", on: [held], tls: {certFile: /dev/null}}`:                    "notify[0].tls: certFile and keyFile go together",
		"{name: a, url: \"http://x/\", on: [held]}\n- {name: a, url: \"http://y/\", on: [held]}": `notify[1].name: "a" is the name of notify[0] already`,
	} {
		_, err := parse("relay.yaml", []byte(base+text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := parse("relay.yaml", []byte(base+`{name: a, url: "http://x/hook", on: [held, nack], upstreams: [east]}`)); err != nil {
		t.Error(err)
	}
}

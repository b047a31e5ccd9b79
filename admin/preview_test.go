package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
)

// TestAPlanIsBounded: by the size of the file, and one at a time.
func TestAPlanIsBounded(t *testing.T) {
	var seen int
	var wrong error
	during := func() {}
	looked := func(config []byte) error {
		seen = len(config)
		during()
		return wrong
	}
	f := newFixture(t, Config{}, func(d *Deps) {
		d.Preview = func(_ context.Context, config []byte) (Preview, error) { return Preview{}, looked(config) }
	})
	for _, path := range []string{"/plan"} {
		post := func(body string) request {
			return request{method: http.MethodPost, path: path, body: body, peer: &peer{UID: 1}}
		}
		wrong = nil
		if code, body, _ := f.do(t, post(strings.Repeat("x", maxConfigBytes))); code != http.StatusOK || body != "{}\n" || seen != maxConfigBytes {
			t.Errorf("%s: %d %q of %d bytes", path, code, body, seen)
		}
		if code, body, _ := f.do(t, post(strings.Repeat("x", maxConfigBytes+1))); code != http.StatusBadRequest || !strings.Contains(body, "more than 1 MiB") {
			t.Errorf("%s: a file that is too large: %d %q", path, code, body)
		}
		during = func() {
			during = func() {}
			if code, _, _ := f.do(t, post("x")); code != http.StatusServiceUnavailable {
				t.Errorf("%s: a plan during a plan: %d", path, code)
			}
		}
		f.do(t, post("x"))
		wrong = errors.New("line 1: wrong")
		if code, body, _ := f.do(t, post("x")); code != http.StatusUnprocessableEntity || !strings.Contains(body, "line 1: wrong") {
			t.Errorf("%s: a wrong file: %d %q", path, code, body)
		}
	}
}

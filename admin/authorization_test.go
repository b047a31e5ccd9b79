package admin

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"meshrelay/downstream"
)

// TestAPlanOfClientsIsBounded: by the size of the file, and one at a time.
func TestAPlanOfClientsIsBounded(t *testing.T) {
	f := newFixture(t, Config{})
	post := func(body string) request {
		return request{method: http.MethodPost, path: "/plan/clients", body: body, peer: &peer{UID: 1}}
	}
	var seen int
	during := func() {}
	f.deps.PreviewClients = func(_ context.Context, config []byte) ([]downstream.ClientChange, error) {
		seen = len(config)
		during()
		return nil, nil
	}
	if code, body, _ := f.do(t, post(strings.Repeat("x", maxConfigBytes))); code != http.StatusOK || body != "[]\n" || seen != maxConfigBytes {
		t.Errorf("%d %q of %d bytes", code, body, seen)
	}
	if code, body, _ := f.do(t, post(strings.Repeat("x", maxConfigBytes+1))); code != http.StatusBadRequest || !strings.Contains(body, "more than 1 MiB") {
		t.Errorf("a file that is too large: %d %q", code, body)
	}
	during = func() {
		during = func() {}
		if code, _, _ := f.do(t, post("x")); code != http.StatusServiceUnavailable {
			t.Errorf("a plan during a plan: %d", code)
		}
	}
	f.do(t, post("x"))
	f.deps.PreviewClients = func(context.Context, []byte) ([]downstream.ClientChange, error) {
		return nil, errors.New("line 1: wrong")
	}
	if code, body, _ := f.do(t, post("x")); code != http.StatusUnprocessableEntity || !strings.Contains(body, "line 1: wrong") {
		t.Errorf("a wrong file: %d %q", code, body)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/admin"
)

// TestAWaitEndsWithItsConditionOrItsTimeout, and then tells why the condition was not met: not that the last look took
// too long.
func TestAWaitEndsWithItsConditionOrItsTimeout(t *testing.T) {
	unmet, never := errors.New("upstream east is connecting"), &neverError{errors.New("the relay has no sinks")}
	for name, tc := range map[string]struct {
		every time.Duration
		look  func(n int) error
		want  string
		after time.Duration
	}{
		"met at once":     {waitEvery, func(int) error { return nil }, "<nil>", 0},
		"met later":       {waitEvery, func(n int) error { return map[bool]error{true: unmet}[n < 5] }, "<nil>", 4 * waitEvery},
		"not met in time": {waitEvery, func(int) error { return unmet }, "not ready in time: upstream east is connecting", 2 * time.Second},
		"not met at once": {0, func(int) error { return unmet }, "not ready in time: upstream east is connecting", 0},
		"never to be met": {waitEvery, func(int) error { return never }, "the relay has no sinks", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				began, looks := time.Now(), 0
				err := waitFor(ctx, admin.Client{}, "ready", tc.every, func(ctx context.Context, _ admin.Client) error {
					looks++
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return tc.look(looks)
				})
				if after := time.Since(began); fmt.Sprint(err) != tc.want || after != tc.after {
					t.Errorf("%v after %v, want %q after %v", err, after, tc.want, tc.after)
				}
			})
		})
	}
}

// TestThereIsNoPlanBeforeAllUpstreamsHaveSynced: it would show their resources as removed.
func TestThereIsNoPlanBeforeAllUpstreamsHaveSynced(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"a.yaml":    "",
		"plan.yaml": "upstreams: [{name: gone, xds: {addresses: ['127.0.0.1:1'], plaintext: true}}]\ndownstream: {listeners: [{address: '127.0.0.1:0', plaintext: true}]}\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running := runRelay(t, fmt.Sprintf("upstreams: [{name: east, file: {path: %q}}]\n", filepath.Join(dir, "a.yaml")))
	cfg, err := loadConfig(filepath.Join(dir, "plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = plan(ctx, admin.Client{Address: running.admin}, cfg)
	if !regexp.MustCompile(`^no plan: upstreams have not synced in time: gone \(.*\); find the cause with relay doctor, or wait longer with --timeout$`).MatchString(fmt.Sprint(err)) {
		t.Error(err)
	}
}

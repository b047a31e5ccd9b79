package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	networkingv1 "istio.io/api/networking/v1alpha3"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/internal/visible"
)

// onScreen runs a command with a terminal as its output.
func onScreen(t *testing.T, args ...string) (out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(screen{Writer: visible.NewWriter(&stdout), terminal: true})
	root.SetErr(screen{Writer: visible.NewWriter(&stderr), terminal: true})
	if err := root.ExecuteContext(context.Background()); err != nil {
		t.Error(err)
	}
	return stdout.String(), stderr.String()
}

// TestATerminalGetsNoMoreResourcesThanTheLimit. A pipe gets all without --limit.
func TestATerminalGetsNoMoreResourcesThanTheLimit(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	var entries []fakexds.Resource
	for i := range usualRows + 7 {
		entries = append(entries, fakexds.MCP(fmt.Sprintf("shop/entry-%03d", i), &networkingv1.ServiceEntry{Hosts: []string{"a.example"}}))
	}
	s.Set("networking.istio.io/v1/ServiceEntry", entries...)
	get := func(more ...string) []string {
		return append([]string{"get", "se", "-A", "--server", s.Addr}, more...)
	}
	for _, format := range []string{"yaml", "json", "name"} {
		for limit, want := range map[string]int{"": usualRows, "5": 5, "0": usualRows + 7} {
			args := get("-o", format)
			if limit != "" {
				args = append(args, "--limit", limit)
			}
			out, errs := onScreen(t, args...)
			if n := strings.Count(out, "entry-"); n != want {
				t.Errorf("%s, limit %q: %d resources", format, limit, n)
			}
			left := fmt.Sprintf("left out: %d more resources; --limit 0 prints all", usualRows+7-want)
			if told := strings.Contains(errs, left); told != (want < usualRows+7) {
				t.Errorf("%s, limit %q: %q", format, limit, errs)
			}
		}
		for limit, want := range map[string]int{"": usualRows + 7, "5": 5} {
			args := get("-o", format)
			if limit != "" {
				args = append(args, "--limit", limit)
			}
			var out, errs bytes.Buffer
			if code := execute(args, &out, &errs); code != 0 || strings.Count(out.String(), "entry-") != want {
				t.Errorf("%s into a pipe, limit %q: %d, %d resources, %s", format, limit, code, strings.Count(out.String(), "entry-"), errs.String())
			}
		}
	}
	if out, _ := onScreen(t, get("-o", "jsonpath={.items[*].metadata.name}")...); strings.Count(out, "entry-") != usualRows+7 {
		t.Error("a template does not get all")
	}
}

// TestAWatchOnATerminalBeginsWithNoMoreThanTheLimit. It shows every later change, also of resources that it left out.
// A pipe gets all without --limit.
func TestAWatchOnATerminalBeginsWithNoMoreThanTheLimit(t *testing.T) {
	const typeURL = "networking.istio.io/v1/ServiceEntry"
	entries := func(last string) (all []fakexds.Resource) {
		for i := range usualRows + 7 {
			host := "a.example"
			if i == usualRows+6 {
				host = last
			}
			all = append(all, fakexds.MCP(fmt.Sprintf("shop/entry-%03d", i), &networkingv1.ServiceEntry{Hosts: []string{host}}))
		}
		return all
	}
	for _, tc := range []struct {
		format, limit string
		terminal      bool
		want          int
	}{
		{"table", "", true, usualRows}, {"json", "", true, usualRows}, {"name", "5", true, 5}, {"table", "0", true, usualRows + 7},
		{"table", "", false, usualRows + 7}, {"name", "", false, usualRows + 7}, {"yaml", "5", false, 5},
	} {
		t.Run(fmt.Sprintf("%s, limit %q, terminal %v", tc.format, tc.limit, tc.terminal), func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Set(typeURL, entries("a.example")...)
			args := []string{"get", "se", "-A", "--watch", "-o", tc.format, "--server", s.Addr}
			if tc.limit != "" {
				args = append(args, "--limit", tc.limit)
			}
			var out, errs lockedBuffer
			stop := backgroundInto(t, screen{Writer: visible.NewWriter(&out), terminal: tc.terminal}, screen{Writer: visible.NewWriter(&errs), terminal: tc.terminal}, args...)
			shown := func() int { return strings.Count(out.String(), cliview.Added) }
			await.Until(t, "the first listing", func() bool { return shown() >= tc.want })
			note := ""
			if left := usualRows + 7 - tc.want; left > 0 {
				note = fmt.Sprintf("left out: %d more resources; --limit 0 prints all; changes of all resources follow\n", left)
			}
			await.Until(t, "the note", func() bool { return errs.String() == note })
			s.Set(typeURL, entries("b.example")...)
			s.Push(typeURL)
			await.Until(t, "the change", func() bool { return strings.Contains(out.String(), cliview.Modified) })
			if err := stop(); err != nil || shown() != tc.want || strings.Count(out.String(), cliview.Modified) != 1 || errs.String() != note {
				t.Errorf("%v, %d at first, want %d\n%s", err, shown(), tc.want, errs.String())
			}
		})
	}
}

// lockedBuffer holds the output of a command that runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// background runs a command until stop, and returns what it prints.
func background(t *testing.T, args ...string) (out *lockedBuffer, stop func() error) {
	t.Helper()
	out = &lockedBuffer{}
	return out, backgroundInto(t, out, out, args...)
}

// backgroundInto runs a command until stop, with its output and errors in these writers.
func backgroundInto(t *testing.T, out, errs io.Writer, args ...string) (stop func() error) {
	t.Helper()
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

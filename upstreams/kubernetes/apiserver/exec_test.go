package apiserver

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
)

// programKubeconfig writes a kubeconfig whose user runs a script.
func programKubeconfig(t *testing.T, server *httptest.Server, script string) Credentials {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, path, server, "")
	program := filepath.Join(filepath.Dir(path), "login")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprintf(`{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: IfAvailable, provideClusterInfo: true, env: [{name: WHO, value: relay}]}}`, program)
	changed := strings.Replace(string(text), `{token: ""}`, user, 1)
	if changed == string(text) {
		t.Fatal("the user is not there")
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	return Credentials{Cluster: config.Cluster{Kubeconfig: path, AllowExec: []string{program}}}
}

// prints is a script that prints a credential.
func prints(status string) string {
	return fmt.Sprintf("echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":%s}'\n", status)
}

func TestAProgramGivesTheCredentials_K8(t *testing.T) {
	s := fakekube.New()
	s.Token = "good"
	dir := t.TempDir()
	server := s.Start(t)
	section := programKubeconfig(t, server, "echo run >>"+dir+"/runs; echo \"$WHO $KUBERNETES_EXEC_INFO\" >"+dir+"/told; cat "+dir+"/answer\n")
	answer := func(token string) {
		t.Helper()
		text := fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":%q}}`, token)
		if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := func() int {
		b, err := os.ReadFile(filepath.Join(dir, "runs"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "run")
	}
	answer("good")
	c := NewClient(&section, "test")
	defer c.Close()
	for range 3 {
		if err := c.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Current().clusterUID(t.Context()); err != nil || runs() != 1 {
		t.Errorf("%v, after %d runs", err, runs())
	}
	told, err := os.ReadFile(filepath.Join(dir, "told"))
	if err != nil || !strings.HasPrefix(string(told), `relay {"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"`) || !strings.Contains(string(told), `"server":"`+server.URL) {
		t.Errorf("it was told %s: %v", told, err)
	}
	// A credential that the server refuses is renewed.
	s.Set(func() { s.Token = "newer" })
	answer("newer")
	if _, err := c.Current().clusterUID(t.Context()); err == nil {
		t.Error("the server has accepted the former token")
	}
	if err := c.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Current().clusterUID(t.Context()); err != nil || runs() != 2 || c.Rotations() != 1 {
		t.Errorf("%v, after %d runs", err, runs())
	}
}

func TestCredentialsOfAProgramAreRenewedBeforeTheyExpire_K8(t *testing.T) {
	now := time.Now()
	i := &issued{expires: now.Add(early + time.Second)}
	if !i.valid(i.of, now) || i.valid(i.of, now.Add(2*time.Second)) || (&issued{}).valid(i.of, now) == false || (*issued)(nil).valid(i.of, now) {
		t.Error("not renewed in time, or too early")
	}
}

func TestTheOutputOfAProgramIsCheckedAndBounded_K8(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"no JSON":              {"echo hunter2", "its output is not an ExecCredential"},
		"another kind":         {`echo '{"kind":"Pod","apiVersion":"v1"}'`, "its output is a Pod of v1"},
		"nothing in it":        {prints(`{}`), "neither a token nor a certificate with its key"},
		"a key is missing":     {prints(`{"clientCertificateData":"x"}`), "neither a token nor a certificate with its key"},
		"an end with an error": {"echo you are nobody >&2; exit 3", "exit status 3: you are nobody"},
		"a million of words":   {"yes | head -c 1000000 >&2; exit 3", "exit status 3: y y"},
		"output without end":   {"yes", "it has printed more than 1024 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakekube.New()
			section := programKubeconfig(t, s.Start(t), tc.script)
			c := NewClient(&section, "test")
			err := c.Refresh(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 4096 {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestAProgramThatHangsEndsWithTheRelay_K8(t *testing.T) {
	s := fakekube.New()
	dir := t.TempDir()
	section := programKubeconfig(t, s.Start(t), "sleep 1000 & echo $! >"+dir+"/child.new; mv "+dir+"/child.new "+dir+"/child; wait\n")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- NewClient(&section, "test").Refresh(ctx) }()
	var child []byte
	await.Until(t, "the program runs", func() bool {
		var err error
		child, err = os.ReadFile(filepath.Join(dir, "child"))
		return err == nil
	})
	cancel()
	if err := await.Value(t, "the program has ended", ended); err == nil {
		t.Error("it has credentials")
	}
	process := filepath.Join("/proc", strings.TrimSpace(string(child)), "cmdline")
	await.Until(t, "its children have ended", func() bool {
		text, err := os.ReadFile(process)
		return err != nil || len(text) == 0
	}, func() any { text, err := os.ReadFile(process); return fmt.Sprintf("%q, %v", text, err) })
}

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hookSeen is what a receiver was sent.
type hookSeen struct{ path, token, body string }

// TestATestMessageIsMarked_EachReceiversAnswerIsPrinted_AndNoSecretIs.
func TestATestMessageIsMarked_EachReceiversAnswerIsPrinted_AndNoSecretIs(t *testing.T) {
	const canary = "T0KEN-canary"
	seen := make(chan hookSeen, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		seen <- hookSeen{r.URL.Path, r.Header.Get("Authorization"), string(body)}
		switch {
		case strings.HasPrefix(r.URL.Path, "/echo/"): // an answer that no client understands, with the secrets in it
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 %s%s nonsense\r\n\r\n", r.URL.Path, r.Header.Get("Authorization"))
		case r.URL.Path == "/refuses":
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := write("token", canary)
	config := write("relay.yaml", fmt.Sprintf(`node: {id: hub}
upstreams: [{name: east, file: {path: .}}]
downstream: {listeners: [{address: "127.0.0.1:0", plaintext: true}]}
notify:
- {name: pager, url: %[1]s/hook, tokenFile: %[2]s, on: [held]}
- {name: alerts, url: %[1]s, format: alertmanager, on: [stale]}
- {name: chat, urlFile: %[3]s, format: slack, on: [nack]}
- {name: echo, urlFile: %[4]s, tokenFile: %[2]s, on: [nack]}
- {name: refuses, url: %[1]s/refuses, on: [held]}
`, server.URL, token, write("chat", server.URL+"/services/"+canary), write("echo", server.URL+"/echo/"+canary)))
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := execute(append([]string{"notify", "test", "-c", config}, args...), &out, &out)
		if strings.Contains(out.String(), canary) {
			t.Errorf("a secret is in\n%s", out.String())
		}
		return code, out.String()
	}

	code, text := run()
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"pager      json           taken\n", "alerts     alertmanager   taken\n", "chat       slack          taken\n", "echo       json           not taken: ", "refuses    json           not taken: the receiver answers 403 Forbidden\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	got := map[string]hookSeen{}
	for range 5 {
		s := <-seen
		got[s.path] = s
	}
	var message struct {
		Relay  string
		Events []struct{ Type, Text string }
	}
	if err := json.Unmarshal([]byte(got["/hook"].body), &message); err != nil || len(message.Events) != 1 || message.Relay != "hub" || message.Events[0].Type != "test" || !strings.Contains(message.Events[0].Text, "nothing has happened") {
		t.Errorf("json: %v %s", err, got["/hook"].body)
	}
	if got["/hook"].token != "Bearer "+canary {
		t.Errorf("token %q", got["/hook"].token)
	}
	var alerts []struct{ Labels map[string]string }
	if err := json.Unmarshal([]byte(got["/api/v2/alerts"].body), &alerts); err != nil || len(alerts) != 1 || alerts[0].Labels["alertname"] != "RelayTest" || alerts[0].Labels["severity"] != "info" {
		t.Errorf("alertmanager: %v %s", err, got["/api/v2/alerts"].body)
	}
	if body := got["/services/"+canary].body; !strings.Contains(body, "this is a test of the receiver chat") {
		t.Errorf("slack: %s", body)
	}

	if code, text := run("pager", "-o", "json"); code != 0 || !strings.Contains(text, `"receiver": "pager"`) || strings.Contains(text, "chat") {
		t.Errorf("one receiver: %d %s", code, text)
	}
	if s := <-seen; s.path != "/hook" {
		t.Errorf("one receiver, and %s was told", s.path)
	}
	if code, text := run("nobody"); code != 1 || !strings.Contains(text, `has no receiver "nobody": there is pager, alerts, chat, echo, refuses`) {
		t.Errorf("an unknown receiver: %d %s", code, text)
	}
	config = write("none.yaml", "upstreams: [{name: east, file: {path: .}}]\ndownstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\n")
	if code, text := run(); code != 1 || !strings.Contains(text, "none.yaml has no receivers: add a section notify") {
		t.Errorf("no receivers: %d %s", code, text)
	}
}

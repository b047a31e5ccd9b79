package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"unicode"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
)

const evil = "a\x1b]0;pwned\x07\x1b[31m\u009b2J\x7f\u202eb"

// TestNothingThatIsPrintedSteersTheTerminal, whatever a server or another process on its port sends, in any format.
func TestNothingThatIsPrintedSteersTheTerminal(t *testing.T) {
	source := fakexds.Start(t, &fakexds.Server{})
	entry := func(host string) fakexds.Resource {
		return fakexds.MCP("shop/"+evil, &networking.ServiceEntry{Hosts: []string{host}}, func(r *mcp.Resource) {
			r.Metadata.Annotations = map[string]string{evil: evil}
		})
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, evil, http.StatusForbidden)
	})}
	go server.Serve(lis) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { server.Close() })

	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := execute(args, &out, &errs); code != want {
			t.Errorf("%v: exit code %d: %s", args, code, errs.String())
		}
		for name, text := range map[string]string{"output": out.String(), "errors": errs.String()} {
			for _, r := range text {
				if r != '\n' && (unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r)) {
					t.Errorf("%v: %q in the %s: %q", args, r, name, text)
					break
				}
			}
		}
		return out.String() + errs.String()
	}
	// A name that is sent twice is in an error; a single one is in the output.
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	for _, twice := range []bool{false, true} {
		resources := []fakexds.Resource{entry("a.example")}
		if twice {
			resources = append(resources, entry("b.example"))
		}
		for _, url := range []string{"v1", "v1beta1", "v1alpha3"} {
			source.Set(kind.TypeURL(url), resources...)
		}
		for _, format := range []string{"table", "name", "yaml", "json"} {
			text := run(map[bool]int{false: 0, true: 1}[twice], "get", "se", "-A", "--server", source.Addr, "--plaintext", "-o", format)
			if !strings.Contains(text, "pwned") {
				t.Errorf("-o %s does not show the name: %s", format, text)
			}
		}
	}
	if text := run(1, "status", "--admin", lis.Addr().String()); !strings.Contains(text, `a\u001b]0;pwned`) {
		t.Errorf("the refusal is not shown: %s", text)
	}
	run(1, "validate", "-c", fmt.Sprintf("%q", evil))
}

package apiserver

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"meshrelay/config"
)

// kubeconfigBombs are kubeconfigs, within their size, that a library makes much more of.
func kubeconfigBombs() map[string]string {
	nine := func(c string) string { return "[" + strings.Repeat(c+",", 9) + "]" }
	aliases := "x0: &x0 " + nine("x") + "\n"
	for i := range 9 {
		aliases += fmt.Sprintf("x%d: &x%d %s\n", i+1, i+1, nine(fmt.Sprintf("*x%d ", i)))
	}
	return map[string]string{
		"aliases of a long text": "users:\n- name: &a " + strings.Repeat("S", 100<<10) + "\n" + strings.Repeat("- name: *a\n", 1_000),
		"aliases of aliases":     aliases,
		"100,000 brackets":       strings.Repeat("[", 100_000),
		"100,000 users":          "users: [" + strings.Repeat("{},", 80_000) + "]",
		"100,000 keys":           "preferences: {" + strings.Repeat("?,", 100_000) + "}",
	}
}

// TestAKubeconfigIsBoundedBeforeTheLibraryReadsIt: 154 KB of aliases of one text took 3 GB.
func TestAKubeconfigIsBoundedBeforeTheLibraryReadsIt(t *testing.T) {
	for name, bomb := range kubeconfigBombs() {
		path := filepath.Join(t.TempDir(), "east")
		if err := os.WriteFile(path, []byte(bomb), 0o600); err != nil {
			t.Fatal(err)
		}
		for place, check := range map[string]func() error{
			"found":  func() error { return CheckKubeconfig([]byte(bomb), Trust{}) },
			"a file": (&Credentials{Cluster: config.Cluster{Kubeconfig: path}}).Check,
		} {
			var err error
			if used := allocated(func() { err = check() }); used > 64<<20 {
				t.Errorf("%s, %s: %d bytes have %d MiB allocated", name, place, len(bomb), used>>20)
			}
			if err == nil || len(err.Error()) > 400 || strings.Contains(err.Error(), "SSSS") {
				t.Errorf("%s, %s: %v", name, place, err)
			}
			if place == "a file" && !strings.HasPrefix(err.Error(), path) {
				t.Errorf("%s: the error does not name the file: %v", name, err)
			}
			if want := "it has an anchor (&), an alias (*) or a tag (!) on line 2: write the value itself"; name == "aliases of a long text" && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", place, err, want)
			}
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// aliased has a text be one that may have aliases.
func aliased(text []byte) []byte { return append([]byte("# & and *\n"), text...) }

func TestTheErrorOfAKubeconfigQuotesNothingOfIt(t *testing.T) {
	for text, want := range map[string]string{
		"SECRET: 1\nSECRET: 2\n":                "line 3: it is not YAML",
		"a: [SECRET":                            "line 2: it is not YAML",
		"a: b\nc: \"SECRET":                     "line 3: it is not YAML",
		"SECRET: .nan":                          "unsupported value: NaN",
		"a: b\nc: d\nSECRET: !SECRET SECRET":    "or a tag (!) on line 4",
		"token: SECRET\nb: *SECRET":             "or a tag (!) on line 3",
		"a: SECRET\n\xff":                       "it is not UTF-8 text",
		strings.Repeat("SECRET: SECRET\n", 1e4): "it is too large",
	} {
		err := CheckKubeconfig(aliased([]byte(text)), Trust{})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"SECRET: [", "users: SECRET", "\xff\xfeS\x00E\x00"} {
		if err := CheckKubeconfig([]byte(text), Trust{}); err == nil || err.Error() != "it is not a kubeconfig" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestAKubeconfigMeansWhatKubectlWrites compares kubeconfigs as kubectl writes them with what is read of them.
func TestAKubeconfigMeansWhatKubectlWrites(t *testing.T) {
	words := rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ012 .:/-_=#'\"\\&*!{}[],|>%@`~?\né😀")), 0, 200, -1)
	names := rapid.OneOf(rapid.StringMatching(`[a-zA-Z0-9_.:/@-]{1,40}`), rapid.StringMatching(`\.[0_]{2,3}`)) // and texts that are numbers to one library, and not to another
	rapid.Check(t, func(t *rapid.T) {
		word := func(what string) string {
			w := words.Draw(t, what)
			if strings.TrimLeft(w, "\n") == "" {
				return "" // the YAML library refuses a text that has line breaks only
			}
			return w
		}
		file := api.NewConfig()
		for range rapid.IntRange(0, 3).Draw(t, "clusters") {
			name := names.Draw(t, "name")
			file.Clusters[name] = &api.Cluster{Server: word("server"), TLSServerName: word("server name"), CertificateAuthorityData: []byte(word("ca")), InsecureSkipTLSVerify: rapid.Bool().Draw(t, "insecure")}
			file.AuthInfos[name] = &api.AuthInfo{Token: word("token"), Username: word("user"), Exec: &api.ExecConfig{
				Command: word("command"), Args: []string{word("argument"), "yes", "1e3", "0x1", "null"}, APIVersion: "client.authentication.k8s.io/v1",
				InstallHint: word("hint"), InteractiveMode: api.NeverExecInteractiveMode, Env: []api.ExecEnvVar{{Name: names.Draw(t, "variable"), Value: word("value")}},
			}}
			file.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name, Namespace: word("namespace")}
			file.CurrentContext = name
		}
		text, err := clientcmd.Write(*file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := clientcmd.Load(text)
		if err != nil {
			t.Skip() // the library can not read what it writes
		}
		for _, text := range [][]byte{text, aliased(text)} {
			plain, err := plainOf(text, fileLimits)
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if got, err := clientcmd.Load(plain); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%v: %s\nin\n%s", err, cmp.Diff(got, want), text)
			}
		}
	})
}

// FuzzKubeconfig compares what the library makes of a text with what it makes of the text as the relay gives it to
// the library, and bounds what is allocated. json: the text is given to it as JSON, and is one that a library writes.
func FuzzKubeconfig(f *testing.F) {
	for _, bomb := range kubeconfigBombs() {
		f.Add([]byte(bomb), false)
	}
	f.Add([]byte("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: \"https://c:6443\", certificate-authority-data: "+base64.StdEncoding.EncodeToString([]byte("ca"))+"}\n"+
		"users: [{name: u, user: {exec: {command: aws, args: [a, 'b'], env: [{name: A, value: \"b\\u0041\"}]}}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"), true)
	f.Add([]byte("{\n\t\"users\": [{\"name\": \"a\", \"user\": {\"token\": \"\\u0026\\\"\"}}]\n}"), true)
	f.Add([]byte("users:\n- name: |\n    a\n  user:\n    token: >-\n      a\n      b\n"), true)
	f.Add([]byte("current-context: a\n---\ncurrent-context: b\n"), true)
	f.Fuzz(func(t *testing.T, text []byte, json bool) {
		var plain []byte
		var got *api.Config
		var err error
		if json {
			var value any
			if len(text) > 4096 || yaml.Unmarshal(text, &value) != nil {
				return
			}
			written, err := yaml.Marshal(value)
			if err != nil {
				return
			}
			text = aliased(written)
		}
		used := allocated(func() {
			if plain, err = plainOf(text, foundLimits); err == nil {
				got, err = clientcmd.Load(plain)
			}
		})
		if used > 64<<20 {
			t.Fatalf("%d bytes have %d MiB allocated", len(text), used>>20)
		}
		if err != nil || !json && string(plain) != string(text) || strings.ContainsAny(string(text), "\u0085\u2028\u2029") {
			return // the last are line breaks in YAML 1.1 only
		}
		if want, err := clientcmd.Load(text); err == nil && !reflect.DeepEqual(got, want) { // no alias is in it
			t.Errorf("%q as %s: %s", text, plain, cmp.Diff(got, want))
		}
	})
}

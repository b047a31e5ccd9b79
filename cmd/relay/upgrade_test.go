package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshrelay/admin"
)

// TestAConfigAndAStateOfTheBuildBeforeAreUsedAndKept: a relay starts with a config file and a relay.db of
// the last build that kept its state there, serves what was in it, and leaves both as they were, so
// that the former build can start with them again. That build accepts testdata/earlier/relay.yaml, and has
// written the state.
func TestAConfigAndAStateOfTheBuildBeforeAreUsedAndKept(t *testing.T) {
	dir, ports := t.TempDir(), freePorts(t, 2)
	text, err := os.ReadFile("testdata/earlier/relay.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("127.0.0.1:15010"), fmt.Append(nil, "127.0.0.1:", ports[0]), 1)
	text = bytes.Replace(text, []byte("127.0.0.1:15014"), fmt.Append(nil, "127.0.0.1:", ports[1]), 1)
	packed, err := os.Open("../../state/local/testdata/relay.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	database, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	file, former := filepath.Join(dir, "relay.yaml"), filepath.Join(dir, "state", "relay.db")
	for path, content := range map[string][]byte{file: text, former: database, filepath.Join(dir, "south", "empty.yaml"): nil} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	client := admin.Client{Address: fmt.Sprint("127.0.0.1:", ports[1])}
	for _, start := range []string{"the upgrade", "the next start"} {
		_, stop := background(t, "serve", "-c", file)
		within(t, start+": everything is served", func() bool {
			objects, err := client.Resources(t.Context())
			return err == nil && len(objects) == 52
		})
		all, err := client.Upstreams(t.Context())
		if err != nil || len(all) != 3 {
			t.Fatalf("%s: %d upstreams, %v", start, len(all), err)
		}
		if f := all[0].Frozen; f == nil || !strings.Contains(f.Reason, "ticket 17") || f.Revision != 4 {
			t.Errorf("%s: the freeze of the former build: %+v", start, f)
		}
		if err := stop(); err != nil {
			t.Errorf("%s: %v", start, err)
		}
		for path, want := range map[string][]byte{file: text, former: database} {
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s is not as it was: %v", start, path, err)
			}
		}
	}
}

package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestAKeyWithoutAValueIsAMistake: for each key of the configs of all releases, which have every field. A key without a
// value, such as "include:" of a namespace, would otherwise let everything through.
func TestAKeyWithoutAValueIsAMistake(t *testing.T) {
	tried := 0
	for _, path := range fixtures(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		root := parsed(t, text)
		eachKey("", root, func(at string) {
			tried++
			in, err := json.Marshal(root)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parse("relay.yaml", in); err == nil || !strings.Contains(err.Error(), "relay.yaml:1: "+at+": no value: write one, or leave the key out") {
				t.Errorf("%s without a value: %v", at, err)
			}
		})
	}
	if tried < 250 {
		t.Errorf("only %d keys", tried)
	}
	wantMistakes(t, withUpstream+"admin:\nlog: ~\n", []string{"7: admin: no value", "8: log: no value"})
}

// eachKey calls f with the path of each key below a value, while the key has no value.
func eachKey(at string, value any, f func(at string)) {
	switch value := value.(type) {
	case map[string]any:
		for name, was := range value {
			path := name
			if at != "" {
				path = at + "." + name
			}
			if strings.HasSuffix(at, ".set") || strings.HasSuffix(at, ".env") || strings.HasSuffix(at, "rewrite.namespaces") || strings.HasSuffix(at, "rewrite.hosts") {
				path = fmt.Sprintf("%s[%s]", at, name) // a key of the user's own
			}
			value[name] = nil
			f(path)
			value[name] = was
			eachKey(path, was, f)
		}
	case []any:
		for i, element := range value {
			eachKey(fmt.Sprintf("%s[%d]", at, i), element, f)
		}
	}
}

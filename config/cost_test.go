package config_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestAConfigThatIsTooLargeIsRefusedBeforeItIsParsed(t *testing.T) {
	var lines strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&lines, "k%d: v\n", i)
	}
	for name, text := range map[string]string{"lines": lines.String(), "flow": "upstreams: [" + strings.Repeat("1,", 400_000) + "1]\n"} {
		if _, err := parse("relay.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "relay.yaml:1: the file is too large") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

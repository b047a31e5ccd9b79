package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"meshrelay/docs"
)

// TestNamesInPagesExist: metrics, endpoints and fields of the config file that a page names in backquotes.
func TestNamesInPagesExist(t *testing.T) {
	metrics, endpoints, fields := read(t, "metrics.md"), read(t, "http.md"), docs.Fields()
	n := 0
	for _, p := range pages(t) {
		if p == "../CHANGELOG.md" || strings.HasPrefix(p, "adr/") {
			continue // of their time
		}
		text := read(t, p)
		for _, m := range regexp.MustCompile("`(?:rate\\()?(relay_[a-z_]+)").FindAllStringSubmatch(text, -1) {
			n++
			if !strings.Contains(metrics, "`"+m[1]+"`") {
				t.Errorf("%s names the metric %s, which metrics.md does not have", p, m[1])
			}
		}
		for _, m := range regexp.MustCompile("(?:`|15014|//relay)(/(?:debug|state|held|ready|healthz|metrics|upstreams|support)[a-z/]*)").FindAllStringSubmatch(text, -1) {
			n++
			if !strings.Contains(endpoints, " "+m[1]+"`") && !strings.Contains(m[1], "/upstreams/") {
				t.Errorf("%s names the endpoint %s, which http.md does not have", p, m[1])
			}
		}
		for _, m := range regexp.MustCompile("`((?:upstreams|views|clusters|downstream\\.listeners)\\[\\][a-zA-Z.\\[\\]]*)`").FindAllStringSubmatch(text, -1) {
			n++
			if _, is := fields[m[1]]; !is && m[1] != "upstreams[]" && m[1] != "views[]" && m[1] != "clusters[]" {
				t.Errorf("%s names the field %s, which configuration.md does not have", p, m[1])
			}
		}
	}
	if n < 300 {
		t.Errorf("%d names found: the patterns no longer fit", n)
	}
}

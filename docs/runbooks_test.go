package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"meshrelay/docs"
)

// TestRunbooksHaveOneForm: meaning, impact, three commands with what they show, what to do by what they print, and when
// to escalate. A page is short: people read it at night.
func TestRunbooksHaveOneForm(t *testing.T) {
	form := regexp.MustCompile(`^# (\w+)\n\n(?:[^*#\n -].*\n)+\n\*\*Impact\.\*\* (?:.+\n)+\n((?:    relay .+ # .+\n)+)\n((?:(?:- .+: |  ).+\n|- .+\n)+)\n\*\*Escalate\*\* (?:.+\n)+$`)
	names := docs.Runbooks()
	if len(names) < 20 {
		t.Errorf("%d runbooks", len(names))
	}
	for _, name := range names {
		text := docs.Runbook(name)
		m := form.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s has another form:\n%s", name, text)
			continue
		}
		if m[1] != name {
			t.Errorf("%s has the title %s", name, m[1])
		}
		if n := strings.Count(m[2], "\n"); n != 3 {
			t.Errorf("%s has %d commands", name, n)
		}
		if n := strings.Count("\n"+m[3], "\n- "); n < 2 {
			t.Errorf("%s has %d results", name, n)
		}
		if len(text) > 2000 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
		if strings.Contains(text, "-c relay.yaml") {
			t.Errorf("%s names a file that is not in the directory of a pod; commands find /etc/relay/relay.yaml", name)
		}
		for line := range strings.Lines(text) {
			if len(line) > 121 {
				t.Errorf("%s: a line of %d bytes: %s", name, len(line), line)
			}
		}
		if meaning := docs.Meaning(name); meaning == "" || strings.Contains(meaning, "\n") {
			t.Errorf("%s means %q", name, meaning)
		}
	}
	if docs.Runbook("../configuration") != "" || docs.Runbook("") != "" {
		t.Error("there are runbooks of other names")
	}
}

// TestRunbooksNameRunbooksThatExist.
func TestRunbooksNameRunbooksThatExist(t *testing.T) {
	for _, name := range docs.Runbooks() {
		for _, m := range regexp.MustCompile(`relay help\s+runbook\s+(\w+)`).FindAllStringSubmatch(docs.Runbook(name), -1) {
			if docs.Runbook(m[1]) == "" {
				t.Errorf("%s names the runbook %s", name, m[1])
			}
		}
	}
}

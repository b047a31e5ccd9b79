package ui

import (
	"strings"

	"meshrelay/admin/view"
	"meshrelay/internal/bundle"
)

// configPage shows the state of the config file, and the effective config without secrets.
func (p *Pages) configPage(r *request) (*Page, error) {
	text, err := p.data.Config()
	if err != nil {
		return nil, err
	}
	status := r.ready.Config
	validate := "relay validate -o yaml -c " + word(p.data.ConfigFile)
	page := &Page{
		Title: "Config", Command: validate, Topics: []string{topicConfig},
		Lead: say(OK, "The config file was loaded "+view.Ago(status.LastSuccess, r.now)+" ago."),
	}
	facts := []Fact{{"Loaded", at(status.LastSuccess)}, {"Last attempt", at(status.LastAttempt)}, {"Changed by the last load", cell(strings.Join(status.Changed, ", "))}}
	var problems []State
	if len(status.NeedsRestart) > 0 {
		page.Lead = say(Warn, "Some changed fields need a restart.")
		problems = append(problems, say(Warn, "restart needed for "+strings.Join(status.NeedsRestart, ", ")))
	}
	if status.Error != "" {
		page.Lead = say(Bad, "The config file can not be loaded; the previous config stays.")
		facts = append(facts, Fact{"Not loaded since", at(status.FailingSince)})
		for _, mistake := range status.Mistakes[:min(len(status.Mistakes), maxReasons)] {
			problems = append(problems, say(Bad, mistake))
		}
	}
	page.Sections = []Section{
		{ID: "file", Title: "Config file", Text: problems, Facts: facts},
		{ID: "effective", Title: "Effective config, with all defaults", Code: Bounded(string(bundle.Redact(text)), validate)},
	}
	return page, nil
}

package ui

// withoutViews describes the limit of a plan.
const withoutViews = "A plan ignores views: it is the plan for a client without a view."

// planPage shows the commands that list the effect of a config file or an order. The relay itself makes no plans.
func (p *Pages) planPage(*request) (*Page, error) {
	return &Page{
		Title: "What if", Command: "relay plan -c new.yaml", Lead: say(None, "What would another config file add, change and remove?"),
		Sections: []Section{
			{ID: "plan", Title: "Try a config file", Actions: []Action{
				{
					Title: "Plan a config file", Command: "relay plan -c new.yaml --diff",
					Why:  "The command connects to the upstreams of the file, merges their resources as a relay with that file would, and lists the differences to this relay. It serves nothing and changes nothing. " + withoutViews,
					Form: &Form{Path: "/act/plan", Area: "config"},
				},
				{Title: "Check a config file", Why: "List every mistake, with file and line.", Command: "relay validate -c new.yaml"},
			}},
			{ID: "orders", Title: "Try an order", Actions: []Action{
				{Title: "Release", Why: "List the resources that a release would delete.", Command: "relay release UPSTREAM --all --dry-run"},
				{Title: "Unfreeze", Why: "List the resources that the end of a freeze would change.", Command: "relay unfreeze UPSTREAM --dry-run"},
				{Title: "Roll back", Why: "List the resources that a rollback would change.", Command: "relay rollback UPSTREAM --to REVISION --dry-run"},
			}},
		},
	}, nil
}

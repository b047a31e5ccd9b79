package relay

import (
	"testing"

	"meshrelay/config"
)

// TestAViewWithoutRulesLimitsNobody: its clients may read all that clients without a view may.
func TestAViewWithoutRulesLimitsNobody(t *testing.T) {
	for name, tc := range map[string]struct {
		view    config.View
		limited bool
	}{
		"no rules":   {config.View{Name: "a", Default: true, Match: config.Match{NodeIDs: []string{"*"}}}, false},
		"sources":    {config.View{Name: "a", Sources: []string{"east"}}, true},
		"kinds":      {config.View{Name: "a", Kinds: []string{"se"}}, true},
		"namespaces": {config.View{Name: "a", Namespaces: config.Globs{Exclude: []string{"x"}}}, true},
		"selector":   {config.View{Name: "a", Selector: "a=b"}, true},
		"expression": {config.View{Name: "a", Expression: "true"}, true},
	} {
		views, err := viewsOf([]config.View{tc.view})
		if err != nil || (views[0].Accepts != nil) != tc.limited {
			t.Errorf("%s: %+v, %v", name, views, err)
		}
	}
}

// TestViewsShowTheSameIfTheirRulesAre: a reload leaves the clients of a view alone whose name and match alone are new.
func TestViewsShowTheSameIfTheirRulesAre(t *testing.T) {
	whole := config.View{
		Name: "a", Sources: []string{"east"}, Kinds: []string{"se"}, Selector: "a=b", Expression: "true",
		Namespaces: config.Globs{Include: []string{"x"}, Exclude: []string{"y"}},
	}
	shows := func(change func(*config.View)) string {
		v := whole
		change(&v)
		all, err := viewsOf([]config.View{v})
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Shows
	}
	same := shows(func(*config.View) {})
	if got := shows(func(v *config.View) { v.Name, v.Match.NodeIDs = "b", []string{"*"} }); got != same || got == "" {
		t.Errorf("another name: %s, not %s", got, same)
	}
	if got := shows(func(v *config.View) { *v = config.View{Name: "a"} }); got != "" {
		t.Errorf("without rules: %s", got)
	}
	seen := map[string]string{same: "all rules"}
	for name, change := range map[string]func(*config.View){
		"sources":            func(v *config.View) { v.Sources = []string{"west"} },
		"no sources":         func(v *config.View) { v.Sources = nil },
		"more sources":       func(v *config.View) { v.Sources = []string{"east", "west"} },
		"kinds":              func(v *config.View) { v.Kinds = []string{"vs"} },
		"no kinds":           func(v *config.View) { v.Kinds = nil },
		"namespaces":         func(v *config.View) { v.Namespaces.Include = []string{"z"} },
		"left out":           func(v *config.View) { v.Namespaces.Exclude = []string{"z"} },
		"namespaces swapped": func(v *config.View) { v.Namespaces = config.Globs{Include: []string{"y"}, Exclude: []string{"x"}} },
		"selector":           func(v *config.View) { v.Selector = "a=c" },
		"expression":         func(v *config.View) { v.Expression = "false" },
		"one for another":    func(v *config.View) { v.Selector, v.Expression = "", "" },
	} {
		got := shows(change)
		if other := seen[got]; other != "" {
			t.Errorf("%s shows the same as %s: %s", name, other, got)
		}
		seen[got] = name
	}
}

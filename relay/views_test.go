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
		"no rules":   {config.View{Name: "a", Default: true, ExcludeOwn: true, Match: config.Match{NodeIDs: []string{"*"}}}, false},
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

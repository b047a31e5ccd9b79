package relay

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/config"
	"meshrelay/mirror"
)

func TestViewShowsNothingWithoutANamespaceWhereOneIsIncluded(t *testing.T) {
	body, err := anypb.New(&structpb.Struct{})
	if err != nil {
		t.Fatal(err)
	}
	widget, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, Name: "w"}, Source: "east", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	all, tenant := config.View{Name: "all"}, config.View{Name: "tenant"}
	tenant.Namespaces.Include = []string{"shop"}
	views, err := viewsOf([]config.View{all, tenant})
	if err != nil {
		t.Fatal(err)
	}
	if hides := views[0].Accepts; hides != nil && !hides(widget) {
		t.Error("a view without rules hides it")
	}
	if views[1].Accepts(widget) {
		t.Error("a view of one namespace shows it")
	}
}

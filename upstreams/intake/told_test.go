package intake

import (
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	extensions "istio.io/api/extensions/v1alpha1"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// A file source tells all that it has at once. A kind of which nothing is left need not be named.
func TestAKindThatASourceWithoutAStreamTellsNoMoreIsGone(t *testing.T) {
	m := newMachine(t, false, config.Provenance{})
	body, err := anypb.New(&extensions.WasmPlugin{Url: "oci://a"})
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: federation.WasmPlugin, Namespace: "shop", Name: "p"}, Source: "east", Body: body})
	if err != nil {
		t.Fatal(err)
	}
	tell := func(unsure bool, all ...*mirror.Resource) {
		t.Helper()
		e := Received{Live: true, Unsure: unsure}
		for _, r := range all {
			e.Updates = append(e.Updates, records.Update{Scope: records.KindScope(r.Kind()), Complete: true, Elements: records.Resources(r)})
		}
		m.step(e)
	}
	serves := func(entries, extensions int) {
		t.Helper()
		if n, made := len(m.store.List(federation.ServiceEntry, "")), len(m.store.List(federation.TrafficExtension, "")); n != entries || made != extensions {
			t.Errorf("%d ServiceEntries and %d TrafficExtensions are served, want %d and %d", n, made, entries, extensions)
		}
	}
	tell(false, plugin, given(t, "shop/a", nil))
	serves(1, 1)
	tell(true, plugin) // it has told the ServiceEntry itself: that it can not read a file does not bring that back
	tell(true, plugin)
	serves(0, 1) // and nobody but the WasmPlugin tells of its TrafficExtension
	m.limit(func(l *config.Limits) { l.MaxResources = 2 })
	tell(false, given(t, "shop/a", nil)) // in the room of what is gone
	serves(1, 0)
	tell(false)
	serves(0, 0)
}

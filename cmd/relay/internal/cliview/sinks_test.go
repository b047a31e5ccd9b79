package cliview

import (
	"encoding/json"
	"testing"

	"meshrelay/internal/kube"
	"meshrelay/sink"
)

func TestADifferenceOfASinkIsShownAsYAMLHoweverItsJSONIsIndented(t *testing.T) {
	const want = `
diff live ServiceEntry shop/db apply ServiceEntry shop/db
--- live ServiceEntry shop/db
+++ apply ServiceEntry shop/db
@@ -4,4 +4,4 @@
   name: db
 spec:
   hosts:
-  - a.example
+  - b.example
`
	for _, indent := range []string{"", "    "} {
		of := func(host string) *kube.Object {
			text, err := json.MarshalIndent(map[string]any{"hosts": []string{host}}, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			return &kube.Object{APIVersion: "networking.istio.io/v1", Kind: "ServiceEntry", Metadata: kube.Metadata{Name: "db"}, Spec: text}
		}
		d := sink.Differences{Differences: []sink.Difference{{Resource: "ServiceEntry shop/db", Do: "apply", Live: of("a.example"), Then: of("b.example")}}}
		if have := SinkDiff(d); have != want {
			t.Errorf("with indent %q it prints\n%s\nwant\n%s", indent, have, want)
		}
	}
}

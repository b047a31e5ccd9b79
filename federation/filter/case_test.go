package filter

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestAnExpressionSeesHostsAsTheyCame, and can compare them without regard to case.
func TestAnExpressionSeesHostsAsTheyCame(t *testing.T) {
	entry := filterItem()
	entry.namespace, entry.name = "public", "consumers:cn.example.Service::.DEFAULT-GROUP.public"
	entry.body = &networking.ServiceEntry{Hosts: []string{"Consumers.DEFAULT-GROUP.public.Nacos"}}
	for expression, passes := range map[string]bool{
		`spec.hosts.exists(h, h.lowerAscii().endsWith(".default-group.public.nacos"))`:  true,
		`spec.hosts.exists(h, h.matches("(?i)[.]default-group[.]public[.]nacos$"))`:     true,
		`spec.hosts.exists(h, h.endsWith(".nacos"))`:                                    false,
		`spec.hosts[0] == "Consumers.DEFAULT-GROUP.public.Nacos"`:                       true,
		`name == "consumers:cn.example.Service::.DEFAULT-GROUP.public"`:                 true,
		`name.split(":")[1] == "cn.example.Service" && name.contains(".DEFAULT-GROUP")`: true,
	} {
		f, err := New(Rules{Expression: expression})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Check(entry.build(t)).Passes(); got != passes {
			t.Errorf("%s passes: %v", expression, got)
		}
	}
}

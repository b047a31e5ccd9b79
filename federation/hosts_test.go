package federation

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzHostFields(f *testing.F) {
	f.Add(encoded(f, &networking.ServiceEntry{Hosts: []string{"db.example"}, ExportTo: []string{"."}}))
	f.Add(encoded(f, &networking.VirtualService{Hosts: []string{"web"}, Gateways: []string{"mesh"}, ExportTo: []string{"*"}}))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, body []byte) {
		got := EntryHosts.Parse(body)
		ServiceHosts.Parse(body)
		se := &networking.ServiceEntry{}
		if proto.Unmarshal(body, se) != nil {
			return
		}
		if !slices.Equal(got.Hosts, se.Hosts) || !slices.Equal(got.ExportTo, se.ExportTo) || got.Gateways != nil {
			t.Errorf("%q %q, want %q %q", got.Hosts, got.ExportTo, se.Hosts, se.ExportTo)
		}
	})
}

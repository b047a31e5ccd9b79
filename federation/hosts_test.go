package federation

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/wire"
)

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzExportTo(f *testing.F) {
	f.Add(encoded(f, &networking.ServiceEntry{Hosts: []string{"db.example"}, ExportTo: []string{"."}}))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, body []byte) {
		hosts, to := wire.Texts(body, claims[ServiceEntry].texts), wire.Texts(body, exports[ServiceEntry])
		se := &networking.ServiceEntry{}
		if proto.Unmarshal(body, se) != nil {
			return
		}
		if !slices.Equal(hosts, se.Hosts) || !slices.Equal(to, se.ExportTo) {
			t.Errorf("%q %q, want %q %q", hosts, to, se.Hosts, se.ExportTo)
		}
	})
}

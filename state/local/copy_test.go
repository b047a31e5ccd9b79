package local

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"meshrelay/state"
)

func copyOf(t testing.TB, saved state.Saved) []byte {
	t.Helper()
	var b bytes.Buffer
	must(t, WriteCopy(&b, "east", saved))
	return b.Bytes()
}

func sampleCopy() state.Saved {
	addressed := *record("b", "b.example")
	addressed.Original = resource("b", "b.internal")
	return state.Saved{
		Meta: state.Meta{
			Synced: true, LastContact: time.Unix(1_700_000_000, 0).UTC(), InContact: true, Fingerprint: "f", HeldSince: time.Unix(1_700_000_001, 0).UTC(), Held: 3,
			Frozen: &state.Frozen{Since: time.Unix(1_600_000_000, 0).UTC(), Reason: "INC-1"}, Identity: "uid", RootNamespace: "istio-system",
		},
		Records: []state.Record{*record("a", "a.example"), addressed},
	}
}

func TestACopyHasTheContentOfAnUpstreamWithVersionsAndTimes(t *testing.T) {
	saved := sampleCopy()
	got, err := ReadCopy(copyOf(t, saved), "east", 2)
	must(t, err)
	if !reflect.DeepEqual(got.Meta, saved.Meta) || len(got.Records) != 2 || got.Revision != 0 || len(got.Unusable) != 0 {
		t.Fatalf("%+v", got)
	}
	for i, r := range got.Records {
		want := saved.Records[i]
		if !r.Resource.Equal(want.Resource) || (r.Original == nil) != (want.Original == nil) || !r.At.Equal(want.At) || r.Hash != want.Hash || r.TypeURL != want.TypeURL || r.Version != want.Version {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
}

func TestACopyThatIsNotWholeIsRefused(t *testing.T) {
	whole := copyOf(t, sampleCopy())
	for n := range whole {
		if _, err := ReadCopy(whole[:n], "east", 2); err == nil {
			t.Fatalf("the first %d of %d bytes are taken", n, len(whole))
		}
		flipped := bytes.Clone(whole)
		flipped[n] ^= 1
		if _, err := ReadCopy(flipped, "east", 2); err == nil {
			t.Fatalf("byte %d is changed, and the copy is taken", n)
		}
	}
	if _, err := ReadCopy(append(bytes.Clone(whole), "more"...), "east", 2); err == nil {
		t.Error("a copy with something after it is taken")
	}
}

func TestACopyOfAnotherUpstreamOrWithTooManyResourcesIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		upstream string
		most     int
		err      string
	}{
		"another upstream":   {"west", 2, "is of upstream"},
		"too many resources": {"east", 1, "more than 1 resources"},
	} {
		if _, err := ReadCopy(copyOf(t, sampleCopy()), tc.upstream, tc.most); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzReadCopy demands that a copy of a replica is read without a panic, and that what is taken is whole.
func FuzzReadCopy(f *testing.F) {
	f.Add(copyOf(f, sampleCopy()), false)
	f.Add(encodeHead(0), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed {
			b = resealed(b)
		}
		saved, err := ReadCopy(b, "east", 10)
		if err != nil {
			return
		}
		again, err := ReadCopy(copyOf(t, saved), "east", 10)
		if err != nil && len(saved.Records) > 0 || len(again.Records) != len(saved.Records) {
			t.Errorf("%d records, and %d after another copy: %v", len(saved.Records), len(again.Records), err)
		}
	})
}

package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// all returns a view that has what there is.
func (p *podWorld) all() podView {
	v := podView{}
	for of, set := range p.services {
		v[of] = map[string]string{}
		for _, x := range set.pods {
			if x.ready {
				v[of][x.address] = x.label
			}
		}
	}
	return v
}

func TestAnAddressThatRemainsIsNoticed_I5(t *testing.T) {
	of := podService{0, 1}
	long := time.Now().Add(-2 * promptness)
	for name, tc := range map[string]struct {
		change func(p *podWorld)
		want   string
	}{
		"gone": {func(p *podWorld) {
			x := p.services[of].pods[0]
			p.services[of].pods = p.services[of].pods[1:]
			p.taken[x.address] = long
		}, "still has 10.100.0."},
		"not ready": {func(p *podWorld) {
			x := p.services[of].pods[0]
			x.ready, p.taken[x.address] = false, long
		}, "still has 10.100.0."},
		"new":          {func(p *podWorld) { p.come(of, p.services[of]).since = long }, "lacks 10.100.0."},
		"other labels": {func(p *podWorld) { x := p.services[of].pods[0]; x.label, x.since = "other", long }, `not "other"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPodWorld([]string{"east", "west"})
			views := map[string]podView{"client": p.all()}
			if bad := p.look(views); bad != nil || !p.sources[0].steady {
				t.Fatalf("at first: %v, %+v", bad, p.sources)
			}
			tc.change(p)
			bad := p.look(views)
			if bad == nil || bad.invariant != unreached || !strings.Contains(bad.text, tc.want) || !strings.Contains(bad.text, "east-1") {
				t.Errorf("%v", bad)
			}
			if bad := p.check("client", views["client"]); bad == nil || bad.invariant != unreached {
				t.Errorf("at the end of a round: %v", bad)
			}
			p.trouble([]int{0}, true)
			if bad := p.look(views); bad != nil {
				t.Errorf("out of contact: %v", bad)
			}
			p.trouble([]int{0}, false)
			if bad := p.look(views); bad != nil {
				t.Errorf("before it is in contact again: %v", bad)
			}
		})
	}
}

// A source out of contact looks as if it was in contact until something changes.
func TestASourceIsInContactOnceAPodHasComeThrough_I5(t *testing.T) {
	p := newPodWorld([]string{"east"})
	p.trouble([]int{0}, true)
	p.trouble([]int{0}, false)
	look := func(steady bool) {
		t.Helper()
		if bad := p.look(map[string]podView{"client": p.all()}); bad != nil || p.sources[0].steady != steady {
			t.Errorf("%v, in contact: %t", bad, p.sources[0].steady)
		}
	}
	look(false)
	of := podService{0, 0}
	p.sources[0].calm = p.sources[0].calm.Add(-time.Millisecond) // clocks are coarse
	p.come(of, p.services[of])
	look(true)
}

func TestAnAddressThatNobodyHasGivenIsWrong(t *testing.T) {
	p := newPodWorld([]string{"east"})
	element := func(name, address string) *anypb.Any {
		body, err := proto.Marshal(&networking.ServiceEntry{Endpoints: []*networking.WorkloadEntry{{Address: address}}})
		value, failed := proto.Marshal(&mcp.Resource{Metadata: &mcp.Metadata{Name: name}, Body: &anypb.Any{Value: body}})
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return &anypb.Any{TypeUrl: resourceURL, Value: value}
	}
	own := p.services[podService{0, 0}].pods[0].address
	for _, tc := range []struct {
		name, address string
		is, wrong     bool
	}{
		{"pods/synthetic-east-0", own, true, false},
		{"pods/synthetic-east-1", own, true, true},
		{"pods/synthetic-east-0", "10.0.0.1", true, true},
		{"pods/synthetic-east-99", own, false, false},
		{"pods/synthetic-north-0", own, false, false},
		{"team-00/config-000000", own, false, false},
	} {
		_, held, is, err := p.read(element(tc.name, tc.address))
		if is != tc.is || (err != nil) != tc.wrong || is && len(held) != 1 {
			t.Errorf("%s at %s: %t, %v, %v", tc.name, tc.address, is, held, err)
		}
	}
}

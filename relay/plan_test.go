package relay_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/relay"
)

// running is a fake relay that counts the objects it returns.
type running struct {
	serves   []*mirror.Resource
	objects  int // the number of objects it returned
	requests int
}

func (r *running) objectsOf(wanted func(mirror.Key) bool) (out []kube.Object, err error) {
	r.requests++
	for _, one := range r.serves {
		if !wanted(one.Key()) {
			continue
		}
		r.objects++
		o, err := kube.New(one, "", one.Version())
		if err != nil {
			return nil, err
		}
		out = append(out, *o)
	}
	return out, nil
}

func (r *running) Config(_ context.Context, key mirror.Key) ([]kube.Object, error) {
	return r.objectsOf(func(k mirror.Key) bool { return k == key })
}

func (r *running) Resources(context.Context) ([]kube.Object, error) {
	return r.objectsOf(func(mirror.Key) bool { return true })
}

func (r *running) ConfigVersions(context.Context) (out []admin.ConfigVersion, _ error) {
	for _, one := range r.serves {
		out = append(out, admin.ConfigVersion{Key: one.Key(), Version: one.Version()})
	}
	return out, nil
}

// entries returns ServiceEntries by number. The host of each contains its state.
func entries(t *testing.T, state func(i int) string, numbers ...int) (out []*mirror.Resource) {
	t.Helper()
	for _, i := range numbers {
		body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{state(i)}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := mirror.New(mirror.Spec{
			Key:    mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: fmt.Sprintf("service-%05d", i)},
			Source: "east", Body: body,
		})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func upTo(n int) (numbers []int) {
	for i := range n {
		numbers = append(numbers, i)
	}
	return numbers
}

func TestAPlanIsThatOfAllObjects(t *testing.T) {
	same := func(int) string { return "same.example" }
	for name, tc := range map[string]struct {
		now, next []*mirror.Resource
		objects   int // of the running relay, at most
		requests  int
	}{
		"nothing changes":          {entries(t, same, upTo(5000)...), entries(t, same, upTo(5000)...), 0, 0},
		"one is added":             {entries(t, same, upTo(4999)...), entries(t, same, upTo(5000)...), 0, 0},
		"one is removed":           {entries(t, same, upTo(5000)...), entries(t, same, upTo(4999)...), 1, 1},
		"some change, others come": {entries(t, same, 1, 2, 3, 5), entries(t, func(i int) string { return fmt.Sprint(i%2, ".example") }, 2, 3, 4), 4, 4},
		"all change":               {entries(t, same, upTo(1000)...), entries(t, func(i int) string { return fmt.Sprint(i, ".example") }, upTo(1000)...), 1000, 1},
		"an empty relay":           {nil, entries(t, same, 1, 2), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &running{serves: tc.now}
			versions, err := r.ConfigVersions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			now, next, err := relay.Differing(t.Context(), r, versions, tc.next)
			if err != nil {
				t.Fatal(err)
			}
			if r.objects > tc.objects || r.requests != tc.requests {
				t.Errorf("the relay was asked %d times and made %d objects, want %d and %d", r.requests, r.objects, tc.requests, tc.objects)
			}
			if len(next) > max(tc.objects, 3) {
				t.Errorf("%d objects were made of the plan", len(next))
			}
			all := func(rs []*mirror.Resource) []kube.Object {
				out, err := (&running{serves: rs}).Resources(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			want := view.Compare(all(tc.now), all(tc.next))
			if got := view.Compare(now, next); cmp.Diff(want, got) != "" {
				t.Errorf("the plan differs from that of all objects: %s", cmp.Diff(want, got))
			}
		})
	}
}

func TestAPlanLeavesOutWhatChangesMeanwhile(t *testing.T) {
	same := func(int) string { return "same.example" }
	r := &running{serves: entries(t, same, 1, 2)}
	versions, err := r.ConfigVersions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	planned := entries(t, func(int) string { return "new.example" }, 1)
	r.serves = planned // 1 is as planned, and 2 is gone
	now, next, err := relay.Differing(t.Context(), r, versions, planned)
	if err != nil {
		t.Fatal(err)
	}
	if got := view.Compare(now, next); len(got.Changes) != 0 {
		t.Errorf("the plan has %+v", got.Changes)
	}
}

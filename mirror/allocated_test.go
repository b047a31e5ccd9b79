package mirror_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// allocatedEntry is a ServiceEntry as a cluster has it, written SOURCE/NAME HOSTS ADDRESSES: of the cluster of its source, or of
// CLUSTER in SOURCE@CLUSTER. An address with ! is not among spec.addresses, one with = not in the annotation.
func allocatedEntry(t *testing.T, text string) *mirror.Resource {
	t.Helper()
	parts := strings.Fields(text)
	source, name, _ := strings.Cut(parts[0], "/")
	source, cluster, of := strings.Cut(source, "@")
	if !of {
		cluster = source
	}
	se, marks := &networking.ServiceEntry{Hosts: strings.Split(parts[1], ",")}, []string(nil)
	for _, a := range parts[2:] {
		address := strings.Trim(a, "!=")
		if !strings.HasPrefix(a, "!") {
			se.Addresses = append(se.Addresses, address)
		}
		if !strings.HasPrefix(a, "=") {
			marks = append(marks, address)
		}
	}
	packed, err := anypb.New(se)
	if err != nil {
		t.Fatal(err)
	}
	s := mirror.Spec{Key: mirror.Key{Kind: entryKind, Namespace: "shop", Name: name}, Source: source, Cluster: cluster, Body: packed}
	if len(marks) > 0 {
		s.Annotations = map[string]string{mirror.AllocatedAnnotation: strings.Join(marks, ",")}
	}
	r, err := mirror.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// addressesOf returns the addresses of a resource, joined by spaces, and "none" without a resource.
func addressesOf(t *testing.T, r *mirror.Resource) string {
	t.Helper()
	se := &networking.ServiceEntry{}
	if r == nil {
		return "none"
	}
	if err := proto.Unmarshal(r.BodyValue(), se); err != nil {
		t.Fatal(err)
	}
	return strings.Join(se.Addresses, " ")
}

func all(*mirror.Resource) bool { return true }

func TestAnAllocatedAddressIsLeftOutWhereItIsTaken(t *testing.T) {
	const has, other = "west/a a.x 240.240.0.1 2001:2::1", "240.240.0.1 2001:2::1"
	for _, test := range []struct {
		name, entry, others string
		cluster, hidden     string
		want                string
		told                string // part of the line of status, empty for no line
	}{
		{"nobody else has it", has, "", "", "", other, ""},
		{"a later upstream has it for another host", has, "north/b b.x 240.240.0.1", "", "", other, "for clients of cluster north"},
		{"an earlier upstream has it for another host", has, "east/b b.x 240.240.0.1", "", "", "", "east has 240.240.0.1 for b.x"},
		{"an earlier upstream has it for the same host", has, "east/b A.x 240.240.0.1", "", "", other, ""},
		{"an earlier upstream has another one", has, "east/b b.x 240.240.0.2", "", "", other, ""},
		{"an earlier upstream has it, and the client does not see that", has, "east/b b.x 240.240.0.1", "", "east", other, "east has"},
		{"an earlier upstream serves it without its own", has, "east/b b.x !240.240.0.1", "", "", "", "east has"},
		{"somebody has written it into an entry of an earlier upstream", has, "east/b b.x =240.240.0.1", "", "", "", "east has"},
		{"the client's cluster has it for another host", has, "north/b b.x 240.240.0.1", "north", "", "", "for clients of cluster north"},
		{"the client's cluster has it, and the client does not see that", has, "north/b b.x 240.240.0.1", "north", "north", "", "for clients of cluster north"},
		{"the client's cluster has it for the same host", has, "north/b a.x 240.240.0.1", "north", "", other, ""},
		{"the cluster of another client has it", has, "north/b b.x 240.240.0.1", "south", "", other, "for clients of cluster north"},
		{"the cluster is not known", has, "north@/b b.x 240.240.0.1", "", "", other, ""},
		{"it is of the client's own cluster", has, "east/b b.x 240.240.0.1", "west", "", other, "east has"},
		{"the same source has it twice, in one cluster", has, "west/b b.x 240.240.0.1", "", "", other, ""},
		{"a relay brings two clusters, and the client is of the other one", has, "west@south/b b.x 240.240.0.1", "south", "", "", "for clients of cluster south"},
		{"it has two hosts", "west/a a.x,b.x 240.240.0.1", "", "", "", "", ""},
		{"it has two hosts, and is of the client's own cluster", "west/a a.x,b.x 240.240.0.1", "", "west", "", "", ""},
		{"the other has two hosts", has, "east/b a.x,b.x 240.240.0.1", "", "", "", "for a.x, b.x"},
		{"an address of its own stays", "west/a a.x =10.0.0.1 240.240.0.1", "east/b b.x 240.240.0.1", "", "", "10.0.0.1", "east has"},
		{"the annotation adds none", "west/a a.x !240.240.0.1", "", "", "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := newWorldOf(ctx, t, []string{"east", "west", "north"}, "serve", nil)
				r := allocatedEntry(t, test.entry)
				w.stores["west"].Put(r)
				synctest.Wait()
				var o *mirror.Resource
				if test.others != "" {
					o = allocatedEntry(t, test.others)
					w.stores[o.Source()].Put(o)
					synctest.Wait()
				}
				sees := func(r *mirror.Resource) bool { return test.hidden == "" || r.Source() != test.hidden }
				if got := addressesOf(t, w.Select(r.Key(), test.cluster, sees)); got != test.want {
					t.Errorf("it is served with %q, want %q", got, test.want)
				}
				if served := w.Get(r.Key()); w.told[r.Key().String()] != served.Version() || !served.Equal(w.Select(r.Key(), "", all)) {
					t.Error("the handlers or the views without a cluster have another one")
				}
				if lines := strings.Join(w.NotAllocated(), "\n"); !strings.Contains(lines, test.told) || test.told == "" && strings.Contains(lines, "upstream west") {
					t.Errorf("status tells %q, want %q", lines, test.told)
				}
				if test.others != "" && o.Key() != r.Key() {
					w.stores[o.Source()].Remove(o.Key())
					synctest.Wait()
					if want := addressesOf(t, w.Select(r.Key(), "", all)); !strings.Contains(test.name, "two hosts") && want != addressesOf(t, r) {
						t.Errorf("after the other has gone, it is served with %q", want)
					}
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// TestAllocatedAddressesDependOnTheCopiesAlone: of many with few addresses, whatever the order in which they come and go.
func TestAllocatedAddressesDependOnTheCopiesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		names := []string{"east", "west", "north"}
		var entries []*mirror.Resource
		for i := range 300 {
			entries = append(entries, allocatedEntry(t, fmt.Sprintf("%s/e%d h%d.x 240.240.0.%d", names[i%3], i, i%7, i%5)))
		}
		shown := func(put []*mirror.Resource, then func(*world)) string {
			w := newWorldOf(ctx, t, names, "serve", nil)
			for _, r := range put {
				w.stores[r.Source()].Put(r)
			}
			synctest.Wait()
			then(w)
			synctest.Wait()
			var b strings.Builder
			for _, r := range entries {
				fmt.Fprintln(&b, r.Key(), addressesOf(t, w.Get(r.Key())), addressesOf(t, w.Select(r.Key(), "north", all)))
			}
			return b.String()
		}
		backwards := slices.Clone(entries)
		slices.Reverse(backwards)
		want := shown(entries[30:], func(*world) {})
		if got := shown(backwards, func(w *world) {
			for _, r := range entries[:30] {
				w.stores[r.Source()].Remove(r.Key())
			}
		}); got != want {
			t.Errorf("it serves\n%s\nwant\n%s", got, want)
		}
		cancel()
		synctest.Wait()
	})
}

// TestALaterUpstreamTakesNoAddressesOff, however many of its entries have them: only its own clients are not served them.
func TestALaterUpstreamTakesNoAddressesOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "serve", nil)
		r := allocatedEntry(t, "east/a a.x 240.240.0.1")
		w.stores["east"].Put(r)
		for i := range 5000 {
			w.stores["west"].Put(allocatedEntry(t, fmt.Sprintf("west/b%d b.x =240.240.0.1", i)))
		}
		synctest.Wait()
		for cluster, want := range map[string]string{"": "240.240.0.1", "north": "240.240.0.1", "west": ""} {
			if got := addressesOf(t, w.Select(r.Key(), cluster, all)); got != want {
				t.Errorf("clients of %q are served %q, want %q", cluster, got, want)
			}
		}
		if why := w.Resolve(r.Key()).Bare; !strings.Contains(why, "for clients of cluster west") {
			t.Errorf("explain tells %q", why)
		}
		cancel()
		synctest.Wait()
	})
}

func TestOnlyAddressesOfAServiceEntryAreAllocated(t *testing.T) {
	r := copyOf{source: "east", kind: routeKind, name: "a"}.build()
	s := r.Spec()
	s.Annotations = map[string]string{mirror.AllocatedAnnotation: "gateway"}
	packed, err := anypb.New(&networking.VirtualService{Hosts: []string{"a.x"}, Gateways: []string{"gateway"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Body = packed
	if r, err = mirror.New(s); err != nil {
		t.Fatal(err)
	}
	if out, err := r.WithoutAllocated(); err != nil || out != r {
		t.Errorf("a VirtualService loses %v: %v", out, err)
	}
}

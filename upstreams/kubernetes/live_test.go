package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"meshrelay/federation"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
)

const reports = ", status: meshrelay.io/Distributed"

func (w *world) tryReport(ctx context.Context, name string, c metav1.Condition) (told bool, err error) {
	return w.manager.Report(ctx, "east", mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name}, c)
}

// report writes the condition of a ServiceEntry.
func (w *world) report(name string, c metav1.Condition) (told bool) {
	w.t.Helper()
	got, err := w.tryReport(w.t.Context(), name, c)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// conditions returns those of a ServiceEntry at the server, as "type status reason message generation".
func (w *world) conditions(name string) (all []string) {
	w.Set(func() {
		var o struct {
			Status struct {
				Conditions []json.RawMessage `json:"conditions"`
			} `json:"status"`
		}
		text, _ := json.Marshal(w.Objects[entries]["shop/"+name])
		_ = json.Unmarshal(text, &o)
		for _, text := range o.Status.Conditions {
			var c metav1.Condition
			_ = json.Unmarshal(text, &c) // those of others may have other types
			all = append(all, fmt.Sprintf("%s %s %s %s %d", c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration))
		}
	})
	return all
}

var (
	isTrue  = metav1.Condition{Status: "True", Reason: "Distributed", Message: "all clients have it"}
	pending = metav1.Condition{Status: "False", Reason: "Pending", Message: "not all clients have it"}
	refused = metav1.Condition{Status: "False", Reason: "Rejected", Message: "refused by a: b"}
)

// TestAConditionIsWrittenBesideThoseOfOthers, where the object has no status, no conditions, or some.
func TestAConditionIsWrittenBesideThoseOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for name, status := range map[string]string{"none": "", "empty": `{}`, "others": `{"conditions":[{"type":"Reconciled","status":"True"}],"x":1}`,
			"addresses": `{"addresses":[{"value":"240.240.0.1","host":"a.x"}]}`,
			// istiods write numbers of 64 bits as texts
			"ours":   `{"conditions":[{"type":"meshrelay.io/Distributed","status":"True","observedGeneration":"3"}]}`,
			"istiod": `{"observedGeneration":"3","conditions":[{"type":"Reconciled","status":"True","observedGeneration":"3","lastProbeTime":"2024-01-01T00:00:00Z"},7,null]}`} {
			o := fakekube.Object("shop", name, `{"hosts":["a.x"]}`)
			o["metadata"].(map[string]any)["generation"] = 3
			if status != "" {
				var v map[string]any
				if err := json.Unmarshal([]byte(status), &v); err != nil {
					t.Fatal(err)
				}
				o["status"] = v
			}
			s.Put(entries, o)
		}
		w := s.mirrors(reports, "")
		w.synced()
		for _, name := range []string{"none", "empty", "others", "addresses", "ours", "istiod"} {
			if !w.report(name, pending) {
				t.Fatal(name)
			}
			want := []string{"meshrelay.io/Distributed False Pending not all clients have it 3"}
			switch name {
			case "others":
				want = append([]string{"Reconciled True   0"}, want...)
			case "istiod":
				want = append([]string{"Reconciled True   0", "    0", "    0"}, want...)
			}
			if got := w.conditions(name); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			before := s.Asked("/" + name + "/status")
			if !w.report(name, pending) || s.Asked("/"+name+"/status") != before {
				t.Errorf("%s is written again", name)
			}
			if !w.report(name, isTrue) || len(w.conditions(name)) != len(want) {
				t.Errorf("%s: %q", name, w.conditions(name))
			}
		}
	})
}

// TestATrueConditionStaysUntilTheContentChanges, whatever connects.
func TestATrueConditionStaysUntilTheContentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		put := func(host string, generation int) {
			o := fakekube.Object("shop", "a", fmt.Sprintf(`{"hosts":[%q]}`, host))
			o["metadata"].(map[string]any)["generation"] = generation
			s.Set(func() { // the status stays
				if old := s.Objects[entries]["shop/a"]; old != nil {
					o["status"] = old["status"]
				}
			})
			s.Put(entries, o)
		}
		put("a.x", 1)
		w := s.mirrors(reports, "")
		w.synced()
		w.report("a", isTrue)
		for _, c := range []metav1.Condition{pending, refused} {
			if got := w.conditions("a"); !w.report("a", c) || !slices.Equal(w.conditions("a"), got) {
				t.Errorf("%+v: %s", c, w.conditions("a"))
			}
		}
		put("b.x", 2)
		w.until("the next content is there", func() bool { return w.report("a", refused) })
		if got := w.conditions("a"); !slices.Equal(got, []string{"meshrelay.io/Distributed False Rejected refused by a: b 2"}) {
			t.Error(got)
		}
	})
}

// TestAConditionOfAnObjectThatChangesMeanwhileIsNotWritten: no patch names an object that was not read.
func TestAConditionOfAnObjectThatChangesMeanwhileIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors(reports, "")
		w.synced()
		meanwhile := func(f func()) {
			s.Set(func() {
				s.Fault = func(_ http.ResponseWriter, r *http.Request) bool {
					if strings.HasSuffix(r.URL.Path, "/status") {
						f()
					}
					return false
				}
			})
		}
		meanwhile(func() { s.entry("shop/a", "b.x") })
		if w.report("a", isTrue) {
			t.Error("an object with another content has a condition")
		}
		await.Settle(time.Second) // the relay has what the server has
		meanwhile(func() { s.Remove(entries, "shop/a") })
		if !w.report("a", isTrue) {
			t.Error("an object that is gone is asked for again")
		}
		if got := w.conditions("a"); len(got) > 0 {
			t.Error(got)
		}
	})
}

// TestAConditionIsOfTheContentThatTheRelayHas: an object with a newer content gets none.
func TestAConditionIsOfTheContentThatTheRelayHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors(reports, "")
		w.synced()
		w.report("a", pending)
		s.Set(func() { // without an event
			s.Objects[entries]["shop/a"]["spec"] = map[string]any{"hosts": []any{"other.x"}}
			s.Objects[entries]["shop/a"]["metadata"].(map[string]any)["generation"] = 9
		})
		if w.report("a", isTrue) {
			t.Error("the server has another content")
		}
	})
}

// TestAMissingRightToWriteConditionsIsNamed.
func TestAMissingRightToWriteConditionsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.Set(func() {
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				denied := strings.HasSuffix(r.URL.Path, "/status")
				if denied {
					fakekube.Fail(w, http.StatusForbidden, "Forbidden")
				}
				return denied
			}
		})
		w := s.mirrors(reports, "")
		w.synced()
		if got, err := w.tryReport(t.Context(), "a", isTrue); got || err == nil || !strings.Contains(err.Error(), "allow the identity to patch serviceentries/status") {
			t.Error(got, err)
		}
	})
}

// TestAKindWithoutSuchAStatusIsAskedOnce: it has no status, or one that needs other fields.
func TestAKindWithoutSuchAStatusIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors(reports, "")
		w.synced()
		for _, answer := range []*apierrors.StatusError{
			apierrors.NewNotFound(schema.GroupResource{}, "a"),
			apierrors.NewInvalid(schema.GroupKind{}, "a", field.ErrorList{field.Required(field.NewPath("status", "parents"), "")}),
			apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "testing path failed", 0, false),
		} {
			s.Set(func() {
				s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/status") {
						return false
					}
					w.WriteHeader(int(answer.ErrStatus.Code))
					_ = json.NewEncoder(w).Encode(struct {
						Kind string `json:"kind"`
						metav1.Status
					}{"Status", answer.ErrStatus})
					return true
				}
			})
			want := true
			if len(answer.ErrStatus.Details.Causes) == 0 && answer.ErrStatus.Code != http.StatusNotFound {
				want = false // the answer to a test that has failed
			}
			if got := w.report("a", isTrue); got != want {
				t.Errorf("%v: %v", answer, got)
			}
		}
	})
}

// TestConditionsCauseNoChange: 1,000 of them are not one change of what is served.
func TestConditionsCauseNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x", `{"metadata":{"annotations":{"x.istio.io/y":"z"}}}`) // an istiod would push for each
		w := s.upstream(reports, "")
		var changes atomic.Int32
		w.aggregate.RegisterHandler(func(mirror.Change) { changes.Add(1) })
		w.run(w.manager.Run, w.aggregate.Run, w.journal.Run)
		w.synced()
		before := changes.Load()
		for i := range 1000 {
			c := pending
			c.Message = fmt.Sprint("message ", i)
			if !w.report("a", c) {
				t.Fatal(i)
			}
		}
		w.arrives("b") // so all events before it were read
		if n := changes.Load() - before; n != 1 {
			t.Errorf("%d changes, want that of the new entry alone", n)
		}
	})
}

// TestAnUpstreamThatIsNotThereHasNoConditions.
func TestAnUpstreamThatIsNotThereHasNoConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.synced()
		if got, err := w.manager.Report(t.Context(), "west", mirror.Key{}, isTrue); got || err != nil {
			t.Error(got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.tryReport(ctx, "a", isTrue); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestTheRoleForConditionsIsWhatTheyAsk: rbac.status of the chart grants it, and nothing that is not asked.
func TestTheRoleForConditionsIsWhatTheyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rights := fakekube.ReadRights(t, "../../tools/chart/testdata/rendered/everything.yaml", "relay-clients-reader")
		s := newAPIServer(t)
		s.UID, s.NoStreams = "east", true // servers before 1.32 are asked for lists
		s.Fault = rights.Refuse
		s.entry("shop/a", "a.x")
		w := s.mirrors(reports, "")
		w.synced()
		if !w.report("a", pending) {
			t.Error("not written")
		}
		if lacks := rights.Lacks(); len(lacks) > 0 {
			t.Errorf("the role lacks %q", lacks)
		}
		if unused := rights.Unused("/serviceentries"); len(unused) > 0 {
			t.Errorf("the role grants what is not asked: %q", unused)
		}
	})
}

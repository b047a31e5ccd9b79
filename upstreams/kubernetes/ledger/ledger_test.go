package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/object"
)

// script is a Feed that notes what it is told.
type script struct {
	told     []intake.Event
	versions map[string]map[string]string
	identity string
	held     map[string]xxh3.Uint128 // by "SCOPE NAME"
	// kept are the bytes of Keep, and most is their limit, 0 for none.
	kept, most int
}

func (f *script) Tell(e intake.Event) (r records.Result)         { f.told = append(f.told, e); return r }
func (f *script) Synced() bool                                   { return true }
func (f *script) Versions(scope records.Scope) map[string]string { return f.versions[scope.Name] }
func (f *script) Identity() string                               { return f.identity }
func (f *script) Holds(scope records.Scope, name string, digest xxh3.Uint128, _ int) bool {
	return f.held[scope.Name+" "+name] == digest && digest != xxh3.Uint128{}
}
func (f *script) Keep(n int) (fits bool) {
	f.kept += n
	return f.most == 0 || f.kept <= f.most
}
func (f *script) take() (told []intake.Event) { told, f.told = f.told, nil; return told }

// updates returns the updates of what was told: "SCOPE +names -names".
func (f *script) updates() (all []string) {
	for _, e := range f.take() {
		r, ok := e.(intake.Received)
		if !ok {
			all = append(all, fmt.Sprintf("%T", e))
			continue
		}
		var parts []string
		for _, u := range r.Updates {
			text := u.Scope.Name
			if u.Elements != nil {
				for el := range u.Elements(0, nil) {
					text += " +" + string(el.Name)
				}
			}
			if u.Removed != nil {
				for name := range u.Removed {
					text += " -" + string(name)
				}
			}
			if u.Complete {
				text += " complete"
			}
			if u.Part {
				text += " part"
			}
			parts = append(parts, text)
		}
		all = append(all, strings.Join(parts, ", "))
	}
	return all
}

// follow adds an entry of a kind to a ledger.
func follow(l *Ledger, kind mirror.Kind) *Entry {
	e := &Entry{Kind: kind, Relist: func() {}}
	l.Set(kind, []*Entry{e})
	return e
}

func namespace(name, mesh string) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mesh": mesh}}}
}

func wrong(name string, err error) *object.Object {
	return &object.Object{ObjectMeta: metav1.ObjectMeta{Name: name}, Err: err}
}

var serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

// Namespaces are listed before it is known which kinds there are: no kind is answered by that.
func TestNoKindIsAnsweredBeforeItIsKnownWhatThereIs_K2(t *testing.T) {
	feed := &script{}
	l := New([]mirror.Kind{serviceEntry}, feed, NewSelection([]string{"mesh=on"}))
	ns := follow(l, Namespaces)
	l.Replace(ns, []*object.Object{namespace("shop", "on")})
	l.Lost(ns)
	l.Resumed(ns)
	if told := feed.updates(); len(told) > 0 {
		t.Errorf("told: %q", told)
	}
	entries := follow(l, serviceEntry)
	l.Begin()
	feed.take()
	l.Replace(ns, nil)
	if told := feed.updates(); !slices.Equal(told, []string{"intake.Opened", ""}) {
		t.Errorf("told: %q", told)
	}
	l.Replace(entries, nil)
	if told := feed.updates(); !slices.Equal(told, []string{"networking.istio.io/ServiceEntry complete"}) || ns.awaited || entries.awaited {
		t.Errorf("told: %q", told)
	}
}

// A stream that has ended without a word is named by its kind.
func TestAnOutageThatNobodyKnowsTheReasonOfNamesTheKind_K9(t *testing.T) {
	feed := &script{}
	l := New(nil, feed, nil)
	one := follow(l, serviceEntry)
	l.Begin()
	l.Replace(one, nil)
	l.Lost(one)
	feed.take()
	nothing := func() intake.Closed { return intake.Closed{} }
	if l.Check(time.Now().Add(time.Second), 15*time.Second, nothing) || len(feed.take()) > 0 {
		t.Error("a stream that was lost a second ago counts as out of contact")
	}
	for range 2 {
		l.Check(time.Now().Add(time.Minute), 15*time.Second, nothing)
	}
	told := feed.take()
	if len(told) != 1 || !strings.Contains(told[0].(intake.Closed).Reason, "ServiceEntry is not followed since 20") {
		t.Errorf("told %v", told)
	}
}

// An object that came while its namespace was not selected has no content: it has to be listed anew.
func TestAnObjectThatCameBeforeItsNamespaceWasSelectedIsListedAnew_K14(t *testing.T) {
	l := New([]mirror.Kind{serviceEntry}, &script{}, NewSelection([]string{"mesh=on"}))
	relists := 0
	e := &Entry{Kind: serviceEntry, Relist: func() { relists++ }}
	l.Set(serviceEntry, []*Entry{e})
	ns := follow(l, Namespaces)
	l.Replace(ns, []*object.Object{namespace("shop", "on"), namespace("other", "")})
	if !l.selection.Skips(e, "other") || l.selection.Skips(e, "shop") || l.selection.Skips(e, "") {
		t.Error("the decoder skips other objects")
	}
	if l.Put(ns, namespace("new", "on")); relists != 0 {
		t.Errorf("%d lists for a namespace without objects", relists)
	}
	if l.Put(ns, namespace("other", "on")); relists != 1 || l.selection.Skips(e, "other") {
		t.Errorf("%d lists", relists)
	}
	kept := l.pass(e, []*object.Object{{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: object.AnyName}, Unselected: true}})
	if len(kept) != 1 || kept[0].Name != "a" {
		t.Errorf("kept %v", kept)
	}
}

func TestANamespaceWhoseLabelsCanNotBeReadIsAsItWas_K3(t *testing.T) {
	s := NewSelection([]string{"mesh=on"})
	keep := func(int) bool { return true }
	s.set(true, []*object.Object{namespace("shop", "on"), namespace("other", "")}, keep)
	bad := errors.New("over the limit")
	gained, lost := s.set(true, []*object.Object{wrong("shop", bad), wrong("other", bad), wrong("new", bad)}, keep)
	if len(gained)+len(lost) > 0 || s.Skips(nil, "shop") || !s.Skips(nil, "other") || !s.Skips(nil, "new") {
		t.Errorf("gained %q, lost %q", gained, lost)
	}
	if all, picked := s.Counts(); all != 2 || picked != 1 {
		t.Errorf("%d of %d", picked, all)
	}
}

func TestANamespaceThatCanNotBeUsedIsRefusedByName_K9(t *testing.T) {
	l := New(nil, &script{}, NewSelection([]string{"mesh=on"}))
	ns, all := follow(l, Namespaces), []*object.Object{wrong("shop", errors.New("its labels are wrong"))}
	for _, results := range [][]records.Result{l.Replace(ns, all), l.Put(ns, all[0])} {
		if len(results) != 1 || results[0].RefusedTotal != 1 || results[0].Refused[0].Resource != "Namespace shop" {
			t.Errorf("refused %+v", results)
		}
	}
	for i := range MaxProblems + 2 {
		all = append(all, wrong(fmt.Sprint(i), all[0].Err))
	}
	l.Replace(ns, all)
	if named, n := l.selection.Problems(); len(named) != MaxProblems || n != len(all) {
		t.Errorf("%d of %d are named", len(named), n)
	}
	l.Delete(ns, all[0])
	l.Put(ns, namespace("1", ""))
	if _, n := l.selection.Problems(); n != len(all)-2 {
		t.Errorf("%d can not be used", n)
	}
}

// Events of ever new namespaces that are not selected take no memory: the notes of an entry have 2 KiB.
func TestNamespacesWithSkippedObjectsAreNotedUpToABound_K14(t *testing.T) {
	l := New([]mirror.Kind{serviceEntry}, &script{}, NewSelection([]string{"mesh=on"}))
	relists := 0
	e := &Entry{Kind: serviceEntry, Relist: func() { relists++ }}
	l.Set(serviceEntry, []*Entry{e})
	ns := follow(l, Namespaces)
	l.Replace(ns, []*object.Object{namespace("shop", "on")})
	l.selection.Skips(e, "other")
	wrong := 0
	for i := range 100 {
		l.Put(ns, namespace(fmt.Sprint("empty", i), "on"))
		wrong = relists
	}
	if wrong > 10 {
		t.Errorf("%d lists for namespaces without objects", wrong)
	}
	for i := range 10_000 {
		l.selection.Skips(e, fmt.Sprint("n", i))
	}
	for i := range 100 {
		relists = 0
		if l.Put(ns, namespace(fmt.Sprint("n", i), "on")); relists != 1 {
			t.Errorf("%d lists after a namespace was selected that has objects", relists)
		}
	}
	l.Set(serviceEntry, nil)
	if n := len(l.selection.passed); n != 0 {
		t.Errorf("%d entries are noted", n)
	}
}

// The namespaces of a list always fit: without them, what is mirrored would be deleted.
func TestANamespaceWithoutRoomIsRefusedByName_K9(t *testing.T) {
	feed := &script{versions: map[string]map[string]string{"networking.istio.io/ServiceEntry": {"shop/a": "1"}}, most: 2 * costOf("shop")}
	l := New([]mirror.Kind{serviceEntry}, feed, NewSelection([]string{"mesh=on"}))
	ns, e := follow(l, Namespaces), follow(l, serviceEntry)
	full := []*object.Object{namespace("shop", "on"), namespace("new1", "on"), namespace("new1", "on"), namespace("new2", "on")}
	for range 2 {
		feed.take()
		if results := l.Replace(ns, full); len(results) != 0 || l.selection.Skips(e, "shop") || l.selection.Skips(e, "new2") {
			t.Errorf("refused: %+v", results)
		}
		if feed.kept != 3*costOf("shop") || strings.Contains(fmt.Sprint(feed.updates()), "shop/a") {
			t.Errorf("a namespace that was known is gone, or %d bytes are kept", feed.kept)
		}
	}
	if results := l.Put(ns, namespace("shop", "")); len(results) != 1 || results[0].RefusedTotal != 0 || !l.selection.Skips(e, "shop") {
		t.Errorf("a namespace that is known needs room: %+v", results)
	}
	results := l.Put(ns, namespace("more", "on"))
	if len(results) != 1 || results[0].RefusedTotal != 1 || !strings.Contains(results[0].Refused[0].Reason, object.OverLimit) || !ns.Cramped.Load() || !l.selection.Skips(e, "more") {
		t.Errorf("refused: %+v", results)
	}
	l.Delete(ns, namespace("new1", ""))
	l.Delete(ns, namespace("new1", ""))
	l.Delete(ns, namespace("never", ""))
	if feed.kept != 2*costOf("shop") || l.selection.cost != feed.kept {
		t.Errorf("%d bytes are kept, and %d counted", feed.kept, l.selection.cost)
	}
	if results := l.Put(ns, namespace("more", "on")); len(results) != 0 || l.selection.Skips(e, "more") {
		t.Errorf("there is room: %+v", results)
	}
	for i := range 2 * maxRefused {
		l.Put(ns, wrong(fmt.Sprint(i), errNoRoom))
	}
	if _, n := l.selection.Problems(); n != maxRefused {
		t.Errorf("%d refused namespaces are noted", n)
	}
}

package kubernetes

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
)

const (
	exportsOf = "multicluster.x-k8s.io/serviceexports"
	exported  = "  services: {mode: discover, only: exported}\n"
)

// export has the server serve ServiceExports in a version, and creates one.
func (s *apiServer) export(name, version string) {
	s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports", version)
	namespace, name, _ := strings.Cut(name, "/")
	s.Put(exportsOf, fakekube.Object(namespace, name, `{}`))
}

// The labels of ServiceExports do not count, as those of Services do not.
func TestOnlyServicesWithAServiceExportAreShared_K15(t *testing.T) {
	for name, tc := range map[string]struct{ version, settings, more, want string }{
		"v1alpha1":                  {"v1alpha1", "", exported, dbEndpoints},
		"v1beta1":                   {"v1beta1", ", selector: a=b", exported, dbEndpoints},
		"gateways":                  {"v1beta1", "", "  services: {mode: gateway, gateways: [192.0.2.1], only: exported}\n", "192.0.2.1 15443   "},
		"the kind is mirrored, too": {"v1beta1", ", kinds: [multicluster.x-k8s.io/ServiceExport]", exported, dbEndpoints},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := serviceServer(t)
			s.Remove(entries, "shop/a")
			s.Put(servicesOf, service("shop", "web", ""))
			s.export("shop/db", tc.version)
			s.Put(exportsOf, fakekube.Object("bank", "web", `{}`)) // of another namespace
			w := s.mirrors(tc.settings, tc.more)
			mirrored := func(names ...string) (all []string) {
				for _, n := range names {
					if strings.Contains(tc.settings, "kinds") || !strings.HasPrefix(n, "ServiceExport") {
						all = append(all, n)
					}
				}
				return all
			}
			w.serves(mirrored("ServiceEntry shop/synthetic-db", "ServiceExport bank/web", "ServiceExport shop/db")...)
			w.synced()
			w.reaches("synthetic-db", tc.want)
			if st := w.status(); st.LeftOut["cluster-local"] != 1 || len(st.Notes) > 0 {
				t.Errorf("left out %v, notes %q", st.LeftOut, st.Notes)
			}
			if all := w.manager.LeftOut(); len(all) != 1 || all[0].Name != "synthetic-web" || all[0].Detail != "it has no ServiceExport, and services.only is exported" {
				t.Errorf("left out are %+v", all)
			}
			s.Put(exportsOf, fakekube.Object("shop", "web", `{}`))
			w.serves(mirrored("ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-web", "ServiceExport bank/web", "ServiceExport shop/db", "ServiceExport shop/web")...)
			s.Remove(exportsOf, "shop/db")
			w.serves(mirrored("ServiceEntry shop/synthetic-web", "ServiceExport bank/web", "ServiceExport shop/web")...)
			w.until("it is left out", func() bool { return w.status().LeftOut["cluster-local"] == 1 })
		})
	}
}

// Where the MCS API is not installed, no Service is shared, and all else is.
func TestWithoutTheKindServiceExportNoServiceIsShared_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(exportsOf, fakekube.Object("shop", "db", `{}`))
		w := s.mirrors("", "  guard: {percent: 100}\n"+exported)
		told := func(is bool) {
			t.Helper()
			w.until("the status tells", func() bool {
				return is == slices.ContainsFunc(w.status().Notes, func(n string) bool { return strings.HasPrefix(n, noExports+": install the CRD") })
			})
		}
		w.synced()
		w.serves("ServiceEntry shop/a")
		told(true)
		if n := w.status().LeftOut["cluster-local"]; n != 1 {
			t.Errorf("%d are left out", n)
		}
		s.export("shop/db", "v1beta1")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		told(false)
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		s.drop()
		w.serves("ServiceEntry shop/a")
		told(true)
		w.synced()
	})
}

// Somebody who uninstalls the MCS API may not mean all of its Services.
func TestTheGuardHoldsServicesWhoseExportsGo_K5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Remove(entries, "shop/a")
		want := []string{"ServiceEntry shop/synthetic-db"}
		for _, name := range []string{"x", "y", "z"} {
			s.Put(servicesOf, service("shop", name, ""))
			s.Put(exportsOf, fakekube.Object("shop", name, `{}`))
			want = append(want, "ServiceEntry shop/synthetic-"+name)
		}
		s.export("shop/db", "v1beta1")
		w := s.mirrors("", exported)
		w.serves(want...)
		w.synced()
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		s.drop()
		w.until("they are held", func() bool { return w.status().Held != nil && w.status().Held.Removals == len(want) })
		w.serves(want...)
		w.reaches("synthetic-db", dbEndpoints)
	})
}

// A server that begins may not know its definitions yet: what was shared before the start stays until it surely lacks the kind.
func TestOneAnswerWithoutTheKindServiceExportTakesNothingAway_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := serviceServer(t), t.TempDir()
		s.export("shop/db", "v1beta1")
		w, end := s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		w.synced()
		end()
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		usual := s.pace.gone
		s.pace.gone = time.Hour
		asked := s.Asked("/apis?")
		w, end = s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		w.arrives("b")
		w.until("it was asked again and again", func() bool { return s.Asked("/apis?") > asked+10 })
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/synthetic-db")
		end()
		s.pace.gone = usual
		w, _ = s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.synced()
		w.answered()
	})
}

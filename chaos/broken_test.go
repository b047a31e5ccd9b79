package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// proofSeed is any seed: the faults that it brings are those of proofScenario.
const proofSeed = 1

// The suite is of use only if it can fail. The stages of these tests mostly wait, so that some may
// run at the same time.
func TestEachBrokenBuildIsCaught(t *testing.T) {
	t.Parallel()
	proof := proofScenario()
	rates, many := scenarioOf(t, "rates"), scenarioOf(t, "many")
	breaks := map[string]struct {
		in        scenario
		invariant string
	}{"i1": {proof, lost}, "i2": {proof, wrong}, "i3": {proof, older}, "i4": {proof, leaked}, "holders": {many, lost}, "pacer": {rates, wrong}, "cluster": {clusterProof(), wrong}, "silence": {scenarioOf(t, "silence"), lost}, "pods": {podsProof(), unreached},
		"s1": {sitesProof(0, []string{"wipe"}, nil), lostObject},
		"s2": {sitesProof(100, nil, nil), afterPromotion},
		"s3": {sitesProof(0, nil, []string{"freeze", "unfreeze"}), disagree},
		"s4": {sitesProof(0, nil, []string{"burst"}), forgotten},
		"s5": {sitesProof(100, nil, nil), afterPromotion},
		"s6": {sitesProof(0, nil, nil, "lease"), afterPromotion},
		"s7": {sitesProof(0, nil, nil, "restore"), notOurs},
	}
	for _, mutant := range mutants() {
		t.Run(mutant, func(t *testing.T) {
			t.Parallel()
			want := breaks[mutant]
			res, err := prove(t, mutant, want.in)
			var v *violation
			if !errors.As(err, &v) {
				t.Fatalf("after %d rounds: %v, want that %s is violated", res.rounds, err, want.invariant)
			}
			if v.invariant != want.invariant {
				t.Errorf("%v, want that %s is violated", v, want.invariant)
			}
		})
	}
}

func TestHealthyBuildIsNotCaught(t *testing.T) {
	t.Parallel()
	for _, sc := range []scenario{proofScenario(), clusterProof(), podsProof(), sitesScenario()} {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			sc.slow = 20
			res, err := prove(t, "", sc)
			if err != nil {
				t.Fatal(err)
			}
			if res.changes == 0 || res.responses == 0 || sc.storm > 0 && res.storms == 0 {
				t.Errorf("nothing has happened: %+v", res)
			}
		})
	}
}

func scenarioOf(t *testing.T, name string) scenario {
	t.Helper()
	chosen, err := choose(name)
	if err != nil {
		t.Fatal(err)
	}
	return chosen[0]
}

// prove plays a round of a scenario with a relay that is broken in one way, or a healthy one for an empty name.
func prove(t *testing.T, mutant string, sc scenario) (res result, err error) {
	t.Helper()
	sites := sc.name == sitesScenario().name
	if _, err := os.Stat(filepath.Join(kubeBinaries, "kube-apiserver")); sites && err != nil {
		t.Skip("there is no kube-apiserver: make kube builds it")
	}
	binary, err := buildRelay(t.Context(), mutant, t.TempDir(), sites)
	if err != nil {
		t.Fatal(err)
	}
	j := newJournal(t.Output())
	if sites {
		res, err = runSites(t.Context(), sc, proofSeed, 0, binary, t.TempDir(), j)
	} else {
		res, err = sc.run(t.Context(), proofSeed, 0, binary, t.TempDir(), j)
	}
	var v *violation
	if errors.As(err, &v) {
		j.replay(t.Output(), v.key)
	}
	return res, err
}

// TestEveryMutantFitsTheCode: an edit of product code that moves a mutant's text is noticed at once.
func TestEveryMutantFitsTheCode(t *testing.T) {
	all := mutants()
	if len(all) == 0 {
		t.Fatal("there are no mutants")
	}
	for _, name := range all {
		if _, err := writeOverlay(t.Context(), name, t.TempDir(), true); err != nil {
			t.Errorf("mutant %s: %v", name, err)
		}
	}
}

func TestAMutantChangesATextThatIsThereOnce(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one\ntwo\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ text, want, err string }{
		"once":            {"It breaks.\n\n== a.go\n-- old\none\n-- new\n1\n", "1\ntwo\ntwo\n", ""},
		"several lines":   {"It breaks.\n\n== a.go\n-- old\none\ntwo\n-- new\n1\n2\n", "1\n2\ntwo\n", ""},
		"two edits":       {"It breaks.\n\n== a.go\n-- old\none\n-- new\n1\n-- old\n1\ntwo\n-- new\n12\n", "12\ntwo\n", ""},
		"twice":           {"It breaks.\n\n== a.go\n-- old\ntwo\n-- new\n2\n", "", "a.go has this text 2 times"},
		"not there":       {"It breaks.\n\n== a.go\n-- old\nthree\n-- new\n3\n", "", "a.go has this text 0 times"},
		"no replacement":  {"It breaks.\n\n== a.go\n-- old\none\n", "", "want once"},
		"no such file":    {"It breaks.\n\n== b.go\n-- old\none\n-- new\n1\n", "", "b.go"},
		"nothing changed": {"It breaks.\n", "", "is a directory"},
	} {
		got, err := mutate(tc.text, root)
		if tc.err == "" && (err != nil || got["a.go"] != tc.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
	}
}

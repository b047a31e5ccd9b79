package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	spdx "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// bom reads the SBOM of a platform with SPDX's own library.
func bom(t *testing.T, p platform) *v2_3.Document {
	t.Helper()
	f, err := os.Open(filepath.Join(built, "relay-"+testVersion+"-"+p.String()+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var doc v2_3.Document
	if err := spdx.ReadInto(f, &doc); err != nil {
		t.Fatal(err)
	}
	return &doc
}

func TestSBOMsNameTheModulesOfTheirBinary(t *testing.T) {
	for _, p := range platforms {
		binary := archive(t, p)["relay"].content
		path := filepath.Join(t.TempDir(), "relay")
		if err := os.WriteFile(path, binary, 0o755); err != nil {
			t.Fatal(err)
		}
		want := linked(t, path)
		want["stdlib"] = strings.TrimPrefix(runtime.Version(), "go")
		want["relay"] = testVersion
		want["idiomorph"] = "0.8.0" // of the web page
		got := map[string]string{}
		for _, pkg := range bom(t, p).Packages {
			got[pkg.PackageName] = pkg.PackageVersion
			if pkg.PackageName == "relay" && pkg.PackageChecksums[0].Value != fmt.Sprintf("%x", sha256.Sum256(binary)) {
				t.Errorf("%s: the checksum is not that of the binary", p)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: -binary +SBOM:\n%s", p, d)
		}
	}
}

func TestSBOMsKeepToSPDX(t *testing.T) {
	id, purl := regexp.MustCompile(`^[A-Za-z0-9.-]+$`), regexp.MustCompile(`^pkg:(golang|npm)/[a-z0-9./_~-]+@[A-Za-z0-9._%-]+$`)
	for _, p := range platforms {
		doc := bom(t, p)
		if doc.SPDXVersion != "SPDX-2.3" || doc.DataLicense != "CC0-1.0" || doc.SPDXIdentifier != "DOCUMENT" || !strings.HasPrefix(doc.DocumentNamespace, "https://") ||
			doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
			t.Errorf("%s: %+v %+v", p, doc, doc.CreationInfo)
		}
		ids := map[common.ElementID]bool{}
		for _, pkg := range doc.Packages {
			if ids[pkg.PackageSPDXIdentifier] || !id.MatchString(string(pkg.PackageSPDXIdentifier)) {
				t.Errorf("%s: the ID %q of %s is not one, or is there twice", p, pkg.PackageSPDXIdentifier, pkg.PackageName)
			}
			ids[pkg.PackageSPDXIdentifier] = true
			if len(pkg.PackageExternalReferences) != 1 || !purl.MatchString(pkg.PackageExternalReferences[0].Locator) {
				t.Errorf("%s: %s: %v", p, pkg.PackageName, pkg.PackageExternalReferences)
			}
		}
		described, dependsOn := 0, map[common.ElementID]bool{}
		for _, r := range doc.Relationships {
			switch r.Relationship {
			case common.TypeRelationshipDescribe:
				described++
			case common.TypeRelationshipDependsOn:
				dependsOn[r.RefB.ElementRefID] = true
			}
		}
		if described != 1 || len(dependsOn) != len(doc.Packages)-1 {
			t.Errorf("%s: %d described, %d of %d packages are dependencies", p, described, len(dependsOn), len(doc.Packages))
		}
	}
}

// TestSBOMsHaveTheLicences that the texts in NOTICES are.
func TestSBOMsHaveTheLicences(t *testing.T) {
	// MPL-2.0 asks for the sources of the modules that have it: NOTICES names them, with their versions.
	known := []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}
	for _, p := range platforms {
		got, unknown := map[string]string{}, 0
		for _, pkg := range bom(t, p).Packages {
			got[pkg.PackageName] = pkg.PackageLicenseDeclared
			if pkg.PackageLicenseDeclared == "NOASSERTION" {
				unknown++
				t.Logf("%s: the licence of %s is not known by its text", p, pkg.PackageName)
				continue
			}
			for id := range strings.SplitSeq(pkg.PackageLicenseDeclared, " AND ") {
				if !slices.Contains(known, id) {
					t.Errorf("%s: %s is under %s: look whether it may be passed on", p, pkg.PackageName, id)
				}
			}
		}
		for name, want := range map[string]string{
			"relay": "Apache-2.0", "stdlib": "BSD-3-Clause", "github.com/spf13/cobra": "Apache-2.0", "github.com/prometheus/common": "Apache-2.0",
			"google.golang.org/protobuf": "BSD-3-Clause", "github.com/zeebo/xxh3": "BSD-2-Clause", "idiomorph": "0BSD",
		} {
			if got[name] != want {
				t.Errorf("%s: %s is under %s, want %s", p, name, got[name], want)
			}
		}
		if unknown > len(got)/20 {
			t.Errorf("%s: %d of %d licences are unknown", p, unknown, len(got))
		}
	}
}

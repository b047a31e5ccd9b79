package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/licensecheck"
)

// document is an SPDX 2.3 document, as far as it is used: https://spdx.github.io/spdx-spec/v2.3/.
type document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	Name             string        `json:"name"`
	SPDXID           string        `json:"SPDXID"`
	VersionInfo      string        `json:"versionInfo"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	SourceInfo       string        `json:"sourceInfo,omitempty"`
	Checksums        []checksum    `json:"checksums,omitempty"`
	ExternalRefs     []externalRef `json:"externalRefs"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// sboms writes for each binary what is linked into it: its modules, as the linker has recorded them, Go's
// standard library, and what of npm is in the web page.
func (d *dist) sboms(context.Context) error {
	npm, err := d.npmPackages()
	if err != nil {
		return err
	}
	for _, p := range platforms {
		info, err := buildinfo.ReadFile(d.binary(p))
		if err != nil {
			return err
		}
		binary, err := os.ReadFile(d.binary(p))
		if err != nil {
			return err
		}
		name := fmt.Sprintf("relay-%s-%s", d.version, p)
		if err := d.artefact(name+".spdx.json", func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(d.sbom(name, info, sha256.Sum256(binary), npm))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (d *dist) sbom(name string, info *debug.BuildInfo, digest [sha256.Size]byte, npm []spdxPackage) document {
	relay := goPackage("relay", "", d.version)
	relay.LicenseConcluded, relay.LicenseDeclared = "Apache-2.0", "Apache-2.0"
	relay.Checksums = []checksum{{"SHA256", fmt.Sprintf("%x", digest)}}
	relay.ExternalRefs[0].Locator = "pkg:golang/" + info.Main.Path + "@" + d.version
	stdlib := goPackage("stdlib", "", strings.TrimPrefix(info.GoVersion, "go"))
	stdlib.LicenseDeclared = declared(d.licences["Go "+info.GoVersion])
	doc := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: fmt.Sprintf("https://spdx.org/spdxdocs/%s-%x", name, digest),
		CreationInfo:      creationInfo{d.date.Format(time.RFC3339), []string{"Tool: meshrelay/tools/dist-" + d.version}},
		Packages:          append([]spdxPackage{relay, stdlib}, npm...),
		Relationships:     []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", relay.SPDXID}},
	}
	for _, m := range info.Deps {
		licence := declared(d.licences[m.Path+" "+m.Version])
		if m.Replace != nil {
			m = m.Replace
		}
		p := goPackage(m.Path, m.Sum, m.Version)
		p.LicenseDeclared = licence
		doc.Packages = append(doc.Packages, p)
	}
	for _, p := range doc.Packages[1:] {
		doc.Relationships = append(doc.Relationships, relationship{relay.SPDXID, "DEPENDS_ON", p.SPDXID})
	}
	return doc
}

// npmPackages returns the packages that "make ui-vendor" fetches and whose licence is beside the web page.
func (d *dist) npmPackages() (all []spdxPackage, err error) {
	makefile, err := os.ReadFile(filepath.Join(d.root, "Makefile"))
	for _, m := range regexp.MustCompile(`fetch ([a-z-]+)@([0-9.]+)`).FindAllStringSubmatch(string(makefile), -1) {
		if text, embedded := d.licences[m[1]]; embedded {
			p := goPackage(m[1], "", m[2])
			p.LicenseDeclared, p.ExternalRefs[0].Locator = declared(text), "pkg:npm/"+m[1]+"@"+m[2]
			all = append(all, p)
		}
	}
	return all, err
}

// declared returns the licences that a text has, as SPDX writes them, or NOASSERTION where a fourth of it is
// something else.
func declared(text []byte) string {
	var ids []string
	found := licensecheck.Scan(text)
	for _, m := range found.Match {
		if !m.IsURL {
			ids = append(ids, m.ID)
		}
	}
	if len(ids) == 0 || found.Percent < 75 {
		return "NOASSERTION"
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND ")
}

var noID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func goPackage(path, sum, version string) spdxPackage {
	p := spdxPackage{
		Name: path, SPDXID: "SPDXRef-" + noID.ReplaceAllString(path, "-"), VersionInfo: version,
		DownloadLocation: "NOASSERTION", LicenseConcluded: "NOASSERTION", LicenseDeclared: "NOASSERTION", CopyrightText: "NOASSERTION",
		// Package URLs have paths of Go in small letters, and no bare plus.
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")}},
	}
	if sum != "" {
		p.SourceInfo = "go.sum: " + sum
	}
	return p
}

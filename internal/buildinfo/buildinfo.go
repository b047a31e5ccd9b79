// Package buildinfo describes the build of the program: version, commit, Go and platform. It must not
// know how a description is shown.
package buildinfo

import (
	"cmp"
	"crypto/fips140"
	"runtime"
	"runtime/debug"
	"strings"
)

// Info describes a build. Unknown fields are empty.
type Info struct {
	Version    string `json:"version"`              // the release, or "devel"
	Revision   string `json:"revision,omitempty"`   // the commit, with "-dirty" after local changes
	CommitTime string `json:"commitTime,omitempty"` // RFC 3339
	GoVersion  string `json:"goVersion"`
	Platform   string `json:"platform"`          // GOOS/GOARCH
	FIPS140    string `json:"fips140,omitempty"` // the version of Go's FIPS 140-3 module, if its mode is on
}

// Read describes the running program. version is the version set by the linker (-ldflags "-X
// main.version=…"), or empty.
func Read(version string) Info {
	bi, _ := debug.ReadBuildInfo()
	info := from(version, bi)
	if fips140.Enabled() {
		info.FIPS140 = fips140.Version()
	}
	return info
}

// Module returns the version of the module at path in this program. It is empty when unknown.
func Module(path string) string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range bi.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return ""
}

func from(version string, bi *debug.BuildInfo) Info {
	info := Info{GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	module := ""
	if bi != nil {
		module = strings.Trim(bi.Main.Version, "()")
		vcs := map[string]string{}
		for _, s := range bi.Settings {
			vcs[s.Key] = s.Value
		}
		info.Revision, info.CommitTime = vcs["vcs.revision"], vcs["vcs.time"]
		if info.Revision != "" && vcs["vcs.modified"] == "true" {
			info.Revision += "-dirty"
		}
	}
	info.Version = cmp.Or(version, module, "devel")
	return info
}

// String returns the build in one line.
func (i Info) String() string {
	s := "relay " + i.Version
	if i.Revision != "" {
		s += " (" + i.Revision[:min(len(i.Revision), 12)] + ")"
	}
	s += " " + i.GoVersion + " " + i.Platform
	if i.FIPS140 != "" {
		s += " FIPS 140-3 module " + i.FIPS140
	}
	return s
}

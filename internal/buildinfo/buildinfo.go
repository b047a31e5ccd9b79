// Package buildinfo names the build of the relay: version, revision and Go version. It must not
// know who shows them.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// Info describes a build. A field is empty when the build does not say.
type Info struct {
	// Version is the release, "devel" for a build that is none.
	Version string `json:"version"`
	// Revision is the commit, with "-dirty" when files were changed, at CommitTime (RFC
	// 3339).
	Revision   string `json:"revision,omitempty"`
	CommitTime string `json:"commitTime,omitempty"`
	GoVersion  string `json:"goVersion"`
	// Platform is GOOS/GOARCH.
	Platform string `json:"platform"`
}

// Read returns what is known of the running program. version is what the linker was
// told (-ldflags "-X main.version=…"), empty if nothing.
func Read(version string) Info {
	bi, _ := debug.ReadBuildInfo()
	return from(version, bi)
}

func from(version string, bi *debug.BuildInfo) Info {
	info := Info{Version: version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	dirty := false
	if bi != nil {
		if info.Version == "" && bi.Main.Version != "(devel)" {
			info.Version = bi.Main.Version
		}
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Revision = s.Value
			case "vcs.time":
				info.CommitTime = s.Value
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
	}
	if dirty && info.Revision != "" {
		info.Revision += "-dirty"
	}
	if info.Version == "" {
		info.Version = "devel"
	}
	return info
}

// String returns the build in one line.
func (i Info) String() string {
	s := "relay " + i.Version
	if i.Revision != "" {
		s += " (" + i.Revision[:min(len(i.Revision), 12)] + ")"
	}
	return s + " " + i.GoVersion + " " + i.Platform
}

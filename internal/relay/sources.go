package relay

import (
	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/xds"
)

// Kinds returns the kinds of sources that an upstream can have.
func Kinds() []upstreams.Kind { return []upstreams.Kind{xds.Kind(), file.Kind(), kubernetes.Kind()} }

// Sources returns the sections of those kinds, for package config.
func Sources() (sections []config.Source) {
	for _, kind := range Kinds() {
		sections = append(sections, kind.Config)
	}
	return sections
}

// Read returns how many resources an upstream has, and what is wrong with them, as far as that
// is known without a connection.
func Read(u config.Upstream) (resources int, problems []error) {
	kind, err := upstreams.KindOf(Kinds(), u)
	if err != nil || kind.Read == nil {
		return 0, nil
	}
	return kind.Read(u)
}

package relay

import (
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/xds"
)

// kinds returns the kinds of sources that an upstream can have.
func kinds() []upstreams.Kind { return []upstreams.Kind{file.Kind(), xds.Kind()} }

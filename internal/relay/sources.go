package relay

// The kinds of sources that an upstream can have.
import (
	_ "meshrelay/upstreams/file"
	_ "meshrelay/upstreams/xds"
)

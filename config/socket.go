package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// maxSocketPath is how long the path of a Unix socket can be, in bytes.
const maxSocketPath = 107

// AdminSocket returns the absolute path of the Unix socket for what changes something:
// Admin.Socket, or else its default. It need not be possible to open it.
func (c *Config) AdminSocket() string {
	if c.Admin.Socket != "" {
		return absolute(c.Admin.Socket)
	}
	// Relays on one host have different ports, unless the system chooses them.
	_, name, err := net.SplitHostPort(c.Admin.Address)
	if err != nil || name == "0" {
		name = fmt.Sprintf("pid-%d", os.Getpid())
	}
	name = "admin-" + name + ".sock"
	own := fmt.Sprintf("meshrelay-%d", os.Getuid())
	var paths []string
	if c.State.Dir != "" {
		paths = append(paths, filepath.Join(absolute(c.State.Dir), "admin.sock"))
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "meshrelay", name))
	}
	paths = append(paths, filepath.Join(absolute(os.TempDir()), own, name))
	for _, path := range paths {
		if len(path) <= maxSocketPath {
			return path
		}
	}
	return filepath.Join("/tmp", own, name)
}

// absolute returns a path as it is from everywhere.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path // there is no working directory: it is as good as it gets
	}
	return abs
}

package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// maxSocketPath is the longest path of a Unix socket, in bytes.
const maxSocketPath = 107

// AdminSocket returns the absolute path of the Unix socket that takes orders: Admin.Socket, or
// its default. The relay may be unable to open it.
func (c *Config) AdminSocket() string {
	if c.Admin.Socket != "" {
		return absolute(c.Admin.Socket)
	}
	// Relays on one host have different ports, so the port makes the name unique.
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

// absolute returns the absolute form of a path.
func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path // there is no working directory
	}
	return abs
}

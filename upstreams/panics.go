package upstreams

import (
	"log/slog"

	"meshrelay/mirror"
)

// maxLoggedPanics is how many panics of a source are logged with their stacks; after that,
// one of so many.
const maxLoggedPanics = 20

// sayPanic logs the nth panic of a source.
func sayPanic(log *slog.Logger, resource string, n uint64, p *mirror.Panic) {
	if n <= maxLoggedPanics || n%maxLoggedPanics == 0 {
		log.Error("panic while handling a resource", "resource", abbreviate(resource), "panic", p.Value, "panics", n, "stack", p.Stack)
	}
}

package upstreams

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// Reporter is a Source that can write a condition into the status of an object. Any goroutine may call its methods.
type Reporter interface {
	// Report writes a condition, unless the object has it, or status True for its content. It sets the type, the time and the
	// generation. told is false if the object has another content than the relay.
	Report(ctx context.Context, key mirror.Key, c metav1.Condition) (told bool, err error)
}

// Report writes the condition of the object of a served resource, as Reporter.
func (m *Manager) Report(ctx context.Context, upstream string, served mirror.Key, c metav1.Condition) (told bool, err error) {
	for _, u := range m.all() {
		source, is := u.source.(Reporter)
		for _, t := range locked(u.upstream, func(in *intake.Intake) []intake.Trace { return in.Trace(served) }) {
			if is && u.cfg.Name == upstream && t.Key == served && t.Resource != nil {
				return source.Report(ctx, t.Original, c)
			}
		}
	}
	return false, nil
}

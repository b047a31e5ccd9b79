package upstreams

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// Reporter is a Source that can write a condition into the status of an object. Any goroutine may call its methods.
type Reporter interface {
	// Report writes the condition of an object, unless it has the condition, or status True for its content. It sets the
	// type, the time and the generation, and calls await before it writes.
	Report(ctx context.Context, key mirror.Key, c metav1.Condition, await func(context.Context) error) (Reported, error)
}

// Reported is the result of Report.
type Reported string

// The results.
const (
	Written   Reported = "written"
	Unchanged Reported = "unchanged"
	Outdated  Reported = "outdated" // the object has changed
	Absent    Reported = "absent"   // there is no object, as for what is made of Services, or its kind has no such status
	Failed    Reported = "failed"
)

// Report writes the condition of the object of a served resource, as Reporter. The resource is Outdated if the upstream
// does not have it any more.
func (m *Manager) Report(ctx context.Context, upstream string, served mirror.Key, c metav1.Condition, await func(context.Context) error) (Reported, error) {
	for _, u := range m.all() {
		source, is := u.source.(Reporter)
		if !is || u.cfg.Name != upstream {
			continue
		}
		for _, t := range locked(u.upstream, func(in *intake.Intake) []intake.Trace { return in.Trace(served) }) {
			if t.Key == served && t.Resource != nil {
				return source.Report(ctx, t.Original, c, await)
			}
		}
	}
	return Outdated, nil
}

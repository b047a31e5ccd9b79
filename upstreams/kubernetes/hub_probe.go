package kubernetes

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
)

// Probe returns all objects of a collection, and findings about the credentials, the server, and the
// right to list. ok reports whether the objects can be listed.
func (h *Hub) Probe(ctx context.Context, of Collection) (objects []HubObject, found []doctor.Finding, ok bool) {
	if err := h.client.refresh(ctx); err != nil {
		return nil, []doctor.Finding{doctor.Bad("credentials", h.client.section.place(), "the credentials of the hub can not be used", text.Abbreviate(err.Error()),
			"correct kubeconfig and context, or inCluster; a program of the kubeconfig has to be in allowExec beside it")}, false
	}
	server := h.client.current().server()
	what := of.name()
	objects, err := h.List(ctx, of)
	if err != nil {
		return nil, []doctor.Finding{ofHub(server, what, err)}, false
	}
	return objects, []doctor.Finding{doctor.Good("permissions", server, "%s can be listed", what)}, true
}

// name returns how the objects are called, for example "secrets in istio-system".
func (of Collection) name() string {
	_, path, _ := strings.Cut(of.Paths[0], "/namespaces/")
	namespace, plural, _ := strings.Cut(path, "/")
	return plural + " in " + namespace
}

// ofHub returns the finding of a request for objects of a hub that came to nothing.
func ofHub(server, what string, err error) doctor.Finding {
	switch {
	case apierrors.IsForbidden(err):
		return doctor.Bad("permissions", server, "the identity may not list "+what, text.Abbreviate(cause(err)),
			"grant it list for them: deploy/kubernetes/rbac-hub.yaml has the Role")
	case apierrors.IsNotFound(err):
		return doctor.Bad("kubernetes", server, "the server knows no "+what, text.Abbreviate(cause(err)),
			"install the definition of that kind, or look whether this is the right cluster")
	}
	return refused(server, err)
}

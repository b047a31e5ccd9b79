package apiserver

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/doctor"
	"meshrelay/internal/text"
)

// Finding returns the finding of a failed request.
func Finding(server string, err error) doctor.Finding {
	var invalid x509.CertificateInvalidError
	bad := func(check, what, fix string) doctor.Finding {
		return doctor.Bad(check, server, what, text.Abbreviate(Cause(err)), fix)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return bad("identity", "the API server does not accept the credentials", "renew the token or certificate of the kubeconfig, or the service account of the pod")
	case apierrors.IsForbidden(err):
		return bad("identity", "the API server knows the relay's identity, and refuses discovery to it", "give the identity the ClusterRole system:discovery")
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return bad("tls", "the certificate of the API server is signed by a root that is not trusted", "correct certificate-authority of the cluster in the kubeconfig")
	case errors.As(err, new(x509.HostnameError)):
		return bad("tls", "the certificate of the API server is for another name", "set tls-server-name of the cluster in the kubeconfig, or correct its server")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return bad("clock", "the certificate of the API server is not valid now", "look at the clock of this host, and renew the certificate of the server")
	case errors.Is(err, syscall.ECONNREFUSED):
		return bad("tcp", "connection refused", "check the port of the server in the kubeconfig, and that the server runs")
	case errors.Is(err, context.DeadlineExceeded):
		return bad("tcp", "no answer in time", "look at firewalls, network policies and routes between this host and the server")
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return bad("tls", "the server speaks plaintext there", "check the port of the server in the kubeconfig")
	}
	return bad("kubernetes", "the API server can not be asked", "look at the server of the kubeconfig")
}

// Cause returns the text of an error, without the URL of the request.
func Cause(err error) string {
	if asked, is := errors.AsType[*url.Error](err); is {
		err = asked.Err
	}
	return err.Error()
}

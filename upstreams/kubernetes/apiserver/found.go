package apiserver

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// MaxKubeconfig bounds the kubeconfig of a found cluster, in bytes.
const MaxKubeconfig = 256 << 10

// Trust limits the content of a found cluster's kubeconfig. Its author may not be the operator of the relay.
type Trust struct {
	AllowExec  []string // programs, as the kubeconfig writes them
	AllowProxy bool
}

// Kubeconfig is the kubeconfig of a found cluster. When it is replaced, new requests use the new one within
// ten seconds. Any goroutine may call its methods.
type Kubeconfig struct {
	// box has the credentials, except while a method uses them. It is a channel because configs are compared
	// with reflect.DeepEqual: two channels are equal only if they are the same.
	box chan credentials
}

// credentials are a kubeconfig, or the reason why there is none.
type credentials struct {
	text   []byte
	trust  Trust
	reason string
}

// NewKubeconfig returns an empty Kubeconfig. reason is the text of errors while it is empty.
func NewKubeconfig(reason string) *Kubeconfig {
	a := &Kubeconfig{make(chan credentials, 1)}
	a.box <- credentials{reason: reason}
	return a
}

// Set replaces the kubeconfig.
func (a *Kubeconfig) Set(text []byte, trust Trust) {
	<-a.box
	a.box <- credentials{text: text, trust: trust}
}

// Miss replaces the reason. It has no effect on a Kubeconfig that is not empty.
func (a *Kubeconfig) Miss(reason string) {
	now := <-a.box
	now.reason = reason
	a.box <- now
}

func (a *Kubeconfig) get() (text []byte, trust Trust, err error) {
	now := <-a.box
	a.box <- now
	if len(now.text) == 0 {
		return nil, now.trust, errors.New(now.reason)
	}
	return now.text, now.trust, nil
}

func (a *Kubeconfig) restConfig(h io.Writer) (*rest.Config, error) {
	text, trust, err := a.get()
	if err != nil {
		return nil, err
	}
	h.Write(text) //nolint:errcheck // it never fails
	return foundConfig(text, trust)
}

// CheckKubeconfig returns an error if a kubeconfig of a found cluster can not be used.
func CheckKubeconfig(text []byte, trust Trust) error {
	cfg, err := foundConfig(text, trust)
	if err != nil {
		return err
	}
	if _, err := rest.TLSConfigFor(cfg); err != nil { // an error of the certificates
		return err
	}
	return nil
}

func foundConfig(text []byte, trust Trust) (*rest.Config, error) {
	switch {
	case len(text) > MaxKubeconfig:
		return nil, fmt.Errorf("the kubeconfig is larger than %d KiB", MaxKubeconfig>>10)
	case len(strings.TrimSpace(string(text))) == 0:
		return nil, errors.New("the kubeconfig is empty")
	}
	file, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig") // the error may quote secrets
	}
	c := &Credentials{AllowExec: trust.AllowExec}
	if err := refuse(file, c); err != nil {
		return nil, err
	}
	context := file.Contexts[file.CurrentContext]
	if err := refuseFound(file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo], trust); err != nil {
		return nil, err
	}
	return clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, nil, nil).ClientConfig()
}

// refuseFound returns an error if the kubeconfig of a found cluster names files of the relay's host, or a
// proxy that is not allowed. Its author may not be the operator of the relay.
func refuseFound(cluster *api.Cluster, user *api.AuthInfo, trust Trust) error {
	var paths []string
	for name, path := range map[string]string{
		"certificate-authority": cluster.CertificateAuthority, "client-certificate": user.ClientCertificate,
		"client-key": user.ClientKey, "tokenFile": user.TokenFile,
	} {
		if path != "" {
			paths = append(paths, name)
		}
	}
	slices.Sort(paths)
	switch {
	case len(paths) > 0:
		return fmt.Errorf("it names files of the relay's own host (%s): put their content into the kubeconfig", strings.Join(paths, ", "))
	case cluster.ProxyURL != "" && !trust.AllowProxy:
		return errors.New("it has a proxy-url: set allowProxy: true to let found clusters choose a proxy")
	}
	return nil
}

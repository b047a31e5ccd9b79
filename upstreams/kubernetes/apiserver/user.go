package apiserver

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// OfUser returns a connection to the server of a context, and its address. The context is in a kubeconfig, or for an
// empty path in those that kubectl reads: unlike those of a relay, they may name any program for credentials.
func OfUser(path, context string) (*Conn, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, "", err
	}
	rt, err := rest.TransportFor(cfg)
	return NewConn(cfg.Host, rt), cfg.Host, err
}

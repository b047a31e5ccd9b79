package apiserver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"meshrelay/config"
	"meshrelay/internal/servers"
	"meshrelay/internal/yamlpos"
)

// MaxKubeconfig bounds the kubeconfig of a found cluster, in bytes.
const MaxKubeconfig = 256 << 10

// Trust limits the content of a found cluster's kubeconfig. Its author may not be the operator of the relay.
type Trust struct {
	AllowExec []config.Program
	// AllowServers are the elements of servers.Rules.
	AllowServers []string
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

// trust returns the trust in the kubeconfig, nil for a nil Kubeconfig.
func (a *Kubeconfig) trust() *Trust {
	if a == nil {
		return nil
	}
	_, trust, _ := a.get() // there is trust without a kubeconfig, too
	return &trust
}

func (a *Kubeconfig) restConfig(h io.Writer) (*rest.Config, error) {
	text, trust, err := a.get()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(h, "%s%#v", text, trust) // it never fails
	return foundConfig(text, trust)
}

// CheckKubeconfig returns an error if a kubeconfig of a found cluster can not be used.
func CheckKubeconfig(text []byte, trust Trust) error {
	cfg, err := foundConfig(text, trust)
	if err != nil {
		return err
	}
	_, err = rest.TLSConfigFor(cfg)
	return err // of the certificates
}

func foundConfig(text []byte, trust Trust) (*rest.Config, error) {
	if len(strings.TrimSpace(string(text))) == 0 {
		return nil, errors.New("the kubeconfig is empty")
	}
	text, err := plainOf(text, foundLimits)
	if err != nil {
		return nil, fmt.Errorf("it is not a kubeconfig that is accepted: %w", err)
	}
	file, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig") // the error may quote secrets
	}
	c := &Credentials{}
	for _, p := range trust.AllowExec {
		c.AllowExec = append(c.AllowExec, p.Command)
	}
	if err := refuse(file, c); err != nil {
		return nil, err
	}
	context := file.Contexts[file.CurrentContext]
	cluster, user := file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo]
	if user.Exec != nil {
		if err := trust.bind(user.Exec); err != nil {
			return nil, fmt.Errorf("user %q: %w", context.AuthInfo, err)
		}
	}
	if err := refuseFound(cluster, user, trust); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, nil, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	if cfg.ExecProvider != nil {
		cfg.ExecProvider.Config = nil // an extension of the cluster
	}
	return cfg, nil
}

// bind gives a program of a kubeconfig the arguments and variables that the config has for it: those of the element
// with the arguments of the kubeconfig, or else of the only element with its command.
func (t *Trust) bind(x *api.ExecConfig) error {
	if len(t.AllowServers) == 0 {
		return fmt.Errorf("it runs the program %q, whose credential could go to any server: list the servers that may get it in clusters[].allowServers", x.Command)
	}
	of := slices.DeleteFunc(slices.Clone(t.AllowExec), func(p config.Program) bool { return p.Command != x.Command })
	i := slices.IndexFunc(of, func(p config.Program) bool { return slices.Equal(p.Args, x.Args) })
	if i < 0 && len(of) == 1 {
		i = 0
	}
	if i < 0 || len(of[i].Args)+len(of[i].Env) == 0 && len(x.Args)+len(x.Env) > 0 {
		return fmt.Errorf("it gives the program %q arguments or variables, and only the config does so: write {command: %[1]s, args: [...], env: {...}} in clusters[].allowExec", x.Command)
	}
	x.Args, x.Env = of[i].Args, nil
	for _, name := range slices.Sorted(maps.Keys(of[i].Env)) {
		x.Env = append(x.Env, api.ExecEnvVar{Name: name, Value: of[i].Env[name]})
	}
	return nil
}

// refuseFound returns an error if the kubeconfig of a found cluster names files of the relay's host, a server or a
// proxy that is not allowed, or anything but a host where a host belongs. Its author may not be the operator of the
// relay.
func refuseFound(cluster *api.Cluster, user *api.AuthInfo, trust Trust) error {
	files := map[string]string{
		"certificate-authority": cluster.CertificateAuthority, "client-certificate": user.ClientCertificate,
		"client-key": user.ClientKey, "tokenFile": user.TokenFile,
	}
	maps.DeleteFunc(files, func(_, path string) bool { return path == "" })
	server, err := url.Parse(cluster.Server)
	proxy, failed := url.Parse(cluster.ProxyURL)
	switch {
	case len(files) > 0:
		return fmt.Errorf("it names files of the relay's own host (%s): put their content into the kubeconfig", strings.Join(slices.Sorted(maps.Keys(files)), ", "))
	case cluster.ProxyURL != "" && len(trust.AllowServers) == 0:
		return errors.New("it has a proxy-url: name the proxy in allowServers")
	case err != nil || !servers.IsHost(server.Hostname()) || strings.ContainsAny(cluster.Server, "?#"):
		return errors.New("the server is not https:// with a DNS name or an IP address, and perhaps a port and a path")
	case failed != nil || cluster.ProxyURL != "" && !servers.IsHost(proxy.Hostname()):
		return errors.New("the proxy-url has neither a DNS name nor an IP address")
	case cluster.TLSServerName != "" && !servers.IsHost(cluster.TLSServerName):
		return fmt.Errorf("the tls-server-name %.64q is neither a DNS name nor an IP address", cluster.TLSServerName)
	}
	rules, err := servers.Parse(trust.AllowServers)
	if err != nil {
		return err
	}
	return rules.Host(server.Hostname(), cluster.ProxyURL != "" || proxyOfEnvironment(cluster.Server))
}

var (
	// fileLimits bound a kubeconfig that the config names. It may have many clusters. No field of a kubeconfig
	// is a number: "name: .0_", as kubectl writes it, is a text.
	fileLimits = yamlpos.Limits{Bytes: maxCredentials, Values: 100_000, Plain: true, Texts: true}
	// foundLimits bound the kubeconfig of a found cluster.
	foundLimits = yamlpos.Limits{Bytes: MaxKubeconfig, Values: 5_000, Plain: true, Texts: true}
)

// plainOf returns a kubeconfig of which the library makes nothing much larger: the text itself where it can not
// have aliases, else what it has, as JSON. Errors quote nothing of the text, which has secrets.
func plainOf(text []byte, limits yamlpos.Limits) ([]byte, error) {
	if yamlpos.Plain(text, limits) {
		return text, nil
	}
	documents, err := yamlpos.Decode(text, limits)
	if syntax, is := errors.AsType[*yamlpos.SyntaxError](err); is {
		return nil, fmt.Errorf("line %d: it is not YAML", syntax.Line)
	}
	if err != nil || len(documents) == 0 {
		return nil, err
	}
	return json.Marshal(documents[0])
}

// refuse returns an error if a kubeconfig runs a program that is not allowed, names a server that can not be
// verified, or would send a secret without TLS.
func refuse(file *api.Config, c *Credentials) error {
	name := cmp.Or(c.Context, file.CurrentContext)
	context := file.Contexts[name]
	if context == nil {
		there := slices.Sorted(maps.Keys(file.Contexts))
		if name == "" {
			return fmt.Errorf("there is no current-context: set context to one of %s", strings.Join(there, ", "))
		}
		return fmt.Errorf("context %q does not exist: there are %s", name, strings.Join(there, ", "))
	}
	cluster, user := file.Clusters[context.Cluster], file.AuthInfos[context.AuthInfo]
	if cluster == nil {
		return fmt.Errorf("context %q names the cluster %q, which does not exist", name, context.Cluster)
	}
	if !strings.HasPrefix(cluster.Server, "https://") {
		return fmt.Errorf("cluster %q: the server does not begin with https://: credentials are not sent in the clear", context.Cluster)
	}
	if server, err := url.Parse(cluster.Server); err != nil || server.User != nil { // an error would quote it
		return fmt.Errorf("cluster %q: the server must be a URL without user and password: put credentials into a user", context.Cluster)
	}
	if !acceptsProxy(cluster.ProxyURL) { // an error would quote it, too
		return fmt.Errorf("cluster %q: the proxy-url must be a URL that begins with http://, https:// or socks5://", context.Cluster)
	}
	if cluster.InsecureSkipTLSVerify {
		return fmt.Errorf("cluster %q: insecure-skip-tls-verify is not accepted: give certificate-authority", context.Cluster)
	}
	if user == nil {
		return fmt.Errorf("context %q names the user %q, which does not exist", name, context.AuthInfo)
	}
	if user.AuthProvider != nil {
		return fmt.Errorf("user %q: the auth-provider %q is not accepted: use exec, a token or a certificate", context.AuthInfo, user.AuthProvider.Name)
	}
	if user.Exec != nil && !slices.Contains(c.AllowExec, user.Exec.Command) {
		return fmt.Errorf("user %q runs the program %q: name it in allowExec", context.AuthInfo, user.Exec.Command)
	}
	return nil
}

// acceptsProxy reports whether client-go accepts the URL of a proxy. An error of client-go would quote a
// password in it.
func acceptsProxy(text string) bool {
	proxy, err := url.Parse(text)
	return text == "" || err == nil && slices.Contains([]string{"http", "https", "socks5"}, proxy.Scheme)
}

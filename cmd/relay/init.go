package main

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/internal/errlist"
	"meshrelay/internal/loopback"
	"meshrelay/relay"
)

// initial are the flags from which init makes a config file.
type initial struct {
	Istiod, Dir, Kubeconfig        string
	CAFile, ServerName, TokenFile  string
	Plaintext                      bool
	Name, Listen, StateDir, Output string
}

//go:embed init.yaml
var initialConfig string

// written tells what to do with a new config file.
const written = `%[1]s is written. Next:

  check what the relay needs:        relay doctor -c %[1]s
  run it:                            relay serve -c %[1]s
  show its state, meanwhile:         relay status
  have editors complete the file:    relay schema >%[2]s
`

func newInit() *cobra.Command {
	var in initial
	var remote clusterInit
	cmd := &cobra.Command{
		Use:   "init (--istiod HOST:PORT | --file DIR | --from-kubeconfig FILE | --cluster CONTEXT)",
		Short: "Write a first config file, or print what a cluster needs",
		Long: `Write a config file for one or several upstreams: an istiod or relay, a directory of YAML, and the
API server of a kubeconfig. The file is valid and has comments. The command never replaces a file. It
prints the next commands.

With --cluster, print what a cluster needs that a relay elsewhere reads: a service account, its rights, and a token. Apply
it to the cluster. Then, with --secret, print the Secret with a kubeconfig for the relay, and apply it where the relay
runs. The command changes nothing.`,
		Example: `  relay init --istiod istiod.east.example:15012 --ca-file root-cert.pem --token-file token
  relay init --istiod 127.0.0.1:15010
  relay init --file ./configs -o relay.yaml
  relay init --from-kubeconfig ~/.kube/config -o -
  relay init --cluster east | kubectl --context east apply -f -
  relay init --cluster east --secret | kubectl apply -f -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if remote.Context != "" {
				remote.Name = cmp.Or(map[bool]string{true: in.Name}[cmd.Flags().Changed("name")], remote.Context)
				return remote.write(cmd.Context(), in.Kubeconfig, cmd.OutOrStdout())
			}
			for _, name := range []string{"secret", "server", "namespace"} {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s belongs to --cluster: add --cluster CONTEXT, or leave it out", name)
				}
			}
			text, err := in.config()
			if err != nil {
				return err
			}
			write := func(w io.Writer) error {
				_, err := io.WriteString(w, text)
				return err
			}
			if in.Output == "-" {
				return write(cmd.OutOrStdout())
			}
			if _, err = writeNew(in.Output, write); err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), written, in.Output, filepath.Join(filepath.Dir(in.Output), "relay.schema.json"))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Istiod, "istiod", "", "`address` of an istiod or relay, host:port")
	f.StringVar(&in.Dir, "file", "", "`path` of a file or directory of YAML")
	f.StringVar(&in.Kubeconfig, "from-kubeconfig", "", "kubeconfig `file` of a cluster whose API server is read; with --cluster, the one that has the context (default: as kubectl)")
	f.StringVar(&in.Name, "name", "istiod", "`name` of the upstream of --istiod; with --cluster, the ID of the cluster, by default the context")
	f.StringVar(&remote.Context, "cluster", "", "`context` of the cluster whose manifests are printed")
	f.StringVar(&remote.Namespace, "namespace", "istio-system", "`namespace` of those manifests: the root namespace of the istiod")
	f.BoolVar(&remote.Secret, "secret", false, "print the Secret with the kubeconfig of --cluster")
	f.StringVar(&remote.Server, "server", "", "`URL` of the API server for the relay (default: that of the context)")
	f.BoolVar(&in.Plaintext, "plaintext", false, "connect to the istiod without TLS (default on port 15010)")
	f.StringVar(&in.CAFile, "ca-file", "", "PEM `file` with the root of the istiod's mesh")
	f.StringVar(&in.ServerName, "server-name", "", "`name` in the istiod's certificate (default: istiod.istio-system.svc for a port-forward, else the host)")
	f.StringVar(&in.TokenFile, "token-file", "", "`file` with a token for the istiod")
	f.StringVar(&in.Listen, "listen", "127.0.0.1:15010", "`address` for clients, on loopback")
	f.StringVar(&in.StateDir, "state-dir", "state", "`directory` for the state")
	f.StringVarP(&in.Output, "output", "o", "relay.yaml", "`file` to write, - for standard output")
	cmd.MarkFlagsMutuallyExclusive("cluster", "istiod")
	cmd.MarkFlagsMutuallyExclusive("cluster", "file")
	cmd.MarkFlagsMutuallyExclusive("cluster", "output")
	return cmd
}

// config returns the text of a valid config file.
func (in *initial) config() (string, error) {
	if in.Istiod == "" && in.Dir == "" && in.Kubeconfig == "" {
		return "", errors.New("missing upstream: use --istiod HOST:PORT, --file DIR or --from-kubeconfig FILE")
	}
	if in.Istiod != "" {
		host, port, err := net.SplitHostPort(in.Istiod)
		if err != nil {
			return "", fmt.Errorf("--istiod %q: want host:port, as in istiod.istio-system.svc:15012", in.Istiod)
		}
		in.Plaintext = in.Plaintext || port == "15010"
		if in.Plaintext && cmp.Or(in.CAFile, in.TokenFile, in.ServerName) != "" {
			return "", errors.New("--ca-file, --token-file and --server-name need TLS: leave them out, or use port 15012")
		}
		if loopback.Host(host) {
			host = "istiod.istio-system.svc"
		}
		in.ServerName = cmp.Or(in.ServerName, host)
		if in.Listen == in.Istiod {
			return "", fmt.Errorf("the relay can not listen on %s, where its upstream is: use --listen 127.0.0.1:15011", in.Listen)
		}
	}
	for _, path := range []*string{&in.Dir, &in.Kubeconfig, &in.CAFile, &in.TokenFile} {
		if err := in.rebase(path); err != nil {
			return "", err
		}
	}
	var text strings.Builder
	if err := template.Must(template.New("").Parse(initialConfig)).Execute(&text, in); err != nil {
		return "", err
	}
	if _, err := config.Parse(filepath.Clean(in.Output), []byte(text.String()), relay.Sources()...); err != nil {
		var all []error
		for _, e := range errlist.Split(err) {
			all = append(all, fmt.Errorf("these flags make an invalid config: %w", e))
		}
		return "", errors.Join(all...)
	}
	return text.String(), nil
}

// rebase makes a path relative to the directory of the config file. It was relative to the current directory.
func (in *initial) rebase(path *string) error {
	dir := filepath.Dir(in.Output)
	if *path == "" || dir == "." || filepath.IsAbs(*path) {
		return nil
	}
	from, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(*path)
	if err != nil {
		return err
	}
	*path, err = filepath.Rel(from, to)
	return err
}

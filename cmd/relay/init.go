package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"meshrelay/config"
	"meshrelay/internal/errlist"
	"meshrelay/internal/loopback"
	"meshrelay/relay"
)

// initial are the answers that a new config file is made of.
type initial struct {
	Istiod, Dir, Kubeconfig        string
	CAFile, ServerName, TokenFile  string
	Plaintext                      bool
	Name, Listen, StateDir, Output string
}

const initialConfig = `# yaml-language-server: $schema=relay.schema.json
# The schema of this file, for editors: relay schema >relay.schema.json
# Written by "relay init". The reference of all fields is docs/configuration.md.

# Upstreams are where resources come from. Of a resource that several have, the first wins.
upstreams:
{{- if .Istiod}}
- name: {{.Name}}
  xds:
    addresses: [{{printf "%q" .Istiod}}]  # more than one: the next is taken when one is down
{{- if .Plaintext}}
    plaintext: true  # no TLS and no identity: port 15010 of an istiod
{{- else}}
    tls:  # port 15012 of an istiod
{{- if .CAFile}}
      caFile: {{.CAFile}}  # the root of its mesh
{{- else}}
      # caFile: root-cert.pem  # the root of its mesh; without it, the roots of this host
{{- end}}
      serverName: {{.ServerName}}  # the name in its certificate
{{- if .TokenFile}}
    tokenFile: {{.TokenFile}}  # a token with the audience istio-ca
{{- else}}
    # tokenFile: /var/run/secrets/tokens/istio-token  # a token with the audience istio-ca
{{- end}}
{{- end}}
  # guard: {holdFor: forever}  # deletions in bulk wait for a person, for as long as it takes
{{- end}}
{{- if .Kubeconfig}}
- name: cluster
  kubernetes:
    kubeconfig: {{.Kubeconfig}}  # an identity that may list and watch
{{- end}}
{{- if .Dir}}
- name: files
  file:
    path: {{.Dir}}  # Kubernetes-style YAML, followed as it changes
{{- end}}

# Clients connect here: istiods (configSources: [{address: "xds://…"}, {address: "k8s://"}]), other
# relays, and "relay get".
downstream:
  listeners:
  - address: {{.Listen}}
    plaintext: true  # for clients on this host; docs/security.md has the rest

# What is last known good, its history, and what operators decided. Without it, a restart waits for
# every upstream, and there is nothing to roll back to.
state:
  dir: {{.StateDir}}

admin:
  address: 127.0.0.1:15014  # /ready, /metrics, and what "relay status" asks
`

// next is what to do with a new config file.
const next = `  relay doctor -c %s  # can it reach everything?
  relay serve -c %[1]s  # run it
  relay status  # in another terminal: see it
`

func newInit() *cobra.Command {
	var in initial
	cmd := &cobra.Command{
		Use:   "init (--istiod HOST:PORT | --file DIR | --from-kubeconfig FILE)",
		Short: "Write a first config file, with comments",
		Long: `Write a config file for one upstream or several: an istiod or relay, a directory of YAML, and the
API server of a kubeconfig. The file is valid, has comments, and replaces none. Beside it the command
writes relay.schema.json, from which editors complete fields, unless there is one. It then prints
what to do next.`,
		Example: `  relay init --istiod istiod.east.example:15012 --ca-file root-cert.pem --token-file token
  relay init --istiod 127.0.0.1:15010
  relay init --file ./configs -o relay.yaml
  relay init --from-kubeconfig ~/.kube/config -o -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := in.config()
			if err != nil {
				return err
			}
			if in.Output == "-" {
				_, err := io.WriteString(cmd.OutOrStdout(), text)
				return err
			}
			_, err = writeNew(in.Output, func(w io.Writer) error {
				_, err := io.WriteString(w, text)
				return err
			})
			written := in.Output + " is"
			if err == nil && in.lacksSchema() {
				_, err = writeNew(in.schema(), writeSchema)
				written = in.Output + " and " + in.schema() + " are"
			}
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s written. Next:\n\n%s", written, aligned(fmt.Sprintf(next, in.Output), 80))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Istiod, "istiod", "", "`address` of an istiod or relay, host:port")
	f.StringVar(&in.Dir, "file", "", "`path` of a file or directory of YAML")
	f.StringVar(&in.Kubeconfig, "from-kubeconfig", "", "kubeconfig `file` of a cluster whose API server is read")
	f.StringVar(&in.Name, "name", "istiod", "`name` of the upstream of --istiod")
	f.BoolVar(&in.Plaintext, "plaintext", false, "the istiod is reached without TLS (the default on port 15010)")
	f.StringVar(&in.CAFile, "ca-file", "", "PEM `file` with the root of the istiod's mesh")
	f.StringVar(&in.ServerName, "server-name", "", "`name` in the istiod's certificate (default: istiod.istio-system.svc for a port-forward, else the host)")
	f.StringVar(&in.TokenFile, "token-file", "", "`file` with a token for the istiod")
	f.StringVar(&in.Listen, "listen", "127.0.0.1:15010", "`address` for clients, on loopback")
	f.StringVar(&in.StateDir, "state-dir", "state", "`directory` for what is kept")
	f.StringVarP(&in.Output, "output", "o", "relay.yaml", "`file` to write, - for standard output")
	return cmd
}

// schema returns where the first line of a config file says that its schema is.
func (in *initial) schema() string {
	return filepath.Join(filepath.Dir(in.Output), "relay.schema.json")
}

// lacksSchema reports whether the schema is to be written. Where it is an upstream would read it: of files,
// it reads all that end in .json.
func (in *initial) lacksSchema() bool {
	if _, err := os.Stat(in.schema()); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	dir, err := filepath.Abs(filepath.Dir(in.Output))
	if err != nil || in.Dir == "" {
		return err == nil
	}
	read := in.Dir // config has made it relative to dir
	if !filepath.IsAbs(read) {
		read = filepath.Join(dir, read)
	}
	below, err := filepath.Rel(read, dir)
	return err == nil && !filepath.IsLocal(below)
}

// config returns the text of a config file, which is valid.
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
			return "", errors.New("--ca-file, --token-file and --server-name need TLS: leave them out, or give port 15012")
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
			all = append(all, fmt.Errorf("these flags make no valid config: %w", e))
		}
		return "", errors.Join(all...)
	}
	return aligned(text.String(), 50), nil
}

// rebase makes a path, which is relative to the present directory, relative to that of the config file.
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

// aligned puts the comments at the ends of lines below each other, two spaces after the longest line
// that has one and is no longer than most.
func aligned(text string, most int) string {
	lines := strings.Split(text, "\n")
	width := 0
	for _, line := range lines {
		if code, _, _ := cutComment(line); len(code) <= most {
			width = max(width, len(code))
		}
	}
	for i, line := range lines {
		if code, comment, ok := cutComment(line); ok {
			lines[i] = fmt.Sprintf("%-*s  # %s", width, code, comment)
		}
	}
	return strings.Join(lines, "\n")
}

// cutComment divides a line into code and the comment after it.
func cutComment(line string) (code, comment string, ok bool) {
	i := strings.LastIndex(line, "  # ")
	if i < 0 || strings.TrimSpace(line[:i]) == "" {
		return "", "", false
	}
	return strings.TrimRight(line[:i], " "), line[i+len("  # "):], true
}

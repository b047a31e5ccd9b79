package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/cliview"
)

// completionTimeout bounds how long a shell waits for the names of upstreams.
const completionTimeout = 2 * time.Second

// access has the global flags, for reaching a running relay: its admin address and its Unix socket.
type access struct {
	address, socket string
	timeout         time.Duration
}

// call does the work of a command. cmd.Context() has the timeout.
type call func(cmd *cobra.Command, c admin.Client, args []string) error

// flags adds the flags to the root of all commands.
func (a *access) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&a.address, "admin", cmp.Or(os.Getenv("RELAY_ADMIN"), "127.0.0.1:15014"), "admin `address` of the running relay, host:port; $RELAY_ADMIN sets another default")
	f.StringVar(&a.socket, "socket", os.Getenv("RELAY_SOCKET"), "`path` of its Unix socket; $RELAY_SOCKET sets another default (default: the path that the relay gives at its admin address)")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for answers")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		var unused error
		for _, flag := range []string{"admin", "socket", "timeout"} {
			if f.Changed(flag) && cmd.Annotations[asking] == "" {
				unused = errors.Join(unused, fmt.Errorf("--%s is for commands that ask a running relay: see \"%s --help\"", flag, cmd.CommandPath()))
			}
		}
		if f.Changed("admin") && !f.Changed("socket") {
			a.socket = "" // that of RELAY_SOCKET may be another relay's
		}
		return unused
	}
}

func (a *access) client() admin.Client { return admin.Client{Address: a.address, Socket: a.socket} }

// asking is the annotation of commands that ask a running relay. Other commands refuse the global flags: serve --admin
// would look like the address to listen on.
const asking = "asking"

// asks marks a command that asks a running relay.
func asks(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{asking: "a running relay"}
	return cmd
}

// overAdmin makes a command that calls the admin address.
func (a *access) overAdmin(cmd *cobra.Command, do call) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
		defer cancel()
		cmd.SetContext(ctx)
		return hinted(do(cmd, a.client(), args))
	}
	return asks(cmd)
}

// overSocket makes a command that calls the Unix socket.
func (a *access) overSocket(cmd *cobra.Command, do call) *cobra.Command {
	return a.overAdmin(cmd, func(cmd *cobra.Command, c admin.Client, args []string) error { return throughSocket(cmd, c, args, do) })
}

// throughSocket runs do over the Unix socket: that of the flag, or the one that the relay gives at its
// admin address. If the relay refuses, the error is the relay's text.
func throughSocket(cmd *cobra.Command, c admin.Client, args []string, do call) error {
	if c.Socket == "" {
		v, err := c.Version(cmd.Context())
		switch {
		case err != nil:
			return err
		case v.AdminSocket == "":
			return fmt.Errorf("the relay at %s has no Unix socket open: see \"relay status\"", c.Address)
		}
		c.Socket, c.Named = v.AdminSocket, true
	}
	return refusal(do(cmd, c, args))
}

// hinted adds advice to the error of a relay that does not answer. If the relay answers with 400, the error
// is the relay's text.
func hinted(err error) error {
	if _, ok := errors.AsType[*admin.UnreachableError](err); ok {
		return fmt.Errorf("%w: check that a relay runs, and that this is its admin.address, or use --admin", err)
	}
	if refused, ok := errors.AsType[*admin.StatusError](err); ok && refused.Code == http.StatusBadRequest {
		return refusal(err)
	}
	return err
}

// refusal returns the lines of a relay's refusal as errors. An indented line belongs to the line before.
func refusal(err error) error {
	refused, ok := errors.AsType[*admin.StatusError](err)
	if !ok {
		return err
	}
	var mistakes []error
	for line := range strings.Lines(refused.Text) {
		text := cliview.Clean(strings.TrimRight(line, " \n"))
		if n := len(mistakes); n > 0 && strings.HasPrefix(text, " ") {
			mistakes[n-1] = fmt.Errorf("%w\n%s", mistakes[n-1], text)
			continue
		}
		mistakes = append(mistakes, errors.New(strings.TrimSpace(text)))
	}
	return cmp.Or(errors.Join(mistakes...), err)
}

// completeUpstreams completes the name of an upstream of the relay at the admin address.
func (a *access) completeUpstreams(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completionTimeout)
	defer cancel()
	// If the relay does not answer, there is nothing to complete.
	all, _ := a.client().Upstreams(ctx) // see above
	for _, u := range all {
		names = append(names, u.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// wanted returns a check that there is one argument for each name. The last optional arguments may be
// missing.
func wanted(optional int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		usage := cmd.Parent().CommandPath() + " " + cmd.Use
		if len(args) < len(names)-optional {
			return fmt.Errorf("missing %s: %s", strings.Join(names[len(args):len(names)-optional], " and "), usage)
		}
		if len(args) > len(names) {
			return fmt.Errorf("unexpected argument %q: %s", args[len(names)], usage)
		}
		return nil
	}
}

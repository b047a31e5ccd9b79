package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/internal/cliview"
)

// completionTimeout bounds how long a shell waits for the names of upstreams.
const completionTimeout = 2 * time.Second

// adminAccess is how to reach the admin address of a running relay.
type adminAccess struct {
	address string
	timeout time.Duration
}

func (a *adminAccess) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.address, "admin", "127.0.0.1:15014", "admin `address` of the relay, host:port")
	cmd.Flags().DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for answers")
}

// with calls f with a client, under the timeout, which cmd.Context then carries.
func (a *adminAccess) with(cmd *cobra.Command, f func(admin.Client) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	cmd.SetContext(ctx)
	return hinted(f(admin.Client{Address: a.address}))
}

// hinted adds what to do to the error of a relay that does not answer.
func hinted(err error) error {
	var unreachable *admin.UnreachableError
	if errors.As(err, &unreachable) {
		return fmt.Errorf("%w: check that a relay runs, and that this is its admin.address, or use --admin", err)
	}
	return err
}

// socketAccess is how to reach the Unix socket of a running relay.
type socketAccess struct {
	admin  adminAccess
	socket string
}

func (a *socketAccess) flags(cmd *cobra.Command) {
	a.admin.flags(cmd)
	cmd.Flags().StringVar(&a.socket, "socket", "", "`path` of the relay's Unix socket (default: the one that the relay names at its admin address)")
}

// with calls f with a client of the socket, under the timeout, which cmd.Context then carries.
// It returns a refusal of the relay in the relay's words.
func (a *socketAccess) with(cmd *cobra.Command, f func(admin.Client) error) error {
	return a.admin.with(cmd, func(c admin.Client) error {
		c.Socket = a.socket
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
		err := f(c)
		var refused *admin.StatusError
		if !errors.As(err, &refused) {
			return err
		}
		var lines []error // one a mistake; an indented line belongs to the line before
		for line := range strings.Lines(refused.Text) {
			text := cliview.Clean(strings.TrimRight(line, " \n"))
			if n := len(lines); n > 0 && strings.HasPrefix(text, " ") {
				lines[n-1] = fmt.Errorf("%w\n%s", lines[n-1], text)
				continue
			}
			lines = append(lines, errors.New(strings.TrimSpace(text)))
		}
		if len(lines) == 0 {
			return err
		}
		return errors.Join(lines...)
	})
}

// completeUpstreams completes the name of an upstream of the relay at the admin address.
func (a *socketAccess) completeUpstreams(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completionTimeout)
	defer cancel()
	// Without an answer there is nothing to complete.
	all, _ := admin.Client{Address: a.admin.address, Socket: a.socket}.Upstreams(ctx) //nolint:errcheck // see above
	for _, u := range all {
		names = append(names, u.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// wanted returns a check of the arguments: one for each name. The last optional ones may be
// left out.
func wanted(optional int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		usage := cmd.Parent().CommandPath() + " " + cmd.Use
		if len(args) < len(names)-optional {
			return fmt.Errorf("missing %s: %s", strings.Join(names[len(args):], " and "), usage)
		}
		if len(args) > len(names) {
			return fmt.Errorf("unexpected argument %q: %s", args[len(names)], usage)
		}
		return nil
	}
}

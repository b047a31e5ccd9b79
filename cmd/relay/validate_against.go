package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/file"
)

// checkAgainst has the flags of a check of resources against a running relay.
type checkAgainst struct {
	path, address, upstream string
	timeout                 time.Duration
}

func (a *checkAgainst) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&a.path, "file", "f", "", "file or directory of resources to check, `PATH`; needs --against")
	f.StringVar(&a.address, "against", "", "admin `address` of the running relay, host:port")
	f.StringVar(&a.upstream, "upstream", "", "`upstream` whose resources they would be; needed when the relay has several")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "with --against: how long to wait for the relay")
}

// run checks the resources: the exit code is 1 with findings, and 2 after an error.
func (a *checkAgainst) run(cmd *cobra.Command, out *output) error {
	found, err := a.check(cmd, out)
	if err == nil && found > 0 {
		return &exitError{code: 1}
	}
	return failed(cmd, err)
}

// check prints the findings.
func (a *checkAgainst) check(cmd *cobra.Command, out *output) (found int, err error) {
	if a.path == "" || a.address == "" || cmd.Flags().Changed("config") {
		return 0, errors.New("a check of resources needs -f PATH and --against ADMIN, and no -c")
	}
	resources, problems, err := file.Read(a.path, "files", true)
	for _, p := range problems {
		err = errors.Join(err, fmt.Errorf("%s: %s", p.Resource, p.Reason))
	}
	var text bytes.Buffer
	as := map[mirror.Key]*kube.Object{}
	for _, r := range resources {
		o, failed := kube.New(r, "", "")
		if failed != nil {
			return 0, failed
		}
		one, failed := o.YAML()
		err = errors.Join(err, failed)
		as[r.Key()] = o
		fmt.Fprintf(&text, "---\n%s", one)
	}
	switch {
	case err != nil:
		return 0, err
	case len(resources) == 0:
		return 0, fmt.Errorf("%s has no resources of the kinds that a relay serves", a.path)
	case len(resources) > admin.MaxChecked || text.Len() > admin.MaxCheckedBytes:
		return 0, fmt.Errorf("%s has %d resources, %d bytes: check at most %d, of %d bytes, at a time", a.path, len(resources), text.Len(), admin.MaxChecked, admin.MaxCheckedBytes)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	checked, err := admin.Client{Address: a.address}.Check(ctx, a.upstream, text.Bytes())
	if _, silent := errors.AsType[*admin.UnreachableError](err); silent {
		return 0, fmt.Errorf("%w: check that a relay runs, and that --against is its admin.address, over loopback", err)
	}
	return len(checked.Findings), out.print(cmd, hinted(err), checked, cliview.Checked(checked, as))
}

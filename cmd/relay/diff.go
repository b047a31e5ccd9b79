package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/cmd/relay/internal/lister"
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/file"
)

// diffOptions are the flags of "relay diff".
type diffOptions struct {
	kinds, namespace string
	timeout          time.Duration
	diffs, bare      bool
	output           output
	rows             rowLimit
	serverFlags
}

func newDiff() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the resources of two servers or files",
		Long: `Compare the resources of A and B. Each is a server of MCP-over-xDS (a relay or an istiod, given as
xds://HOST:PORT or HOST:PORT), or a file or directory of YAML. Resources are equal when their labels,
annotations and specs are. Versions, creation times and provenance are not compared.

Use it before and after a migration or an upgrade, and to compare replicas. The TLS flags apply to
both servers. The exit code is 0 when all resources are equal, and 1 when they differ.`,
		Example: `  relay diff 127.0.0.1:15010 127.0.0.1:15110
  relay diff xds://127.0.0.1:15010 ./configs --kinds se,vs -n shop --diff`,
		Args: wanted(0, "A", "B"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.complete(cmd)
			return diff(cmd, args[0], args[1], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kinds, "kinds", "all", "compare these `kinds`, such as se,vs")
	f.StringVarP(&o.namespace, "namespace", "n", "", "compare this `namespace` only")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for a server's complete answer")
	f.BoolVar(&o.diffs, "diff", false, "show the difference of each resource")
	f.BoolVar(&o.bare, "ignore-annotations", false, "leave annotations out of the comparison")
	o.flags(cmd)
	o.rows.flag(cmd)
	o.output.flag(cmd, "table", "json")
	return cmd
}

func diff(cmd *cobra.Command, a, b string, o diffOptions) error {
	sel, err := selection.Parse([]string{o.kinds}, o.namespace)
	if err != nil {
		return err
	}
	if o.timeout <= 0 {
		return fmt.Errorf("--timeout is %v: want more than 0", o.timeout)
	}
	changes, err := o.compare(cmd.Context(), [2]string{a, b}, sel)
	if err != nil {
		return err
	}
	shown := changes
	shown.Changes = cut(&o.rows, changes.Changes)
	err = o.output.rows(cmd, &o.rows, nil, changes, cliview.Diff(shown, a, b, o.rows.diffs(o.diffs)))
	if err == nil && len(changes.Changes) > 0 {
		return &exitError{code: 1}
	}
	return err
}

// compare returns the changes that turn the first side into the second.
func (o diffOptions) compare(ctx context.Context, names [2]string, sel *selection.Selection) (none view.Changes, err error) {
	sides, errs := [2]map[mirror.Key]*mirror.Resource{}, [2]error{}
	var both sync.WaitGroup
	for i, name := range names {
		both.Go(func() {
			sides[i], errs[i] = o.selected(ctx, name, sel)
		})
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return none, err
	}
	var objects [2][]kube.Object
	for i, name := range names {
		if objects[i], err = o.objects(sides[i], sides[1-i]); err != nil {
			return none, fmt.Errorf("%s: %w", name, err)
		}
	}
	return cliview.CompareContent(objects[0], objects[1], o.bare)
}

// selected returns the resources of a server or path that match a selection.
func (o diffOptions) selected(ctx context.Context, name string, sel *selection.Selection) (map[mirror.Key]*mirror.Resource, error) {
	all, err := o.resources(ctx, name, sel)
	if err != nil {
		return nil, err
	}
	out := make(map[mirror.Key]*mirror.Resource, len(all))
	for _, g := range sel.Find(all).Groups {
		for _, r := range g.Resources {
			out[r.Key()] = r
		}
	}
	return out, nil
}

// objects returns the resources that may differ from those of the other side. A resource that the other side
// lacks has its spec only if the output shows it.
func (o diffOptions) objects(all, others map[mirror.Key]*mirror.Resource) (out []kube.Object, err error) {
	whole := o.diffs || o.output.format != "table"
	for key, r := range all {
		other := others[key]
		var object *kube.Object
		switch {
		case other == nil && !whole:
			object = kube.Head(r, "", r.SourceVersion())
		case other != nil && o.same(r, other):
			continue
		default:
			if object, err = kube.New(r, "", r.SourceVersion()); err != nil {
				return nil, err
			}
		}
		out = append(out, *object)
	}
	return out, nil
}

// same reports whether two resources of a key are equal byte by byte. Others may be equal, too, with another
// encoding.
func (o diffOptions) same(a, b *mirror.Resource) bool {
	if !bytes.Equal(a.BodyValue(), b.BodyValue()) {
		return false
	}
	was, is := a.Metadata(), b.Metadata()
	for _, md := range []mirror.Metadata{was, is} {
		delete(md.Annotations, mirror.ProvenanceAnnotation)
	}
	return maps.Equal(was.Labels, is.Labels) && (o.bare || maps.Equal(was.Annotations, is.Annotations))
}

func (o diffOptions) resources(ctx context.Context, name string, sel *selection.Selection) ([]*mirror.Resource, error) {
	server, isServer := strings.CutPrefix(name, "xds://")
	if _, err := os.Stat(name); err == nil && !isServer {
		all, refused, err := file.Read(name, "files", false)
		if err == nil && len(refused) > 0 {
			err = fmt.Errorf("%s: %s", refused[0].Resource, refused[0].Reason)
		}
		return all, err
	} else if !isServer && (!strings.Contains(name, ":") || !errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("%q is neither a file nor HOST:PORT", name)
	}
	flags := o.serverFlags
	flags.access.Server = server
	cfg, err := flags.config(sel.Kinds(), o.timeout)
	if err != nil {
		return nil, err
	}
	all, problems, err := lister.List(ctx, cfg)
	return all, errors.Join(append(problems, err)...)
}

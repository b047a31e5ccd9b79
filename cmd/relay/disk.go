package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
)

// onDisk is the state of a relay that is down.
type onDisk struct{ dir, upstream string }

// read returns the selected upstreams of the state. Of a damaged state it returns the intact ones, and an error.
func (d onDisk) read() (all []state.Contents, err error) {
	path := local.Path(d.dir)
	file, err := local.ReadFile(path)
	switch {
	case errors.Is(err, state.ErrInUse):
		return nil, fmt.Errorf("%w: ask the relay: leave out --state", err)
	case err != nil:
		return nil, fmt.Errorf("%w: want the state.dir of a relay", err)
	case file.Damage != "":
		err = fmt.Errorf("%s: %s: only the intact parts were read", path, file.Damage)
	}
	for _, s := range file.Sources {
		if d.upstream == "" || s.Name == d.upstream {
			all = append(all, s)
		}
	}
	if len(all) == 0 && d.upstream != "" {
		err = errors.Join(fmt.Errorf("%s has no upstream %q: \"relay get --state %s\" lists them", path, d.upstream, d.dir), err)
	}
	return all, err
}

// resources returns the resources of the selected upstreams, after their import and rewrite rules, by kind and name.
func (d onDisk) resources() (all []*mirror.Resource, problems []error) {
	sources, err := d.read()
	for _, s := range sources {
		for _, r := range s.Records {
			all = append(all, r.Resource)
		}
	}
	slices.SortStableFunc(all, func(a, b *mirror.Resource) int { return mirror.CompareKeys(a.Key(), b.Key()) })
	if err != nil {
		problems = append(problems, err)
	}
	return all, problems
}

// list prints the upstreams of the state.
func (d onDisk) list(cmd *cobra.Command, o *output) error {
	if o.format != "table" {
		return fmt.Errorf("missing KIND: with -o %s name a kind, or all; without KIND, \"relay get --state %s\" lists the upstreams", o.format, d.dir)
	}
	sources, err := d.read()
	if len(sources) > 0 {
		fmt.Fprint(cmd.OutOrStdout(), cliview.State(sources, time.Now()))
	}
	return err
}

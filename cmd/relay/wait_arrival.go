package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/cliview"
)

// arrivalConditions are the conditions of a resource.
var arrivalConditions = []string{admin.Distributed, admin.Deleted, admin.Applied}

// arrival has the flags of a wait for a resource.
type arrival struct {
	namespace   string
	allReplicas bool
}

func (a *arrival) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.namespace, "namespace", "n", "default", "`namespace` of the resource")
	cmd.Flags().BoolVar(&a.allReplicas, "all-replicas", false, "wait for the other replicas, too")
}

// unused returns an error for a flag that needs a resource.
func (a *arrival) unused(cmd *cobra.Command) error {
	for _, name := range []string{"namespace", "all-replicas"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s needs a resource: relay wait KIND NAME --for %s", name, admin.Distributed)
		}
	}
	return nil
}

// condition returns the condition of the resource that args name.
func (a *arrival) condition(cmd *cobra.Command, args []string, wanted string) (condition, error) {
	if !slices.Contains(arrivalConditions, wanted) {
		return nil, fmt.Errorf("--for %q: want %s for a resource", wanted, strings.Join(arrivalConditions, ", "))
	}
	kind, namespace, name, err := resourceOf(cmd, args, a.namespace)
	if err != nil {
		return nil, err
	}
	q := url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}}
	if wanted == admin.Applied {
		q.Set("applied", "true")
	}
	if a.allReplicas {
		q.Set("all", "true")
	}
	return func(ctx context.Context, c admin.Client) error {
		arrived, err := c.Arrival(ctx, q)
		var refused *admin.StatusError
		switch {
		case errors.As(err, &refused) && refused.Code == http.StatusBadRequest:
			return &neverError{refusal(err)}
		case err != nil:
			return err
		}
		if why := arrived.Unmet(wanted); why != "" {
			return fmt.Errorf("%s: %s", cliview.Clean(arrived.String()), cliview.Clean(why))
		}
		return nil
	}, nil
}

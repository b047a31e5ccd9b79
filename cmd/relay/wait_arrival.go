package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

// condition returns the condition of the resource that args name.
func (a *arrival) condition(cmd *cobra.Command, args []string, wanted string) (condition, error) {
	if !slices.Contains(arrivalConditions, wanted) {
		return nil, fmt.Errorf("--for %q: want %s for a resource", wanted, strings.Join(arrivalConditions, ", "))
	}
	kind, namespace, name, err := resourceOf(cmd, args, a.namespace)
	if err != nil {
		return nil, err
	}
	q := url.Values{
		"kind": {kind}, "namespace": {namespace}, "name": {name},
		"applied": {strconv.FormatBool(wanted == admin.Applied)}, "all": {strconv.FormatBool(a.allReplicas)},
	}
	return func(ctx context.Context, c admin.Client) error {
		arrived, err := c.Arrival(ctx, q)
		if refused := (*admin.StatusError)(nil); errors.As(err, &refused) && refused.Code == http.StatusBadRequest {
			return &neverError{refusal(err)}
		}
		if why := arrived.Unmet(wanted); err == nil && why != "" {
			err = fmt.Errorf("%s: %s", cliview.Clean(arrived.String()), cliview.Clean(why))
		}
		return err
	}, nil
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/admin"
	"meshrelay/cmd/relay/internal/cliview"
	"meshrelay/downstream"
	"meshrelay/relay"
)

func newAuth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Explain which rule and view a client gets",
		Long: `Explain which rule of authorization and which view a client gets: any client by its identities
(can-i), or the caller itself (whoami).`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCanI(), newWhoami())
	return cmd
}

func newCanI() *cobra.Command {
	var file string
	var q admin.AccessQuestion
	var a access
	var out output
	cmd := &cobra.Command{
		Use:   "can-i [--identity ID]... [--listener ADDRESS]",
		Short: "Show what a client with some identities would get",
		Long: `Show whether a client would be let in, by which rule of authorization, and what it would see: by
a config file (-c), or by the config of the running relay. The command exits with 1 if the client
would be refused.

An identity is written as in the config: spiffe://TRUST/ns/NAMESPACE/sa/ACCOUNT, dns:NAME,
jwt:ISSUER/SUBJECT or group:ISSUER/GROUP. Without --identity, the client proves nothing.

Without authorization in the config, the views choose their clients. The answer then ignores what
match says of node IDs, clusters and labels.`,
		Example: `  relay auth can-i --identity spiffe://east.example/ns/shop/sa/web
  relay auth can-i -c new.yaml --listener 127.0.0.1:15010
  relay auth can-i --identity jwt:ci/deploy --identity group:ci/ops -o json`,
	}
	explain := func(cmd *cobra.Command, answer admin.AccessAnswer, err error) error {
		err = out.print(cmd, err, answer, cliview.Access(answer))
		if err == nil && !answer.Allowed {
			return &exitError{code: 1}
		}
		return err
	}
	a.overSocket(cmd, func(cmd *cobra.Command, c admin.Client, _ []string) error {
		answer, err := c.CanI(cmd.Context(), q)
		return explain(cmd, answer, err)
	})
	running := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" {
			return running(cmd, args)
		}
		cfg, err := loadConfig(file)
		if err != nil {
			return err
		}
		answer, err := relay.CanI(cfg, q)
		return explain(cmd, answer, err)
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "ask this config `file`, not the running relay")
	f.StringArrayVar(&q.Identities, "identity", nil, "`identity` that the client proves; can be repeated")
	f.StringVar(&q.Listener, "listener", "", "`address` of the listener, as in downstream.listeners (default: the only one)")
	f.StringVar(&q.Namespace, "namespace", "", "`namespace` that the node of the client claims")
	f.StringVar(&q.ServiceAccount, "service-account", "", "service `account` that the node of the client claims")
	out.flag(cmd, "text", "json", "yaml")
	return cmd
}

func newWhoami() *cobra.Command {
	var o serverFlags
	var out output
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "whoami [--server ADDRESS]",
		Short: "Show how a relay identifies the caller",
		Long: `Connect to a relay as a client does, with the given certificate or token, and show what the relay
takes as proven, and which rule of authorization and view the caller gets. If the relay refuses the
caller, the command prints why, and exits with 1.`,
		Example: `  relay auth whoami
  relay auth whoami --server relay.example:15012 --ca-file ca.pem --cert-file cert.pem --key-file key.pem
  relay auth whoami --server relay.example:15012 --ca-file ca.pem --token-file token -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.complete(cmd)
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			who, err := whoami(ctx, o, timeout)
			return out.print(cmd, err, who, cliview.Whoami(who))
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	// Unlike an istiod, a relay demands no namespace.
	o.nodeNamespace = ""
	f.Lookup("node-namespace").DefValue, f.Lookup("node-namespace").Usage = "", "`namespace` to claim in the node ID (default: none)"
	f.StringVar(&o.access.Server, "server", cmp.Or(os.Getenv("RELAY_SERVER"), "127.0.0.1:15010"), "`address` of the relay, host:port; $RELAY_SERVER sets another default")
	f.DurationVar(&timeout, "timeout", 15*time.Second, "how long to wait for the answer")
	out.flag(cmd, "text", "json", "yaml")
	return cmd
}

// whoami asks a relay who the caller is.
func whoami(ctx context.Context, o serverFlags, timeout time.Duration) (who downstream.Whoami, err error) {
	cfg, err := o.config(nil, timeout)
	if err != nil {
		return who, err
	}
	conn, err := grpc.NewClient("passthrough:///"+cfg.Server, append(cfg.DialOptions, grpc.WithTransportCredentials(cfg.Credentials))...)
	if err != nil {
		return who, fmt.Errorf("server %s: %w", cfg.Server, err)
	}
	defer conn.Close()
	var resp *discoveryv3.DiscoveryResponse
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(false))
	if err == nil {
		_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: cfg.Node, TypeUrl: downstream.WhoamiType}) // Recv has the error
		resp, err = stream.Recv()
	}
	switch st := status.Convert(err); {
	case err == nil && len(resp.GetResources()) == 1 && resp.GetResources()[0].GetTypeUrl() == downstream.WhoamiType:
		if err = json.Unmarshal(resp.Resources[0].Value, &who); err != nil {
			err = fmt.Errorf("server %s: the answer does not decode: %w", cfg.Server, err)
		}
		return who, err
	case err == nil, errors.Is(ctx.Err(), context.DeadlineExceeded):
		return who, fmt.Errorf("server %s does not tell callers who they are: it is no relay, or an older one", cfg.Server)
	case st.Code() == codes.PermissionDenied || st.Code() == codes.Unauthenticated:
		return who, fmt.Errorf("server %s refuses the caller: %s", cfg.Server, strings.TrimSpace(st.Message()))
	default:
		return who, fmt.Errorf("server %s: %s", cfg.Server, st.Message())
	}
}

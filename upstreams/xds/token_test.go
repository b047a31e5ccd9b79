package xds

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/internal/testing/testca"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// TestATokenThatIsDeniedIsTold_C19: the upstream goes on with the one before, and the status has the problem.
func TestATokenThatIsDeniedIsTold_C19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{t: t, disk: disk{records: map[mirror.Key]state.Record{}}}
		dir, lis := t.TempDir(), bufconn.Listen(1<<20)
		files, token := testca.New(t).Issue(t, dir, "istiod.example", time.Now().Add(time.Hour)), filepath.Join(dir, "token")
		creds, err := credentials.NewServerTLSFromFile(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		p.lis.Store(lis)
		p.server = fakexds.Start(t, &fakexds.Server{Listener: lis, Options: []grpc.ServerOption{
			grpc.Creds(creds),
			grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if md, _ := metadata.FromIncomingContext(ss.Context()); slices.Contains(md.Get("authorization"), "Bearer poor") {
					return status.Error(codes.PermissionDenied, "it is poor")
				}
				return next(srv, ss)
			}),
		}})
		p.server.Set(entryURL, entry("shop/a"))
		write := func(to string) {
			if err := os.WriteFile(token, []byte(to), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		change := func(to string) upstreams.Status {
			write(to)
			p.server.End(status.Error(codes.Unavailable, "rotate"))
			return p.after(10 * time.Second)
		}
		write("rich")
		t.Cleanup(p.halt)
		p.begin(func(u *config.Upstream) {
			x := u.Source.(*Config)
			x.Plaintext, x.TLS, x.TokenFile = false, &TLS{CAFile: files.Roots, ServerName: "istiod.example"}, token
		})
		p.after(time.Second)
		if st := change("poor"); st.State != upstreams.StateSynced || !strings.Contains(st.Kept, "it is poor; mend "+token) {
			t.Errorf("with less rights: %s, %q, %q", st.State, st.Kept, st.LastError)
		}
		if st := change("richer"); st.State != upstreams.StateSynced || st.Kept != "" {
			t.Errorf("with rights: %s, %q", st.State, st.Kept)
		}
	})
}

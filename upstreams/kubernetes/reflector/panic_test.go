package reflector

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/panics"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/object"
)

// brittle is a Sink that panics in one of its methods.
type brittle struct{ in string }

func (b brittle) at(method string) {
	if b.in == method {
		panic("injected in " + method)
	}
}

func (b brittle) Prepare(*object.Object)   {}
func (b brittle) Replace([]*object.Object) { b.at("Replace") }
func (b brittle) Put(*object.Object)       { b.at("Put") }
func (b brittle) Delete(*object.Object)    { b.at("Delete") }
func (b brittle) Resumed()                 { b.at("Resumed") }
func (b brittle) Lost(error)               { b.at("Lost") }
func (b brittle) Failed(error)             { b.at("Failed") }
func (b brittle) MayResume() bool          { b.at("MayResume"); return true }

// TestAPanicOfASinkIsThatOfRun, also where client-go has a goroutine of its own that would end the process.
func TestAPanicOfASinkIsThatOfRun(t *testing.T) {
	for _, in := range []string{"Replace", "Put", "Delete", "Resumed", "Lost", "Failed", "MayResume"} {
		t.Run(in, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const of = "networking.istio.io/serviceentries"
				s := fakekube.New()
				server := s.StartInMemory(t)
				current := connect(t, server)
				failing := in == "Failed"
				r := New(Config{
					Name: "ServiceEntry", Path: "/apis/networking.istio.io/v1/serviceentries", AcceptList: apiserver.AcceptJSON, AcceptWatch: apiserver.AcceptJSON,
					Pace: Pace{Retry: time.Millisecond, RetryMax: time.Millisecond, Request: time.Millisecond, Forgive: time.Hour}, Log: slog.New(slog.DiscardHandler),
					Connect: func(ctx context.Context) (*apiserver.Conn, error) {
						if failing {
							return nil, io.ErrUnexpectedEOF
						}
						return current(ctx)
					},
					Begin: func() *object.Reading { return object.NewBudget(0).Begin(false) },
				}, brittle{in})
				ended := make(chan any, 1)
				go func() {
					defer func() { ended <- recover() }()
					r.Run(t.Context())
				}()
				i := 0
				var got any
				await.Until(t, "it panics", func() bool {
					select {
					case got = <-ended:
						return true
					default:
					}
					s.Put(of, fakekube.Object("shop", "a", `{"hosts":["a.x"]}`))
					if s.Remove(of, "shop/a"); i%8 == 7 && in != "Replace" {
						server.CloseClientConnections()
					}
					i++
					return false
				})
				var p *panics.Panic
				if err, _ := got.(error); !errors.As(err, &p) || p.Value != "injected in "+in || !strings.Contains(p.Stack, "brittle") {
					t.Errorf("Run ends with %v", got)
				}
			})
		})
	}
}

// Command watch reads all objects of some kinds from a Kubernetes API server, and what changes after
// that. It scans the frames, and keeps and serves nothing: it is there to tell what reading costs.
// It listens when it has read everything.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"meshrelay/bench/internal/watchlist"
)

func main() {
	listen := flag.String("listen", "", "address to listen on, once everything was read")
	urls := flag.String("url", "", "URLs of the objects, with commas")
	certificate := flag.String("certificate", "", "file with the certificate of the server")
	token := flag.String("token", "", "token for the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client, err := watchlist.Client(*certificate)
	if err != nil {
		log.Fatal(err)
	}
	var reading sync.WaitGroup
	var left atomic.Int32
	all := strings.Split(*urls, ",")
	left.Store(int32(len(all)))
	for _, url := range all {
		reading.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				frames := 0
				err := watchlist.Read(ctx, client, url, *token, func([]byte) { frames++ }, func() {
					if !first || left.Add(-1) > 0 {
						return
					}
					if _, err := net.Listen("tcp", *listen); err != nil { // nobody is answered
						log.Print(err)
					}
				})
				log.Printf("%s: %d frames, then: %v", url, frames, err)
				if frames == 0 {
					break
				}
			}
		})
	}
	reading.Wait()
}

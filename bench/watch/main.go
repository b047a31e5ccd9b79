// Command watch reads all objects of one kind from a Kubernetes API server, and what changes after
// that. It scans the frames, and keeps and serves nothing: it is there to tell what reading costs.
// It listens when it has read everything.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os/signal"
	"syscall"

	"meshrelay/bench/internal/watchlist"
)

func main() {
	listen := flag.String("listen", "", "address to listen on, once everything was read")
	url := flag.String("url", "", "URL of the objects")
	certificate := flag.String("certificate", "", "file with the certificate of the server")
	token := flag.String("token", "", "token for the server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client, err := watchlist.Client(*certificate)
	if err != nil {
		log.Fatal(err)
	}
	frames := 0
	for ctx.Err() == nil {
		err = watchlist.Read(ctx, client, *url, *token, func([]byte) { frames++ }, func() {
			if _, err := net.Listen("tcp", *listen); err != nil { // nobody is answered
				log.Print(err)
			}
		})
		log.Printf("%d frames, then: %v", frames, err)
		if frames == 0 {
			break
		}
	}
}

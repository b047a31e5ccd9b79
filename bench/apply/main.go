// Command apply writes objects from a file into a cluster, as one writes it in a day: four writers, each with
// server-side apply over client-go's dynamic client. It ends when all are written.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the credentials")
	objects := flag.String("objects", "", "file with an object in each line, of one kind")
	writers := flag.Int("writers", 4, "how many write at a time")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS = -1 // no limit
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	f, err := os.Open(*objects)
	if err != nil {
		log.Fatal(err)
	}
	all := make(chan *unstructured.Unstructured, 64)
	var writing sync.WaitGroup
	for range *writers {
		writing.Go(func() {
			for o := range all {
				kind := schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "serviceentries"}
				if _, err := client.Resource(kind).Namespace(o.GetNamespace()).Apply(context.Background(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "apply"}); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		o := &unstructured.Unstructured{}
		if err := json.Unmarshal(lines.Bytes(), &o.Object); err != nil {
			log.Fatal(err)
		}
		all <- o
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	close(all)
	writing.Wait()
}

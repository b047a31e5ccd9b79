package ingress

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"google.golang.org/protobuf/proto"
)

// TestMain makes the test binary a converter for the tests that compare it with istiod's: those
// are in a module with istiod's versions of everything.
func TestMain(m *testing.M) {
	if os.Getenv("INGRESS_CONVERTER") == "" {
		os.Exit(m.Run())
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers each request with the outputs of its objects, until the requests end.
func serve(in io.Reader, out io.Writer) error {
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r struct {
			Options Options
			Objects []json.RawMessage
		}
		if err := requests.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		s := New(r.Options)
		for _, b := range r.Objects {
			if err := tell(s, b); err != nil {
				return err
			}
		}
		for i := range inputs {
			s.Synced(i)
		}
		type output struct {
			Kind, Namespace, Name string
			Annotations           map[string]string
			Body                  []byte
		}
		all := []output{}
		for _, c := range s.Flush() {
			body, err := proto.Marshal(c.Body)
			if err != nil {
				return err
			}
			all = append(all, output{c.Key.Kind.Kind, c.Key.Namespace, c.Key.Name, c.Annotations, body})
		}
		if err := answers.Encode(all); err != nil {
			return err
		}
	}
}

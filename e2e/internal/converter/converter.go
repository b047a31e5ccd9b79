// Package converter runs the relay's conversion of Ingresses in a process of its own, because the
// relay's module and this one need different versions of the same modules.
package converter

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Mode decides which Ingresses are converted.
type Mode int

// The modes have the numbers of the relay's.
const (
	Off Mode = iota
	Default
	Strict
)

// Options are those of the conversion that tests set.
type Options struct {
	Mode                                        Mode
	Class, Selector, Service, Namespace, Domain string
	Older                                       bool
}

// Output is a Gateway or a VirtualService.
type Output struct {
	Kind, Namespace, Name string
	Annotations           map[string]string
	Gateway               *networking.Gateway        // of a Gateway
	VirtualService        *networking.VirtualService // of a VirtualService
}

// Converter is a running process.
type Converter struct {
	cmd      *exec.Cmd
	requests *json.Encoder
	answers  *json.Decoder
	stop     func() error
}

// Start builds the converter in dir, from the module in root, and runs it.
func Start(root, dir string) (*Converter, error) {
	binary := filepath.Join(dir, "converter")
	build := exec.Command("go", "test", "-c", "-o", binary, "meshrelay/upstreams/kubernetes/ingress")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the converter: %w\n%s", err, out)
	}
	c := &Converter{cmd: exec.Command(binary)}
	c.cmd.Env = append(os.Environ(), "INGRESS_CONVERTER=1")
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.requests, c.answers, c.stop = json.NewEncoder(in), json.NewDecoder(out), in.Close
	return c, c.cmd.Start()
}

// Stop ends the process.
func (c *Converter) Stop() error {
	if err := c.stop(); err != nil {
		return err
	}
	return c.cmd.Wait()
}

// Convert returns what the relay makes of objects, which encode to JSON as Kubernetes' do.
func Convert[O any](c *Converter, o Options, objects []O) ([]Output, error) {
	if err := c.requests.Encode(map[string]any{"options": o, "objects": objects}); err != nil {
		return nil, err
	}
	var answer []struct {
		Output
		Body []byte
	}
	if err := c.answers.Decode(&answer); err != nil {
		return nil, err
	}
	var all []Output
	for _, a := range answer {
		o := a.Output
		var body proto.Message
		if o.Kind == "Gateway" {
			o.Gateway = &networking.Gateway{}
			body = o.Gateway
		} else {
			o.VirtualService = &networking.VirtualService{}
			body = o.VirtualService
		}
		if err := proto.Unmarshal(a.Body, body); err != nil {
			return nil, err
		}
		if unknown := body.ProtoReflect().GetUnknown(); len(unknown) > 0 {
			return nil, fmt.Errorf("%s %s/%s has fields that istiod does not know", o.Kind, o.Namespace, o.Name)
		}
		all = append(all, o)
	}
	return all, nil
}

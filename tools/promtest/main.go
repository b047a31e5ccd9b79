// Command promtest writes the Grafana dashboard, deploy/grafana/relay.json. Its tests evaluate the rules in
// deploy/prometheus as Prometheus does, and parse the expressions of the dashboard.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// file is the path of the dashboard, from this directory.
const file = "../../deploy/grafana/relay.json"

func main() {
	text, err := marshal(dashboard())
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// marshal returns the dashboard as JSON. The same dashboard has the same bytes.
func marshal(d any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(d)
	return b.Bytes(), err
}

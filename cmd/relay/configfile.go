package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// configFile is the flag -c of a command.
type configFile string

func (f *configFile) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP((*string)(f), "config", "c", "", "config `file` (default: $RELAY_CONFIG, or the first that exists of "+strings.Join(usualFiles(), " and ")+")")
}

// usualFiles returns the config files that commands look for, in this order.
func usualFiles() []string { return []string{"relay.yaml", "/etc/relay/relay.yaml"} }

// find returns the file of the flag, or of RELAY_CONFIG, or the first of usualFiles that exists.
func (f *configFile) find() (string, error) {
	if *f != "" {
		return string(*f), nil
	}
	if file := os.Getenv("RELAY_CONFIG"); file != "" {
		return file, nil
	}
	for _, file := range usualFiles() {
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("no config file: use -c FILE or RELAY_CONFIG, or write %s; \"relay init\" writes a first one", strings.Join(usualFiles(), " or "))
}

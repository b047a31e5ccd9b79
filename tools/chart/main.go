// Command chart renders deploy/chart with Helm's library. It writes the plain manifests in
// deploy/kubernetes, and packages the chart.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/action"
)

const usage = `usage: go run . manifests
       go run . package -version VERSION [-out DIR]

manifests writes deploy/kubernetes. package writes DIR/meshrelay-VERSION.tgz, whose files have the time
SOURCE_DATE_EPOCH (default 0), and prints its path.
`

// repository is the root of the repository, from the directory of this module.
const repository = "../.."

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "manifests":
		return writeManifests(ctx, repository)
	case len(args) > 0 && args[0] == "package":
		flags := flag.NewFlagSet("package", flag.ExitOnError)
		version := flags.String("version", "", "version of the chart and tag of its image")
		out := flags.String("out", ".", "directory of the archive")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		path, err := writePackage(repository, *version, *out)
		if err == nil {
			fmt.Println(path)
		}
		return err
	}
	fmt.Fprint(os.Stderr, usage)
	return fmt.Errorf("arguments %q", args)
}

func writeManifests(ctx context.Context, root string) error {
	files, err := manifests(ctx, root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, "deploy", "kubernetes", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writePackage writes the archive of the chart. version is a semantic version, with or without the v of
// a tag.
func writePackage(root, version, out string) (path string, err error) {
	p := action.NewPackage()
	p.Version, p.AppVersion, p.Destination = strings.TrimPrefix(version, "v"), version, out
	if p.Version == "" {
		return "", fmt.Errorf("package: no version: add -version v0.2.0")
	}
	at := time.Unix(0, 0).UTC()
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		var seconds int64
		if _, err := fmt.Sscan(epoch, &seconds); err != nil {
			return "", fmt.Errorf("package: SOURCE_DATE_EPOCH %q: set it to seconds since 1970: %w", epoch, err)
		}
		at = time.Unix(seconds, 0).UTC()
	}
	p.SourceDateEpoch = &at
	return p.Run(filepath.Join(root, "deploy", "chart"), nil)
}

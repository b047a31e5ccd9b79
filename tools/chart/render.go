package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/loader"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
)

// namespace is that of the plain manifests and of the tests: the root namespace of the mesh.
const namespace = "istio-system"

// rendered is the chart with some values.
type rendered struct {
	Documents []document // in Helm's order of installation
	Notes     string
}

// document is one object, as text.
type document struct {
	Template string // such as rbac-hub.yaml
	Text     string // ends with a newline, has no ---
}

// render renders the chart of the repository as "helm template" does, in namespace. It asks no API server.
func render(ctx context.Context, root string, values map[string]any) (rendered, error) {
	return renderIn(ctx, namespace, root, values)
}

func renderIn(ctx context.Context, namespace, root string, values map[string]any) (rendered, error) {
	// Helm logs each symbolic link of the chart.
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	chart, err := loader.Load(filepath.Join(root, "deploy", "chart"))
	if err != nil {
		return rendered{}, fmt.Errorf("load deploy/chart: %w", err)
	}
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy = action.DryRunClient
	install.ReleaseName, install.Namespace = "meshrelay", namespace
	result, err := install.RunWithContext(ctx, chart, values)
	if err != nil {
		return rendered{}, fmt.Errorf("render deploy/chart: %w", err)
	}
	release, ok := result.(*releasev1.Release)
	if !ok {
		return rendered{}, fmt.Errorf("render deploy/chart: Helm's release is a %T", result)
	}
	out := rendered{Notes: release.Info.Notes}
	for text := range strings.SplitSeq("\n"+release.Manifest, "\n---\n") {
		source, text, found := strings.Cut(text, "\n")
		template, named := strings.CutPrefix(source, "# Source: meshrelay/templates/")
		if found && named && strings.TrimSpace(text) != "" {
			out.Documents = append(out.Documents, document{Template: template, Text: strings.TrimSpace(text) + "\n"})
		}
	}
	return out, nil
}

// file joins documents to a file. The header is a comment.
func file(header string, documents []document) string {
	var b strings.Builder
	b.WriteString(header)
	for i, d := range documents {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(d.Text)
	}
	return b.String()
}

const generated = "# Generated from deploy/chart by \"make manifests\".\n"

const header = generated + `#
# Apply it to the root namespace of the mesh, usually istio-system: newer istiods serve
# configuration to identities of that namespace only. Before, put your upstreams and a name
# for the relay into the ConfigMap. deploy/README.md tells what replicas agree on by
# themselves, and how to move from a Deployment.
`

// manifests renders the files of deploy/kubernetes: the chart with its defaults, and each role.
func manifests(ctx context.Context, root string) (map[string]string, error) {
	files := map[string]string{}
	for name, rbac := range map[string]string{"": "", "source": "source", "hub": "hub", "remote-reader": "remoteReader", "sink": "sink", "replicas": "replicas"} {
		values := map[string]any{}
		if rbac != "" {
			values["rbac"] = map[string]any{rbac: map[string]any{"create": true}}
		}
		r, err := render(ctx, root, values)
		if err != nil {
			return nil, err
		}
		if rbac == "" {
			files["relay.yaml"] = file(header, r.Documents)
			continue
		}
		template, only := "rbac-"+name+".yaml", []document(nil)
		for _, d := range r.Documents {
			if d.Template == template {
				only = append(only, d)
			}
		}
		files[template] = file(generated+"#\n", only)
	}
	return files, nil
}

package apiserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/zeebo/xxh3"
	"k8s.io/client-go/tools/clientcmd/api"

	"meshrelay/internal/text"
)

const (
	programTime      = time.Minute // limit for a program
	maxProgramOutput = 1 << 20     // bytes
	maxProgramWords  = 4 << 10     // bytes of the error output
	// early is the time before its end at which a credential is renewed.
	early = 30 * time.Second
)

// issued is a credential that a program has issued.
type issued struct {
	of      xxh3.Uint128 // digest of the kubeconfig with the program
	token   string
	cert    []byte // PEM, with key
	key     []byte
	expires time.Time // zero: never
}

// valid reports whether the credential is for this kubeconfig, and need not be renewed yet.
func (i *issued) valid(of xxh3.Uint128, now time.Time) bool {
	return i != nil && i.of == of && (i.expires.IsZero() || now.Before(i.expires.Add(-early)))
}

// issue runs the program of an access, and returns its credential. It returns after programTime, or when ctx
// ends. client-go would wait for a program without limit, and keep all of its output.
func issue(ctx context.Context, a access) (*issued, error) {
	p := a.program
	info, err := execInfo(a)
	if err != nil {
		return nil, err
	}
	out, err := run(ctx, p, info)
	var i *issued
	if err == nil {
		i, err = credentialOf(out, p.APIVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("program %q of the kubeconfig: %w", p.Command, err)
	}
	i.of = a.digest
	return i, nil
}

// credentialOf returns the credential in the output of a program: an ExecCredential of client.authentication.k8s.io.
func credentialOf(out []byte, version string) (*issued, error) {
	var c struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Status     struct {
			Expires     time.Time `json:"expirationTimestamp"`
			Token       string    `json:"token"`
			Certificate string    `json:"clientCertificateData"`
			Key         string    `json:"clientKeyData"`
		} `json:"status"`
	}
	if json.Unmarshal(out, &c) != nil { // an error might quote a secret
		return nil, errors.New("its output is not an ExecCredential")
	}
	switch s := c.Status; {
	case c.Kind != "ExecCredential" || c.APIVersion != version:
		return nil, fmt.Errorf("its output is a %s of %s, and the kubeconfig wants an ExecCredential of %s", text.Abbreviate(c.Kind), text.Abbreviate(c.APIVersion), version)
	case s.Token == "" && s.Certificate == "" || (s.Certificate == "") != (s.Key == ""):
		return nil, errors.New("its credential has neither a token nor a certificate with its key")
	}
	return &issued{token: c.Status.Token, cert: []byte(c.Status.Certificate), key: []byte(c.Status.Key), expires: c.Status.Expires}, nil
}

// execInfo returns the description of the cluster for a program.
func execInfo(a access) (string, error) {
	type m = map[string]any
	spec := m{"interactive": false}
	if cfg := a.config; a.program.ProvideClusterInfo {
		cluster := m{"server": cfg.Host, "certificate-authority-data": base64.StdEncoding.EncodeToString(cfg.CAData)}
		if cfg.ServerName != "" {
			cluster["tls-server-name"] = cfg.ServerName
		}
		if cfg.Proxy != nil {
			req, err := http.NewRequest(http.MethodGet, cfg.Host, nil)
			if err != nil {
				return "", err
			}
			if u, err := cfg.Proxy(req); err == nil && u != nil {
				cluster["proxy-url"] = u.String()
			}
		}
		if a.program.Config != nil {
			cluster["config"] = a.program.Config
		}
		spec["cluster"] = cluster
	}
	b, err := json.Marshal(m{"kind": "ExecCredential", "apiVersion": a.program.APIVersion, "spec": spec})
	return string(b), err
}

// run runs a program, and returns its output. When ctx ends, it kills the whole process group.
func run(ctx context.Context, p *api.ExecConfig, info string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(programTime, func() { cancel(fmt.Errorf("it has not ended within %s", programTime)) })
	defer late.Stop()
	cmd := exec.CommandContext(ctx, p.Command, p.Args...) //nolint:gosec // the config allows it by name
	cmd.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+info)
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	out := &bounded{most: maxProgramOutput, full: func() { cancel(fmt.Errorf("it has printed more than %d KiB", maxProgramOutput>>10)) }}
	words := &bounded{most: maxProgramWords}
	cmd.Stdout, cmd.Stderr = out, words
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // children may keep the output open
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return out.kept.Bytes(), nil
	}
	if said := strings.Join(strings.Fields(words.kept.String()), " "); said != "" {
		return nil, fmt.Errorf("%w: %s", err, text.Abbreviate(said))
	}
	return nil, err
}

// bounded keeps the first bytes that are written.
type bounded struct {
	kept bytes.Buffer
	most int
	full func() // called when more than most bytes are written, unless nil
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.kept.Len()
	b.kept.Write(p[:min(len(p), room)])
	if len(p) > room && b.full != nil {
		b.full()
	}
	return len(p), nil
}

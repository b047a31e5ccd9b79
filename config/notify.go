package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Formats of notifications.
const (
	NotifyJSON         = "json"
	NotifyAlertmanager = "alertmanager"
	NotifySlack        = "slack"
)

// maxNotify bounds the list of receivers.
const maxNotify = 16

// Notify is a receiver of notifications about events.
type Notify struct {
	// Name is unique. What was sent is remembered under it.
	Name string `yaml:"name"`
	// URL is not a secret; URLFile has one that is.
	URL       string     `yaml:"url"`
	URLFile   string     `yaml:"urlFile" path:"file"`
	TokenFile string     `yaml:"tokenFile" path:"file"`
	Format    string     `yaml:"format" default:"json" oneof:"json alertmanager slack"`
	On        []string   `yaml:"on,omitempty"`
	Upstreams []string   `yaml:"upstreams,omitempty"`
	Timeout   Duration   `yaml:"timeout" default:"10s" range:"100ms 1m"`
	TLS       *NotifyTLS `yaml:"tls,omitempty"`
}

// NotifyTLS secures the connection to a receiver, instead of the roots of the system.
type NotifyTLS struct {
	CAFile     string `yaml:"caFile" path:"file" pem:"roots"`
	CertFile   string `yaml:"certFile" path:"file" pem:"certificate"`
	KeyFile    string `yaml:"keyFile" path:"file" pem:"key"`
	ServerName string `yaml:"serverName"`
}

// CheckURL returns what is wrong with the URL of a receiver, without the URL, which may be a secret.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("it is not a URL as in https://receiver.example/hook")
	}
	return nil
}

// notify checks the receivers. types are the words that On takes.
func (v *validator) notify(c *Config, types []string) {
	v.errorIf(len(c.Notify) > maxNotify, "notify", "there are %d receivers: want %d at most", len(c.Notify), maxNotify)
	for i, n := range c.Notify {
		at := fmt.Sprintf("notify[%d]", i)
		v.label(at+".name", n.Name)
		if k := slices.IndexFunc(c.Notify[:i], func(o Notify) bool { return o.Name == n.Name }); k >= 0 {
			v.errorf(at+".name", "%q is the name of notify[%d] already: names must differ", n.Name, k)
		}
		v.notifyURL(at, n)
		v.errorIf(len(n.On) == 0, at+".on", "it is empty: name types of events, as in [held, expired, denied, stale, nack]")
		for k, word := range n.On {
			v.oneOf(fmt.Sprintf("%s.on[%d]", at, k), word, types...)
		}
		for k, name := range n.Upstreams {
			known := slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == name })
			v.errorIf(!known, fmt.Sprintf("%s.upstreams[%d]", at, k), "there is no upstream %q", name)
		}
		if t := n.TLS; t != nil {
			v.errorIf((t.CertFile == "") != (t.KeyFile == ""), at+".tls", "certFile and keyFile go together: set both, or neither")
		}
	}
}

func (v *validator) notifyURL(at string, n Notify) {
	switch {
	case (n.URL == "") == (n.URLFile == ""):
		v.errorf(at, "receiver %q needs either url or urlFile", n.Name)
	case n.Format == NotifySlack && n.URL != "":
		v.errorf(at+".url", "the URL of a Slack webhook is a secret: put it into a file, and name that in urlFile")
	case n.URL == "":
	default:
		v.errorOf(at+".url", CheckURL(n.URL))
		u, err := url.Parse(n.URL)
		secret := err == nil && (u.User != nil || u.RawQuery != "" || strings.Contains(n.URL, "#"))
		v.errorIf(secret, at+".url", "it has a user or parameters, which may be secrets: put it into a file, and name that in urlFile")
	}
}

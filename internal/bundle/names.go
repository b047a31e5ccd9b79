package bundle

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Names puts hashes in the place of names: those that it is told of, what looks like the name of a host,
// addresses, and what a text calls a namespace or a resource. A name has the same hash wherever it is, and
// nobody can guess it without the key. Its methods are for one goroutine.
type Names struct {
	key   []byte
	known map[string]bool // words in lower case; false: one that stays
}

// hashLength is how many characters of a hash stand for a name: 50 bits.
const hashLength = 10

// NewNames returns Names that know only words that are the same everywhere.
func NewNames(key []byte) *Names {
	n := &Names{key: key, known: map[string]bool{}}
	n.Keep(strings.Fields(`default istio-system istio-ingress istio-egress kube-system kube-public all none any true false null yes no
		local cluster svc cluster.local svc.cluster.local localhost istiod router sidecar ztunnel waypoint spiffe ns sa relay name namespace host kind type state
		admin.address admin.socket node.id node.ip node.namespace state.dir log.level downstream.listeners`)...)
	return n
}

// Keep makes words stay as they are.
func (n *Names) Keep(words ...string) {
	for _, w := range words {
		eachWord([]byte(w), func(word []byte) { n.known[strings.ToLower(string(word))] = false })
	}
}

// Add makes words names, but for those that stay, groups of APIs, numbers, and single characters.
func (n *Names) Add(names ...string) {
	for _, name := range names {
		eachWord([]byte(name), func(word []byte) {
			w := strings.ToLower(string(word))
			_, err := strconv.ParseFloat(w, 64)
			if _, has := n.known[w]; !has && len(w) > 1 && err != nil && !groups.MatchString(w) {
				n.known[w] = true
			}
		})
	}
}

// AddNode has the pod and the namespace in the ID of an Istio node be names; any other ID is one.
func (n *Names) AddNode(id string) {
	parts := strings.Split(id, "~")
	if len(parts) < 3 {
		n.Add(id)
		return
	}
	pod, namespace, _ := strings.Cut(parts[2], ".")
	n.Add(pod, namespace)
}

// AddRef has the namespace and the name at the end of "group/Kind namespace/name" be names.
func (n *Names) AddRef(ref string) {
	parts := strings.Split(ref[strings.LastIndexByte(ref, ' ')+1:], "/")
	n.Add(parts...)
}

// told are texts that tell names: of resources, namespaces and hosts.
var told = []*regexp.Regexp{
	regexp.MustCompile(`\b[A-Z][A-Za-z]+ ([a-z0-9.*_-]+/[A-Za-z0-9.*_:-]+)`),
	regexp.MustCompile(`\b(?:namespaces?|hosts?|serverName|trustDomain)(?:=|\\?":[ \t]*)\\?(\[[^\]]*\]|"?[^\s",}{\\]+)`),
	regexp.MustCompile(`\bspiffe://([^/"\s]+(?:/ns/[^/"\s]+/sa/[^/"\s,\]]+)?)`),
}

// Hide returns a text with hashes in the place of names.
func (n *Names) Hide(text []byte) []byte {
	for _, shape := range told {
		for _, m := range shape.FindAllSubmatch(text, -1) {
			n.Add(string(m[1]))
		}
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && inWord(text[end]) {
			end++
		}
		if end == i {
			out = append(out, text[i])
			i++
			continue
		}
		if isKey(text[i:end], text[end:]) {
			out = append(out, text[i:end]...)
		} else {
			out = n.hide(out, text[i:end])
		}
		i = end
	}
	return out
}

// isKey reports whether a word is the name of a field, of JSON or of a line of the log.
func isKey(word, rest []byte) bool {
	for _, c := range word {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' {
			return false
		}
	}
	return len(rest) > 0 && rest[0] == '=' || len(rest) > 1 && rest[0] == '"' && rest[1] == ':'
}

// hide appends a word, or what stands for it.
func (n *Names) hide(out, word []byte) []byte {
	core := trim(word)
	before := len(word) - len(strings.TrimLeft(string(word), edges))
	if len(core) == 0 {
		return append(out, word...)
	}
	out = append(out, word[:before]...)
	switch isName, known := n.known[strings.ToLower(string(core))]; {
	case isName:
		out = append(out, n.hash(core)...)
	case known:
		out = append(out, core...)
	case isAddress(core):
		out = append(out, n.hashAs("ip-", core)...)
	case isHost(core):
		out = append(out, n.hash(core)...)
	default:
		for i, label := range strings.Split(string(core), ".") {
			if i > 0 {
				out = append(out, '.')
			}
			if n.known[strings.ToLower(label)] {
				label = n.hash([]byte(label))
			}
			out = append(out, label...)
		}
	}
	return append(out, word[before+len(core):]...)
}

func (n *Names) hash(word []byte) string {
	if strings.Contains(string(word), ".") {
		return n.hashAs("host-", word)
	}
	return n.hashAs("name-", word)
}

func (n *Names) hashAs(kind string, word []byte) string {
	h := hmac.New(sha256.New, n.key)
	h.Write([]byte(strings.ToLower(string(word))))
	return kind + strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:hashLength]
}

// edges are characters that are in words, and not at their ends.
const edges = ".-*_"

func trim(word []byte) []byte { return []byte(strings.Trim(string(word), edges)) }

func inWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(edges, c) >= 0
}

// eachWord calls f with each word of a text.
func eachWord(text []byte, f func([]byte)) {
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return r > 127 || !inWord(byte(r)) }) { //nolint:gosec // it is below 128
		if core := trim([]byte(word)); len(core) > 0 {
			f(core)
		}
	}
}

// isAddress reports whether a word is an IP address that tells something.
func isAddress(word []byte) bool {
	ip, err := netip.ParseAddr(string(word))
	return err == nil && !ip.IsLoopback() && !ip.IsUnspecified()
}

var (
	hostShape = regexp.MustCompile(`^(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+[a-z]{2,}$`)
	version   = regexp.MustCompile(`^v?[0-9]+\.[0-9]`)
	// groups are the ends of groups of APIs and of packages, endings those of files: both look like hosts.
	groups  = regexp.MustCompile(`(?:^|\.)(?:istio\.io|k8s\.io|meshrelay\.io|golang\.org|github\.com|gopkg\.in|googleapis\.com|grpc\.io)$`)
	endings = regexp.MustCompile(`\.(?:yaml|yml|json|log|txt|go|pem|crt|key|sock|db|proto|gz|pprof|new|lock)$`)
)

// isHost reports whether a word looks like the name of a host.
func isHost(word []byte) bool {
	return hostShape.Match(word) && !version.Match(word) && !groups.Match(word) && !endings.Match(word)
}

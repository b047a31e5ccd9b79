package bundle

import (
	"bytes"
	"regexp"
	"slices"
)

// hidden replaces each text that could be a secret.
const hidden = "[hidden]"

// secrets are the shapes of texts that could be secrets, with their replacements. No file of a bundle
// should contain a secret, but errors and notes quote texts that users wrote.
//
// Matching all shapes takes a microsecond per byte, and most texts match none. A text that contains none
// of the signs of a shape, as written or in lower case, can not match it.
var secrets = []struct {
	signs []string
	shape *regexp.Regexp
	by    string
}{
	{[]string{"eyJ"}, regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){0,4}`), hidden}, // a JWT
	{[]string{"authorization", "cookie"}, regexp.MustCompile(`(?i)((?:authorization|cookie)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\{\[][^\n"'\\]*`), "$1" + hidden},
	{[]string{"bearer", "basic", "negotiate"}, regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)( |%20|\+)+[A-Za-z0-9._~+/=-]{6,}`), "$1 " + hidden},
	{[]string{"PRIVATE KEY"}, regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:[^-]|-[^-])*(-----END [A-Z0-9 ]*PRIVATE KEY-----)?`), hidden},
	{[]string{"LS0tLS1CRUdJTi"}, regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), hidden}, // PEM in base64
	// URLs keep their scheme and host. The path of a webhook is a secret.
	{[]string{"://"}, regexp.MustCompile(`(?i)\b(https?://)([^/\s"'<>@]*@)?([^/\s"'<>?#@]+)[/?#][^\s"'<>\\]+`), "$1$3/" + hidden},
	{[]string{"://"}, regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^/\s"'<>@]+@`), "$1" + hidden + "@"},
	{[]string{"-data", "_data"}, regexp.MustCompile(`(?i)((?:client[-_]?certificate|certificate[-_]?authority|key)[-_]data\\?["']?\s*[:=]\s*\\?["']?)[A-Za-z0-9+/=]+`), "$1" + hidden},
	// The value after one of these names: in escaped quotes, in quotes, or one word.
	{[]string{"passw", "passphrase", "secret", "token", "apikey", "api-key", "api_key", "accesskey", "access-key", "access_key", "privatekey", "private-key", "private_key", "clientkey", "client-key", "client_key"}, regexp.MustCompile(`(?i)((?:password|passwd|passphrase|secret|token|(?:api|access|private|client)[-_]?key)(?:[-_]?v?[0-9]+)?\\?["']?\s*[:=]\s*)(?:(\\["'])[^"'\\]*|(")(?:[^"\\\n]|\\.)*|(')[^'\n]*|[^\s"'&,;}\\{\[]+)`), "$1$2$3$4" + hidden},
	{[]string{"password", "secret", "token"}, regexp.MustCompile(`(?i)(--?[a-z-]*(?:password|secret|token)[ ]+)[^\s"'-][^\s"']*`), "$1" + hidden},
	{[]string{"AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "xox"}, regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bxox[abprs]-[A-Za-z0-9-]{8,}`), hidden},
}

// Redact replaces what could be a secret by hidden: tokens, keys, passwords, and the path of every http
// URL.
func Redact(text []byte) []byte {
	// (?i) matches ſ as s, and the Kelvin sign as k. ToLower maps only the Kelvin sign.
	folded := bytes.ReplaceAll(bytes.ToLower(text), []byte("ſ"), []byte("s"))
	for _, s := range secrets {
		if !slices.ContainsFunc(s.signs, func(sign string) bool {
			return bytes.Contains(text, []byte(sign)) || bytes.Contains(folded, []byte(sign))
		}) {
			continue
		}
		text = s.shape.ReplaceAll(text, []byte(s.by))
	}
	return text
}

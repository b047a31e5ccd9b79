package bundle

import "regexp"

// hidden is in the place of what could be a secret.
const hidden = "[hidden]"

// secrets are texts that could be secrets, with what stands in their place. No file of a bundle
// should have one; this is for errors and remarks that quote what somebody wrote.
var secrets = []struct {
	shape *regexp.Regexp
	by    string
}{
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){0,4}`), hidden}, // a JWT
	{regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)( |%20|\+)+[A-Za-z0-9._~+/=-]{6,}`), "$1 " + hidden},
	{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(-----END [A-Z ]*PRIVATE KEY-----)?`), hidden},
	// URLs keep their scheme and host. The path of a webhook is as good as a password.
	{regexp.MustCompile(`(?i)\b(https?://)([^/\s"'<>@]*@)?([^/\s"'<>?#@]+)[/?#][^\s"'<>,;)\]}]+`), "$1$3/" + hidden},
	{regexp.MustCompile(`(?i)\b([a-z][a-z0-9+.-]*://)[^/\s"'<>@]+@`), "$1" + hidden + "@"},
	{regexp.MustCompile(`(?i)\b((?:client[-_]?key|client[-_]?certificate|certificate[-_]?authority)[-_]data"?\s*[:=]\s*"?)[A-Za-z0-9+/=]+`), "$1" + hidden},
	{regexp.MustCompile(`(?i)\b((?:[a-z0-9]*[-_.]?)?(?:password|passwd|passphrase|secret|api[-_]?key|access[-_]?key|client[-_]?secret|(?:id|access|refresh|auth|session)?[-_]?token)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'&,;}\\]+`), "$1" + hidden},
	{regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bxox[abprs]-[A-Za-z0-9-]{8,}`), hidden},
}

// Redact returns text with hidden in the place of what could be a secret: tokens, keys, passwords,
// and the path of every http URL.
func Redact(text []byte) []byte {
	for _, s := range secrets {
		text = s.shape.ReplaceAll(text, []byte(s.by))
	}
	return text
}

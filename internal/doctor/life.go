package doctor

import (
	"crypto/x509"
	"strings"
	"time"

	"meshrelay/internal/certfile"
	"meshrelay/internal/jwt"
	"meshrelay/internal/smallfile"
)

// soonLife is how long before the end of a certificate or a token there is a warning, at most.
const soonLife = 7 * 24 * time.Hour

// Life is the time in which a certificate or a token is valid. Begins is zero when it is unknown. Ends is zero
// when there is no certificate or token, or it has no end.
type Life struct{ Begins, Ends time.Time }

// Soon reports whether a life has ended, or ends so soon that its renewal is late: within seven days, and within
// the last tenth of the life. Certificates of a day, and tokens of an hour, are renewed long before that.
func (l Life) Soon(now time.Time) bool {
	left := l.Ends.Sub(now)
	return !l.Ends.IsZero() && left < soonLife && (l.Begins.IsZero() || left < l.Ends.Sub(l.Begins)/soonShare)
}

// CertificateLife returns the life of the first certificate in a file. Without a file, the life is empty.
func CertificateLife(file string) (Life, error) {
	if file == "" {
		return Life{}, nil
	}
	leaf, err := certfile.Leaf(file)
	if err != nil {
		return Life{}, err
	}
	return LifeOf(leaf), nil
}

// LifeOf returns the life of a certificate.
func LifeOf(c *x509.Certificate) Life { return Life{c.NotBefore, c.NotAfter} }

// TokenFileLife returns the life of the token in a file. Without a file, the life is empty.
func TokenFileLife(file string) (Life, error) {
	if file == "" {
		return Life{}, nil
	}
	text, err := smallfile.Read(file, maxToken)
	if err != nil {
		return Life{}, err
	}
	return TokenLife(string(text)), nil
}

// TokenLife returns the life of a token. It is empty for a token that is not a JWT. The signature is not verified.
func TokenLife(token string) (l Life) {
	c, ok := jwt.Look(strings.TrimSpace(token))
	if !ok || jwt.Time(c.Expires).IsZero() {
		return l
	}
	return Life{Ends: jwt.Time(c.Expires), Begins: jwt.Time(max(c.NotBefore, c.IssuedAt))}
}

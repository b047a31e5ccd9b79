// Package jwt reads what a JSON Web Token claims. It verifies nothing, and must not know who trusts a token.
package jwt

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"time"
)

// Claims are the claims of a token. Times are in seconds since 1970, 0 if they are missing.
type Claims struct {
	Subject    string    `json:"sub"`
	Audiences  Audiences `json:"aud"`
	Expires    float64   `json:"exp"`
	IssuedAt   float64   `json:"iat"`
	NotBefore  float64   `json:"nbf"`
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

// Audiences are whom a token is for: in JSON, one text or a list of texts.
type Audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *Audiences) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		*a = make(Audiences, 1)
		return json.Unmarshal(text, &(*a)[0])
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// Look returns the claims of a token without verifying its signature. The caller bounds the token. ok is false if it is
// not a JWT.
func Look(token string) (c Claims, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, false
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	return c, err == nil && json.Unmarshal(body, &c) == nil
}

// Time returns the time of a claim. It is zero for a claim that is missing or out of range.
func Time(seconds float64) time.Time {
	if seconds <= 0 || seconds > math.MaxUint32<<4 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

// ServiceAccount returns the Kubernetes service account of the token. ok is false if it has none.
func (c Claims) ServiceAccount() (namespace, name string, ok bool) {
	if rest, is := strings.CutPrefix(c.Subject, "system:serviceaccount:"); is {
		namespace, name, _ = strings.Cut(rest, ":")
	} else {
		namespace, name = c.Kubernetes.Namespace, c.Kubernetes.ServiceAccount.Name
	}
	return namespace, name, namespace != "" && name != ""
}

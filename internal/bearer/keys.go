package bearer

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"

	jose "github.com/go-jose/go-jose/v4"

	"meshrelay/internal/smallfile"
)

const (
	maxKeySet = 1 << 20 // bytes of a JWKS
	maxKeys   = 128     // in a JWKS
	// maxTries bounds the keys that are tried for one token.
	maxTries             = 8
	leastRSA, largestRSA = 2048, 8192 // bits of a key
)

var (
	algorithms = []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
	errUnknownKey = errors.New("the issuer has no key with the kid of the token")
)

// Keys are the public keys of an issuer. They are immutable.
type Keys struct {
	all  []jose.JSONWebKey
	byID map[string][]jose.JSONWebKey
}

// ReadKeys reads a file with a JWKS. A file without a key that can verify a token is an error.
func ReadKeys(path string) (*Keys, error) { return readKeys(path, 1) }

// readKeys reads a file with a JWKS that has some keys at least.
func readKeys(path string, least int) (*Keys, error) {
	b, err := smallfile.Read(path, maxKeySet)
	if err != nil {
		return nil, err
	}
	keys, err := parseKeys(b)
	if err == nil && len(keys.all) < least {
		err = errors.New("it has no RSA, EC or Ed25519 key for signatures")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a JWKS that is accepted: %w; write the public keys of the issuer, as its jwks_uri shows them", path, err)
	}
	return keys, nil
}

// parseKeys returns the keys of a JWKS of at most maxKeySet bytes. It leaves out keys of kinds that it does not
// know, and keys for encryption.
func parseKeys(b []byte) (*Keys, error) {
	var set struct {
		Keys *[maxKeys + 1]json.RawMessage `json:"keys"` // an array stops at a key too many
	}
	switch err := json.Unmarshal(b, &set); {
	case errors.As(err, new(*json.UnmarshalTypeError)) || err == nil && set.Keys == nil:
		return nil, errors.New("it has no list keys")
	case err != nil:
		return nil, err
	case set.Keys[maxKeys] != nil:
		return nil, fmt.Errorf("it has more than %d keys", maxKeys)
	}
	keys := &Keys{byID: map[string][]jose.JSONWebKey{}}
	for n, raw := range set.Keys {
		if raw == nil {
			break
		}
		var key jose.JSONWebKey
		if err := json.Unmarshal(raw, &key); errors.Is(err, jose.ErrUnsupportedKeyType) || err == nil && key.Use == "enc" {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("keys[%d] does not decode: %w", n, err)
		}
		if !key.IsPublic() {
			return nil, fmt.Errorf("keys[%d] is a secret or private key: it must not be in a JWKS that others read", n)
		}
		if of, ok := key.Key.(*rsa.PublicKey); ok && (of.N.BitLen() < leastRSA || of.N.BitLen() > largestRSA) {
			return nil, fmt.Errorf("keys[%d] is an RSA key of %d bits: want %d to %d", n, of.N.BitLen(), leastRSA, largestRSA)
		}
		keys.all = append(keys.all, key)
		keys.byID[key.KeyID] = append(keys.byID[key.KeyID], key)
	}
	return keys, nil
}

// VerifySignature implements oidc.KeySet.
func (k *Keys) VerifySignature(_ context.Context, jwt string) ([]byte, error) {
	jws, err := jose.ParseSignedCompact(jwt, algorithms)
	if err != nil {
		return nil, err
	}
	header := jws.Signatures[0].Protected // the compact form has one signature
	keys := k.byID[header.KeyID]
	if header.KeyID == "" {
		keys = k.all
	}
	switch {
	case len(keys) == 0:
		return nil, errUnknownKey
	case len(keys) > maxTries:
		return nil, fmt.Errorf("the issuer has more than %d keys for it: a kid must tell which", maxTries)
	}
	for _, key := range keys {
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(key.Key); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("the key of the issuer has not signed it")
}

// Package accounttest signs tokens of Kubernetes service accounts, as an API server does for the pods
// that are to join by them.
package accounttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
)

const (
	// Issuer is what most clusters call themselves.
	Issuer = "https://kubernetes.default.svc.cluster.local"
	// Subject is the account of the pods.
	Subject = "system:serviceaccount:tendril:tendril"
	// Account is its name for people.
	Account = "tendril/tendril"
)

// APIServer signs with a key of its own.
type APIServer struct {
	// KeyID is the name of the key.
	KeyID string
	alg   jose.SignatureAlgorithm
	key   crypto.Signer
}

// New makes an API server that signs by RS256 or ES256.
func New(t testing.TB, alg jose.SignatureAlgorithm) *APIServer {
	t.Helper()
	var key crypto.Signer
	var err error
	if alg == jose.RS256 {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &APIServer{uuid.NewString(), alg, key}
}

// Public is its public key.
func (s *APIServer) Public() crypto.PublicKey { return s.key.Public() }

// Keys is what /openid/v1/jwks of it answers.
func (s *APIServer) Keys(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: s.key.Public(), KeyID: s.KeyID, Algorithm: string(s.alg), Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Claims are those of a token that a pod gets for ten minutes, as Kubernetes 1.32 writes them.
func Claims(audience, pod string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{
		"aud": []string{audience}, "iss": Issuer, "sub": Subject,
		"iat": now, "nbf": now, "exp": now + 600, "jti": uuid.NewString(),
		"kubernetes.io": map[string]any{
			"namespace": "tendril", "node": map[string]any{"name": "n1", "uid": uuid.NewString()},
			"pod": map[string]any{"name": pod, "uid": uuid.NewString()}, "serviceaccount": map[string]any{"name": "tendril", "uid": uuid.NewString()},
		},
	}
}

// Sign makes a token of claims.
func (s *APIServer) Sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: s.alg, Key: jose.JSONWebKey{Key: s.key, KeyID: s.KeyID}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

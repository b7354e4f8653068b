package rpcgateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
)

const (
	joinFunction = "request_join"
	// accountToken is the field of its request that has a service account's token.
	accountToken = "service_account_token"
	// accountLimit bounds a token; those of Kubernetes have some 1,200 bytes.
	accountLimit = 8 << 10
	// accountSkew is how far the clocks of an issuer and of this server may be apart.
	accountSkew = time.Minute
	// accountLife is how long a token may still be valid, as join_by_account() has it.
	accountLife = 24 * time.Hour
)

// accountAlgorithms are those by which an API server signs: with a key that it alone has. Not
// "none", and none whose key for verifying signs as well.
var accountAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// podClaims are what Kubernetes says of the pod that a token is bound to.
type podClaims struct {
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
		Pod struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// verifiedAccount is what tendril.service_account() answers.
type verifiedAccount struct {
	Trust   uuid.UUID `json:"trust"`
	Subject string    `json:"subject"`
	Pod     string    `json:"pod"`
	PodUID  string    `json:"pod_uid"`
	// Digest is of what the signature covers: the same token has one, whatever was done to its
	// signature, of which some algorithms have several.
	Digest  string `json:"digest"`
	Expires int64  `json:"expires"`
}

// trustedKeys is a row of trusted_keys().
type trustedKeys struct {
	Trust uuid.UUID          `json:"trust_id"`
	Keys  jose.JSONWebKeySet `json:"keys"`
}

// withAccount returns a request to join with what its service account's token says, if it has one,
// and takes the token out of what the database gets. Tokens count in signed requests only.
func (g *Gateway) withAccount(r *http.Request, share *share, fields map[string]json.RawMessage) (*http.Request, *refusal) {
	var request map[string]json.RawMessage
	if json.Unmarshal(fields["p_request"], &request) != nil || request[accountToken] == nil || signedBy(r.Context()) == nil {
		return r, nil
	}
	var token string
	if json.Unmarshal(request[accountToken], &token) != nil || len(token) > accountLimit {
		return r, accountRefused(errors.New("it is no token"))
	}
	account, no := g.verifyAccount(r.Context(), share, token, time.Now())
	if no != nil {
		return r, no
	}
	delete(request, accountToken)
	about, err := json.Marshal(account)
	rest, errRest := json.Marshal(request)
	if err = errors.Join(err, errRest); err != nil {
		return r, accountRefused(err)
	}
	fields["p_request"] = rest
	told := slices.Clone(signedBy(r.Context()))
	told[accountOf] = about
	return r.WithContext(context.WithValue(r.Context(), signedRequest{}, told)), nil
}

// verifyAccount verifies a token with the keys that an admin has uploaded for its issuer, audience
// and subject. Those are read before they are verified: they only say which keys to ask for.
func (g *Gateway) verifyAccount(ctx context.Context, share *share, token string, now time.Time) (verifiedAccount, *refusal) {
	parsed, err := jwt.ParseSigned(token, accountAlgorithms)
	if err != nil {
		return verifiedAccount{}, accountRefused(err)
	}
	var named jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&named); err != nil {
		return verifiedAccount{}, accountRefused(err)
	}
	if len(named.Audience) != 1 {
		return verifiedAccount{}, accountRefused(errors.New("it has not exactly one audience"))
	}
	trusted, no := g.trustedKeys(ctx, share, named.Issuer, named.Audience[0], named.Subject)
	switch {
	case no != nil:
		return verifiedAccount{}, no
	case trusted == nil:
		return verifiedAccount{}, sqlRefusal("PT401", "no admin has let agents join by this service account token", "account_not_trusted",
			fmt.Sprintf("its issuer is %s, its audience %s and its subject %s; an admin allows that: trellis clusters trust add CLUSTER", shortened(named.Issuer), shortened(named.Audience[0]), shortened(named.Subject)))
	}
	var claims jwt.Claims
	var pod podClaims
	if err := parsed.Claims(trusted.Keys, &claims, &pod); err != nil {
		return verifiedAccount{}, accountRefused(err)
	}
	err = claims.ValidateWithLeeway(jwt.Expected{Issuer: named.Issuer, Subject: named.Subject, AnyAudience: named.Audience, Time: now}, accountSkew)
	k := pod.Kubernetes
	switch {
	case err != nil:
	case claims.Expiry == nil:
		err = errors.New("it never expires")
	case claims.Expiry.Time().After(now.Add(accountLife)):
		err = errors.New("it is valid for more than a day")
	case k.Pod.UID == "" || k.Pod.Name == "":
		err = errors.New("it is not bound to a pod")
	case claims.Subject != "system:serviceaccount:"+k.Namespace+":"+k.ServiceAccount.Name:
		err = errors.New("its subject is another account than the one of its pod")
	}
	if err != nil {
		return verifiedAccount{}, accountRefused(err)
	}
	covered := sha256.Sum256([]byte(token[:strings.LastIndexByte(token, '.')]))
	return verifiedAccount{trusted.Trust, claims.Subject, k.Pod.Name, k.Pod.UID, hex.EncodeToString(covered[:]), claims.Expiry.Time().Unix()}, nil
}

func accountRefused(why error) *refusal {
	return sqlRefusal("PT401", "the service account token is refused: "+strings.TrimPrefix(why.Error(), "go-jose/go-jose"), "account_refused",
		"have the pod get one that is bound to it and for the audience that trellis clusters trust list shows; if the cluster has new keys, trust them: trellis clusters trust add")
}

// trustedKeys asks the database for the keys of an issuer; nil where no admin trusts it.
func (g *Gateway) trustedKeys(ctx context.Context, share *share, issuer, audience, subject string) (*trustedKeys, *refusal) {
	const statement = `SELECT json_build_object('trust_id', t.trust_id, 'keys', t.keys) FROM (SELECT 1) one LEFT JOIN public.trusted_keys($1::text, $2::text, $3::text) t ON true`
	if !share.calls.TryAcquire(1) {
		return nil, sqlRefusal("PT503", "too many calls at once from one address", "busy", "try again")
	}
	defer share.calls.Release(1)
	answer, no := g.caller.answerOf(ctx, share.conns, &function{}, statement, [][]byte{[]byte(issuer), []byte(audience), []byte(subject)}, false)
	if no != nil {
		return nil, no
	}
	var found struct {
		Trust *uuid.UUID      `json:"trust_id"`
		Keys  json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(answer.json, &found); err != nil {
		return nil, accountRefused(err)
	}
	if found.Trust == nil {
		return nil, nil
	}
	trusted := &trustedKeys{Trust: *found.Trust}
	if err := json.Unmarshal(found.Keys, &trusted.Keys); err != nil {
		return nil, accountRefused(fmt.Errorf("the issuer's keys cannot be read: %w", err))
	}
	return trusted, nil
}

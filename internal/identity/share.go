package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/seal"
)

// ShareFor is how long a share counts.
const ShareFor = 24 * time.Hour

// maxShare is the most bytes inside of a share, and maxSealed of one as it is stored.
const (
	maxShare  = 32 << 10
	maxSealed = 64 << 10
)

// purpose tells a share from all else that is sealed to an agent's key.
const purpose = "tendril-identity-share-1"

// share is what is sealed.
type share struct {
	Purpose string `json:"purpose"`
	// Cluster is the cluster's name as the agent that shares has noted it.
	Cluster string `json:"cluster"`
	// To is the fingerprint of the key that it is for.
	To    string    `json:"to"`
	Until time.Time `json:"until"`
	// Identities are AGE-SECRET-KEY-1…, one a line, the current one first.
	Identities string `json:"identities"`
}

// Seal seals a cluster's identities to the key of another agent, until a time.
func Seal(all seal.Identities, to ed25519.PublicKey, cluster string, until time.Time) (string, error) {
	recipient, err := recipientOf(to)
	if err != nil {
		return "", fmt.Errorf("use the agent's key: %w", err)
	}
	inside, err := json.Marshal(share{Purpose: purpose, Cluster: cluster, To: agentkey.Fingerprint(to), Until: until, Identities: Text(all)})
	if err != nil {
		return "", fmt.Errorf("encode the identity: %w", err)
	}
	if len(inside) > maxShare {
		return "", fmt.Errorf("the identities have %d bytes, at most %d can be shared: remove older ones that nothing is sealed to", len(inside), maxShare)
	}
	return seal.Armoured(recipient, inside)
}

func recipientOf(public ed25519.PublicKey) (age.Recipient, error) {
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, err
	}
	return agessh.NewEd25519Recipient(key)
}

// Open opens what was sealed to an agent's key, for its cluster. Its errors quote nothing of
// what is inside. Who sealed it is not known: compare the public half with an Accepted.
func Open(sealed string, key agentkey.Key, cluster string, now time.Time) (seal.Identities, error) {
	if len(sealed) > maxSealed {
		return nil, fmt.Errorf("it has more than %d bytes", maxSealed)
	}
	own, err := agessh.NewEd25519Identity(key.Private())
	if err != nil {
		return nil, fmt.Errorf("use the agent's key: %w", err)
	}
	inside, err := seal.Open([]byte(sealed), maxShare, own)
	if err != nil {
		return nil, err
	}
	var s share
	decoder := json.NewDecoder(bytes.NewReader(inside))
	decoder.DisallowUnknownFields() // it may limit what counts
	if err := decoder.Decode(&s); err != nil || s.Purpose != purpose {
		return nil, errors.New("it is no share of an identity that this program understands")
	}
	switch {
	case s.To != key.Fingerprint():
		return nil, errors.New("it was made for another key")
	case s.Cluster != cluster:
		return nil, fmt.Errorf("it was made for the cluster %.200q, and this agent belongs to %q", s.Cluster, cluster)
	case !now.Before(s.Until):
		return nil, fmt.Errorf("it has expired, at %s: have it shared again", s.Until.UTC().Format(time.RFC3339))
	}
	all, err := seal.ParseIdentities("the share", strings.TrimSpace(s.Identities))
	if err != nil {
		return nil, errors.New("it holds no identity")
	}
	return all, nil
}

package agent

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/seal"
)

// identityShares is how an agent that has joined by key gets its cluster's identity from
// another agent. What the database says decides nothing: see package identity.
type identityShares struct {
	dir     *dataDir
	ask     func(context.Context) (sealed string, err error)
	present func(ctx context.Context, own ed25519.PublicKey, certificate string, expires time.Time) error
	cluster func() string // name of the cluster, as this agent has noted it
	// certifiers are the keys whose certificates this agent presents.
	certifiers identity.Certifiers
	log        *slog.Logger

	again time.Time // when to ask next
	told  string    // what the log says last of a share that is not taken
}

// take asks for the identity whose public half is the cluster's key, and adds it to the
// agent's file if its operator has accepted it. It asks at most once a minute.
func (s *identityShares) take(ctx context.Context, clusterKey string, now time.Time) {
	if now.Before(s.again) {
		return
	}
	s.again = now.Add(clusterKeyEvery)
	all, err := s.open(ctx, clusterKey, now)
	if err == nil && all != nil {
		if _, err = identity.Add(s.dir.path(identity.File), all); err == nil {
			err = identity.Forget(s.dir.root)
			s.log.Info("this agent has the cluster's identity now, which another agent has shared", "key", seal.Fingerprint(all.Public()))
		}
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		s.told = ""
	case s.told != err.Error():
		s.told = err.Error()
		s.log.Warn("the cluster's identity is not taken: " + s.told)
	}
}

// open returns the identities that were shared with this agent and that it may use; nil:
// nothing was shared.
func (s *identityShares) open(ctx context.Context, clusterKey string, now time.Time) (seal.Identities, error) {
	key, err := agentkey.Load(s.dir.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has a token: nobody could seal something to it
	}
	if err != nil {
		return nil, err
	}
	sealed, err := s.ask(ctx)
	if err != nil {
		return nil, err
	}
	if sealed == "" {
		return nil, s.presentCertificate(ctx, key, now)
	}
	all, err := identity.Open(sealed, key, s.cluster(), now)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("what the database has for this agent cannot be used: %w", err), s.presentCertificate(ctx, key, now))
	}
	accepted, err := identity.ReadAccepted(s.dir.root)
	switch {
	case err != nil:
		return nil, err
	case accepted.None():
		return nil, errors.New(`an identity was shared with this agent. Read its fingerprint where "tendril identity share" was run, and enter it here: tendril identity accept FINGERPRINT`)
	case !accepted.Is(all.Public()):
		return nil, errors.New("the identity in the database is not the one that was accepted here: somebody has replaced it, or another one was shared. " +
			`Compare the fingerprint with what "tendril identity show" says on the agent that shares it`)
	case !all.Holds(clusterKey):
		return nil, fmt.Errorf("the identity that was shared and accepted is not the cluster's, whose key is %s: have an admin call set_cluster_key", seal.Fingerprint(clusterKey))
	}
	return all, nil
}

// presentCertificate asks for the identity by the certificate that this agent's operator has
// accepted, if there is one. The same one again changes nothing.
func (s *identityShares) presentCertificate(ctx context.Context, key agentkey.Key, now time.Time) error {
	text, err := identity.ReadCertificate(s.dir.root)
	if err != nil || text == "" {
		return err
	}
	certificate, err := s.certifiers.Verify(text, s.cluster(), key.Public(), now)
	if err != nil {
		return fmt.Errorf("the certificate that was accepted here can no longer be used: %w", err)
	}
	return s.present(ctx, key.Public(), text, certificate.Until)
}

package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// certificates is how an agent that has its cluster's identity shares it with the agents for which
// a key that its own configuration names has signed a certificate. What the database says decides
// nothing: see package identity.
type certificates struct {
	certifiers identity.Certifiers
	queue      queue.Queue
	cluster    func() string // name of the cluster, as this agent has noted it
	log        *slog.Logger

	again time.Time         // when to ask next
	told  map[string]string // what the log says last of the certificates that wait, by their keys
}

// mostCertificates is how many certificates the agent inspects at once: the queue answers no more,
// and whatever answers in its place may.
const mostCertificates = 20

// share shares the identities with the agents whose certificates wait. It asks at most once a
// minute.
func (c *certificates) share(ctx context.Context, all seal.Identities, now time.Time) {
	if len(c.certifiers) == 0 || now.Before(c.again) {
		return
	}
	c.again = now.Add(clusterKeyEvery)
	standing, err := c.queue.Standing(ctx)
	if err != nil || len(standing.Certificates) == 0 {
		c.told = nil
		return // heartbeats say that the database is away
	}
	told := map[string]string{}
	for _, waiting := range standing.Certificates[:min(len(standing.Certificates), mostCertificates)] {
		err := CheckSharing(standing, all, c.cluster())
		if err == nil {
			err = c.answer(ctx, all, waiting, now)
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		told[waiting.Key] = err.Error()
		if c.told[waiting.Key] != err.Error() {
			c.log.Warn("the cluster's identity is not shared: the certificate of another agent is refused: "+err.Error(), "key", fmt.Sprintf("%.64s", waiting.Key))
		}
	}
	c.told = told
}

// answer shares the identities with one agent, whose certificate it verifies.
func (c *certificates) answer(ctx context.Context, all seal.Identities, waiting queue.WaitingCertificate, now time.Time) error {
	to, err := hex.DecodeString(waiting.Key)
	if err != nil || len(to) != ed25519.PublicKeySize {
		return errors.New("the database names no Ed25519 key")
	}
	certificate, err := c.certifiers.Verify(waiting.Certificate, c.cluster(), to, now)
	if err != nil {
		return err
	}
	if !certificate.Allows(all.Public()) {
		return fmt.Errorf("it is for the identity %.200q, and this agent's current one is %q", certificate.Identity, all.Public())
	}
	until := now.Add(identity.ShareFor)
	sealed, err := identity.Seal(all, to, c.cluster(), until)
	if err != nil {
		return err
	}
	if err := c.queue.ShareIdentity(ctx, to, sealed, until); err != nil {
		return err
	}
	c.log.Info("the cluster's identity is shared with another agent, by its certificate", "fingerprint", agentkey.Words(to), "sha256", agentkey.Fingerprint(to),
		"certifier", seal.Fingerprint(certificate.Certifier), "until", certificate.Until.UTC().Format(time.RFC3339))
	return nil
}

// CheckSharing fails unless an agent with these identities may share them: it belongs to the cluster
// that it has noted, and has that cluster's identity.
func CheckSharing(standing queue.Standing, all seal.Identities, cluster string) error {
	if standing.ClusterName != cluster {
		return fmt.Errorf("the database says that this agent belongs to the cluster %s, and the agent has noted %s", standing.ClusterName, cluster)
	}
	if standing.ClusterKey != "" && !all.Holds(standing.ClusterKey) {
		return fmt.Errorf("this agent does not have the cluster's identity, %s: run this on an agent that has it", seal.Fingerprint(standing.ClusterKey))
	}
	return nil
}

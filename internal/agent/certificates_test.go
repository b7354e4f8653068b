package agent

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/trust"
)

// holder is an agent that has the identity of a cluster, and shares it by certificates.
type holder struct {
	*certificates
	log *bytes.Buffer
}

// holds has an agent with the cluster's identity name certifying keys.
func (j *joined) holds(t *testing.T, certifiers ...ed25519.PublicKey) holder {
	t.Helper()
	q, err := rpcqueue.New(rpcqueue.Options{URL: j.gateway.URL, APIKey: j.gateway.APIKey, CAFile: j.gateway.CAFile, Token: j.world.Token, Agent: queuetest.NewAgent("a")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	log := &bytes.Buffer{}
	return holder{&certificates{certifiers: certifiers, queue: q, cluster: func() string { return "prod" }, log: slog.New(slog.NewTextHandler(log, nil))}, log}
}

// certificate is one for this agent that is valid for an hour, but for what change does.
func (j *joined) certificate(t *testing.T, by ed25519.PrivateKey, change func(*identity.Certificate)) string {
	t.Helper()
	c := identity.Certificate{Cluster: "prod", Key: j.key.Words(), Identity: j.cluster.Public(), From: j.now, Until: j.now.Add(time.Hour)}
	if change != nil {
		change(&c)
	}
	text, err := c.Sign(by)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func certifier(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// acceptsCertificate is what "tendril identity accept --certificate" does.
func (j *joined) acceptsCertificate(t *testing.T, text string) {
	t.Helper()
	c, err := j.shares.certifiers.VerifyForAny(text, j.key.Public(), j.now)
	if err == nil {
		err = identity.AcceptCertificate(j.dir.root, text, c)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// An agent that has joined gets the identity of its cluster without a person at the agent that
// shares it: both name the key that has signed its certificate. Something in its row that it can't
// use does not stop that.
func TestIdentityComesByCertificate(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	public, private := certifier(t)
	a := j.holds(t, public)
	j.shares.certifiers = identity.Certifiers{public}
	text := j.certificate(t, private, nil)
	j.acceptsCertificate(t, text)
	j.puts(t, j.key, j.sealed(t, seal.Identities{newIdentity(t)}, j.key, "dev", j.now.Add(time.Hour)))
	j.beats(t, 2*time.Minute)
	if waits := j.world.Text(t, "SELECT sealed FROM tendril.identity_shares"); waits != text {
		t.Fatalf("the agent's row is %q, want its certificate. Its log:\n%s", waits, j.log)
	}
	if got := j.world.Text(t, "SELECT count(*)::text FROM public.audit_events WHERE action = 'present_identity_certificate'"); got != "1" {
		t.Errorf("the audit has %s certificates, want the one that was presented twice", got)
	}
	a.share(t.Context(), j.cluster, j.now)
	j.beats(t, 2*time.Minute)
	if j.held().Public() != j.cluster.Public() || !j.held().Holds(j.cluster[1:].Public()) {
		t.Fatalf("it has %d identities, want the cluster's. Its log:\n%s\nthat of the agent that shares:\n%s", len(j.held()), j.log, a.log)
	}
	if said := a.log.String(); !strings.Contains(said, "shared with another agent, by its certificate") || !strings.Contains(said, j.key.Words()) || strings.Contains(said, "AGE-SECRET-KEY") {
		t.Errorf("the log of the agent that shares is\n%swant with whom, and no identity", said)
	}
	if left, err := identity.ReadCertificate(j.dir.root); left != "" || err != nil {
		t.Errorf("ReadCertificate() = %q, %v, want it used up", left, err)
	}
	a.share(t.Context(), j.cluster, j.now.Add(time.Hour))
	if n := strings.Count(a.log.String(), "\n"); n != 1 {
		t.Errorf("the log of the agent that shares is\n%swant one share", a.log)
	}
}

// Whatever a hostile database shows as a certificate, an agent shares with nobody but the agent for
// which a key that its own configuration names has signed.
func TestCertificatesThatMoveNothing(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	public, private := certifier(t)
	_, stranger := certifier(t)
	other, err := agentkey.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	j.world.Exec(t, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, 'c')", j.world.Cluster, []byte(other.Public()))
	good := j.certificate(t, private, nil)
	parts := strings.Split(good, ".")
	mallory := seal.Identities{newIdentity(t)}
	asMallory, err := trust.SignerText(stranger.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	lifted, err := trust.Sign("tendril-identity-certificate-1", identity.Certificate{Cluster: "prod", Key: other.Fingerprint(), Identity: j.cluster.Public(), From: j.now, Until: j.now.Add(time.Hour), Certifier: asMallory}, private)
	if err != nil {
		t.Fatal(err)
	}
	otherPurpose, err := trust.Sign("tendril-certificate-1", identity.Certificate{Cluster: "prod", Key: j.key.Words(), Identity: j.cluster.Public(), From: j.now, Until: j.now.Add(time.Hour)}, private)
	if err != nil {
		t.Fatal(err)
	}
	shared := func() string {
		return j.world.Text(t, "SELECT count(*)::text FROM tendril.identity_shares WHERE sealed LIKE '-----BEGIN AGE%'")
	}
	for _, c := range []struct {
		name, text string
		to         agentkey.Key
		all        seal.Identities
		certifiers []ed25519.PublicKey
		says       string
	}{
		{"no certifier is named", good, j.key, j.cluster, nil, ""},
		{"a stranger has signed", j.certificate(t, stranger, nil), j.key, j.cluster, []ed25519.PublicKey{public}, "has signed it"},
		{"a stranger has signed, as the certifier", strings.Join([]string{parts[0], parts[1], strings.Split(j.certificate(t, stranger, nil), ".")[2]}, "."), j.key, j.cluster, []ed25519.PublicKey{public}, "has signed it"},
		{"presented by another agent", good, other, j.cluster, []ed25519.PublicKey{public}, "for another agent"},
		{"of the certifier for another agent, in another's name", lifted, j.key, j.cluster, []ed25519.PublicKey{public}, "for another agent"},
		{"for another cluster", j.certificate(t, private, func(c *identity.Certificate) { c.Cluster = "dev" }), j.key, j.cluster, []ed25519.PublicKey{public}, "the cluster"},
		{"for another identity", j.certificate(t, private, func(c *identity.Certificate) { c.Identity = mallory.Public() }), j.key, j.cluster, []ed25519.PublicKey{public}, "for the identity"},
		{"expired", j.certificate(t, private, func(c *identity.Certificate) { c.From, c.Until = j.now.Add(-time.Hour), j.now.Add(-time.Second) }), j.key, j.cluster, []ed25519.PublicKey{public}, "expired"},
		{"not yet valid", j.certificate(t, private, func(c *identity.Certificate) { c.From = j.now.Add(10 * time.Minute) }), j.key, j.cluster, []ed25519.PublicKey{public}, "on: compare"},
		{"changed", parts[0] + "." + strings.Split(lifted, ".")[1] + "." + parts[2], other, j.cluster, []ed25519.PublicKey{public}, "has signed it"},
		{"of another purpose", strings.Replace(otherPurpose, "tendril-certificate-1", parts[0], 1), j.key, j.cluster, []ed25519.PublicKey{public}, "has signed it"},
		{"truncated", good[:len(good)-10], j.key, j.cluster, []ed25519.PublicKey{public}, ""},
		{"without a signature", parts[0] + "." + parts[1] + ".", j.key, j.cluster, []ed25519.PublicKey{public}, "has signed it"},
		{"the agent has not the identity", good, j.key, mallory, []ed25519.PublicKey{public}, "does not have the cluster's identity"},
	} {
		a := j.holds(t, c.certifiers...)
		j.world.Exec(t, "DELETE FROM tendril.identity_shares")
		j.puts(t, c.to, c.text)
		a.share(t.Context(), c.all, j.now)
		if n := shared(); n != "0" {
			t.Errorf("%s: %s shares, want none", c.name, n)
		}
		if said := a.log.String(); !strings.Contains(said, c.says) || strings.Contains(said, "AGE-SECRET-KEY") || (len(c.certifiers) > 0) != strings.Contains(said, "is not shared") {
			t.Errorf("%s: the log is\n%swant one that says %q", c.name, said, c.says)
		}
		a.share(t.Context(), c.all, j.now.Add(2*time.Minute))
		if n := strings.Count(a.log.String(), "\n"); n > 1 {
			t.Errorf("%s: the log is\n%swant each refusal once", c.name, a.log)
		}
	}
	// The certificate that they are made of is a good one: the key in the row decides nothing.
	a := j.holds(t, public)
	j.world.Exec(t, "DELETE FROM tendril.identity_shares")
	j.puts(t, j.key, good)
	a.share(t.Context(), j.cluster, j.now)
	if n := shared(); n != "1" {
		t.Errorf("the good one: %s shares, want one. The log is\n%s", n, a.log)
	}
	for _, waiting := range []queue.WaitingCertificate{{Key: "", Certificate: good}, {Key: "00", Certificate: good}, {Key: strings.Repeat("z", 64), Certificate: good}} {
		if err := a.answer(t.Context(), j.cluster, waiting, j.now); err == nil {
			t.Errorf("answer(%q) = nil, want an error", waiting.Key)
		}
	}
}

// An agent presents no certificate of a key that its configuration does not name, or does no longer,
// and takes no other identity than the one that the certificate names.
func TestCertificateAllowsOneIdentity(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	public, private := certifier(t)
	j.shares.certifiers = identity.Certifiers{public}
	j.acceptsCertificate(t, j.certificate(t, private, nil))
	own, mallory := j.held().Public(), seal.Identities{newIdentity(t)}
	for _, clusterKey := range []string{j.cluster.Public(), mallory.Public()} {
		j.world.Exec(t, "UPDATE public.clusters SET age_public_key = $2 WHERE id = $1", j.world.Cluster, clusterKey)
		j.puts(t, j.key, j.sealed(t, mallory, j.key, "prod", j.now.Add(time.Hour)))
		j.beats(t, 3*time.Minute)
		if j.held().Public() != own || !strings.Contains(j.log.String(), "not the one that was accepted") {
			t.Errorf("with another identity in its row the agent has %s, and says\n%swant its own", j.held().Public(), j.log)
		}
	}
	j.world.Exec(t, "UPDATE public.clusters SET age_public_key = $2 WHERE id = $1", j.world.Cluster, j.cluster.Public())
	j.world.Exec(t, "DELETE FROM tendril.identity_shares")
	for name, certifiers := range map[string]identity.Certifiers{"removed": nil, "expired": {public}} {
		j.shares.certifiers = certifiers
		if name == "expired" {
			j.now = j.now.Add(2 * time.Hour)
		}
		j.log.Reset()
		j.shares.told = ""
		j.shares.again = time.Time{}
		j.beats(t, 2*time.Minute)
		if n := j.world.Text(t, "SELECT count(*)::text FROM tendril.identity_shares"); n != "0" || !strings.Contains(j.log.String(), "can no longer be used") {
			t.Errorf("%s: %s certificates are presented, and the log is\n%swant none", name, n, j.log)
		}
	}
}

package sql_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// A runner's credential ends with that of its agent, and with its claim.
func TestRunnersCredentialEnds(t *testing.T) {
	t.Parallel()
	hash := sha256.Sum256([]byte("the runner's token"))
	shown := hex.EncodeToString(hash[:])
	digest := sha256.Sum256(hash[:])
	const renew = "SELECT public.renew_claim($1, $2)"
	for name, ends := range map[string]string{
		"the agent's token is revoked": "UPDATE tendril.cluster_tokens SET revoked_at = now()",
		"the claim ended long ago":     "UPDATE tendril.claims SET state = 'ended', ended_at = now() - interval '2 days'",
		"the claim is gone":            "DELETE FROM tendril.runners",
	} {
		w := newContract(t)
		a := w.newAgent(t, "one")
		w.deploy(t, w.operator, snapshot("w"))
		claim, _ := a.mustClaim(t)
		mustExec(t, w.conn, "SELECT public.delegate_claim($1, $2, $3)", w.tokenHash, claim, hex.EncodeToString(digest[:]))
		mustExec(t, w.conn, renew, shown, claim)
		mustExec(t, w.conn, ends)
		_, err := w.conn.Exec(t.Context(), renew, shown, claim)
		_ = wantRefusal(t, err, "PT401", "token_invalid")
		if t.Failed() {
			t.Logf("where %s", name)
		}
	}
}

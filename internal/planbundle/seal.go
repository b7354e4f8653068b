package planbundle

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tendril-run/tendril/internal/seal"
)

// purpose is what the MAC's key is derived for.
const purpose = "plan"

// meta is what goes with the sealed bytes.
type meta struct {
	MAC []byte `json:"mac"`
}

// Seal makes of a written bundle what goes through the database: an age message
// to the current one of the identities, and beside it the proof that one of
// their holders made it.
func Seal(identities seal.Identities, content []byte) (sealed []byte, proof json.RawMessage, err error) {
	recipient, err := seal.ParseRecipient(identities.Public())
	if err != nil {
		return nil, nil, err
	}
	if sealed, err = seal.To(recipient, content); err != nil {
		return nil, nil, err
	}
	if len(sealed) > MaxSealed {
		return nil, nil, fmt.Errorf("seal the plan: %d bytes, at most %d are allowed", len(sealed), MaxSealed)
	}
	proof, err = json.Marshal(meta{identities.Sign(purpose, content)})
	return sealed, proof, err
}

// Open returns the written bundle of that digest. It fails with CodePlanInvalid
// unless it is that, and made by a holder of the identities.
func Open(identities seal.Identities, sealed []byte, proof json.RawMessage, digest string) ([]byte, error) {
	if len(sealed) > MaxSealed {
		return nil, Invalid(fmt.Sprintf("what is stored has %d bytes, at most %d are allowed", len(sealed), MaxSealed), nil)
	}
	content, err := identities.Open(sealed, MaxContent)
	if errors.Is(err, seal.ErrNotForUs) {
		return nil, Invalid("it is sealed to another key than this agent's; give all agents of the cluster one identity (identity_file)", err)
	}
	if err != nil {
		return nil, Invalid("it cannot be opened: "+err.Error(), err)
	}
	var m meta
	if err := json.Unmarshal(proof, &m); err != nil || !identities.Verify(purpose, content, m.MAC) {
		return nil, Invalid("no agent of this cluster has made what is stored in its place", err)
	}
	if Digest(content) != digest {
		return nil, Invalid("what is stored is another plan than the one that was approved", nil)
	}
	return content, nil
}

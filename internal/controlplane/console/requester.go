package console

import (
	"encoding/json"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

// requester is the key to which a run was asked to seal sensitive outputs.
type requester struct {
	Recipient, Fingerprint string
	Name                   string // whose it is, as a certificate says; "" without one
}

// requesterOf reads a snapshot's requester_key: a key, or a certificate of one. Nil
// is for none.
func requesterOf(asked string) *requester {
	if asked == "" {
		return nil
	}
	to := &requester{Recipient: asked}
	if c, err := trust.ParseCertificate(asked); err == nil {
		to.Recipient, to.Name = c.Recipient, c.Name
	}
	to.Fingerprint = seal.Fingerprint(to.Recipient)
	return to
}

// requesterIn is the same for a stored snapshot.
func requesterIn(snapshot json.RawMessage) *requester {
	s, err := provision.ParseSnapshot(snapshot)
	if err != nil {
		return nil // as an earlier release took it; the page says less
	}
	return requesterOf(s.RequesterKey)
}

// hasSealed reports whether a run has outputs that are sealed to a key that is known.
func hasSealed(p *store.Provision) bool {
	for _, o := range p.Outputs {
		if o.Sealed != "" {
			return requesterIn(p.Snapshot) != nil
		}
	}
	return false
}

// Requester is the key to which the run's sensitive outputs are sealed.
func (p *runPage) Requester() *requester { return requesterIn(p.Snapshot) }

// HasSealed reports whether it has any.
func (p *runPage) HasSealed() bool { return hasSealed(&p.Provision) }

// Requester is the key to which the shown outputs are sealed.
func (d workspaceData) Requester() *requester { return requesterIn(d.Outputs.Snapshot) }

// HasSealed reports whether there are any.
func (d workspaceData) HasSealed() bool { return hasSealed(d.Outputs) }

// Requester is the key to which sensitive outputs are to be sealed.
func (s *reviewStep) Requester() *requester { return requesterOf(s.Asked.RequesterKey) }

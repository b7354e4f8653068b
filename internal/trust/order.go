package trust

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

const orderKind = "tendril-order-1"

// MaxOrder is the longest that an order may wait until it is carried out.
const MaxOrder = 8 * 24 * time.Hour

// Order is what a person signs to have a whole managed state replaced. It names all
// that it is about, and the version that it replaces, so that it can be carried
// out once.
type Order struct {
	Workspace uuid.UUID `json:"workspace"`
	Name      string    `json:"name"`
	// Command is push or rollback.
	Command string `json:"command"`
	// Over is the newest version of the state, which the order replaces; 0: there is
	// none.
	Over int64 `json:"over"`
	// Version is what a rollback returns to.
	Version int64 `json:"version,omitempty"`
	// Digest is SHA-256 of the state that a push brings, in hexadecimal.
	Digest string    `json:"digest,omitempty"`
	Until  time.Time `json:"until"`
	// Signer is the key that signs it, and Certificate what vouches for that, if the
	// agents name no key of people.
	Signer      string `json:"signer"`
	Certificate string `json:"certificate,omitempty"`
}

// Order signs an order; Signer is set here.
func (p Person) Order(o Order) (string, error) {
	o.Signer = p.SignerKey()
	return sign(orderKind, o, p.signer)
}

// ParseOrder reads an order and checks its signature. It does not say whether the
// signer's orders count: ask a Keyring.
func ParseOrder(text string) (Order, error) {
	var o Order
	check, err := open(orderKind, text, &o)
	if err != nil {
		return o, err
	}
	signer, err := parseSigner(o.Signer)
	if err != nil {
		return o, fmt.Errorf("signer: %w", err)
	}
	if !check(signer) {
		return o, errors.New("was not signed by the key that it names")
	}
	return o, nil
}

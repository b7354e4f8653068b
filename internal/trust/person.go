package trust

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/tendril-run/tendril/internal/seal"
)

// Person is somebody's secret: an age identity, to which others seal, and a key
// derived from it, with which the person signs.
type Person struct {
	identity seal.Identities
	signer   ed25519.PrivateKey
}

// NewPerson makes a secret.
func NewPerson() (Person, error) {
	identity, err := seal.Generate()
	if err != nil {
		return Person{}, err
	}
	return person(identity)
}

// ParsePerson reads what Secret wrote. Path is for its errors, which quote nothing.
func ParsePerson(path, text string) (Person, error) {
	identity, err := seal.ParseIdentities(path, text)
	if err != nil {
		return Person{}, err
	}
	return person(identity)
}

func person(identity seal.Identities) (Person, error) {
	seed, err := hkdf.Key(sha256.New, []byte(identity[0].String()), nil, "tendril person signs", ed25519.SeedSize)
	if err != nil {
		return Person{}, fmt.Errorf("derive the signing key: %w", err)
	}
	return Person{identity: identity, signer: ed25519.NewKeyFromSeed(seed)}, nil
}

// Secret is the file in which a person keeps it, as age-keygen makes them.
func (p Person) Secret() string {
	return fmt.Sprintf("# public key: %s\n# signs as: %s\n%s\n", p.Recipient(), p.SignerKey(), p.identity[0])
}

// Recipient is the public key age1… to which others seal.
func (p Person) Recipient() string { return p.identity.Public() }

// SignerKey is the public key ssh-ed25519 … of the person's signatures.
func (p Person) SignerKey() string {
	text, err := signerText(p.signer.Public().(ed25519.PublicKey))
	if err != nil { // only for a key of another kind
		panic(err)
	}
	return text
}

// Fingerprint is that of the person's signing key: what an agent names to trust
// the certificates that the person issues.
func (p Person) Fingerprint() string { return seal.Fingerprint(p.SignerKey()) }

// Open opens what was sealed to the person, at most limit bytes.
func (p Person) Open(message []byte, limit int64) ([]byte, error) {
	return p.identity.Open(message, limit)
}

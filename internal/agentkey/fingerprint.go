package agentkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"unicode"

	"github.com/tyler-smith/go-bip39/wordlists"
)

const (
	words       = 8
	bitsOfAWord = 11
	// wordBits is how much of a fingerprint its words say, whole bytes.
	wordBits = words * bitsOfAWord
)

// Fingerprint is SHA-256 of a public key, as 64 hexadecimal digits.
func Fingerprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:])
}

// Words are the first 88 bits of a public key's fingerprint, as eight words.
func Words(public ed25519.PublicKey) string {
	sum := sha256.Sum256(public)
	left := new(big.Int).SetBytes(sum[:wordBits/8])
	said, word, list := make([]string, words), new(big.Int), big.NewInt(1<<bitsOfAWord)
	for n := range said {
		left.DivMod(left, list, word)
		said[words-1-n] = wordlists.English[word.Int64()]
	}
	return strings.Join(said, " ")
}

// ForPeople is a public key's fingerprint for people to compare: its words, and all of it.
func ForPeople(public ed25519.PublicKey) string {
	return fmt.Sprintf("%s (%s)", Words(public), Fingerprint(public))
}

// Expected is a fingerprint that a person has typed.
type Expected struct{ prefix []byte }

// Matches reports whether it is the fingerprint of the key.
func (e Expected) Matches(public ed25519.PublicKey) bool {
	sum := sha256.Sum256(public)
	return len(e.prefix) > 0 && len(public) == ed25519.PublicKeySize && bytes.HasPrefix(sum[:], e.prefix)
}

// ParseFingerprint reads a fingerprint that a person types: all 64 hexadecimal digits, or
// the eight words, in any case, with spaces, colons or hyphens between them.
func ParseFingerprint(text string) (Expected, error) {
	parts := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return unicode.IsSpace(r) || r == ':' || r == '-' })
	if sum, err := hex.DecodeString(strings.Join(parts, "")); err == nil && len(sum) == sha256.Size {
		return Expected{sum}, nil
	}
	if len(parts) != words {
		return Expected{}, fmt.Errorf("a fingerprint has %d hexadecimal digits or %d words; this has %d words", 2*sha256.Size, words, len(parts))
	}
	said := new(big.Int)
	for _, part := range parts {
		n, is := slices.BinarySearch(wordlists.English, part)
		if !is {
			return Expected{}, fmt.Errorf("%q is not one of the words of fingerprints", part)
		}
		said.Lsh(said, bitsOfAWord).Or(said, big.NewInt(int64(n)))
	}
	return Expected{said.FillBytes(make([]byte, wordBits/8))}, nil
}

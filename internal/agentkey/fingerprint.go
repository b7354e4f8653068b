package agentkey

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
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
func Words(public ed25519.PublicKey) string { return WordsOf(sha256.Sum256(public)) }

// WordsOf are the first 88 bits of a digest, as eight words.
func WordsOf(sum [sha256.Size]byte) string {
	left := new(big.Int).SetBytes(sum[:wordBits/8])
	said, word, list := make([]string, words), new(big.Int), big.NewInt(1<<bitsOfAWord)
	for n := range said {
		left.DivMod(left, list, word)
		said[words-1-n] = wordlists.English[word.Int64()]
	}
	return strings.Join(said, " ")
}

// WordsOfText are the words of a fingerprint in hexadecimal, all 64 digits of it.
func WordsOfText(fingerprint string) (string, error) {
	sum, err := sumOf(fingerprint)
	if err != nil {
		return "", err
	}
	return WordsOf(sum), nil
}

func sumOf(fingerprint string) (sum [sha256.Size]byte, err error) {
	decoded, err := hex.DecodeString(fingerprint)
	if err != nil || len(decoded) != sha256.Size {
		return sum, fmt.Errorf("a fingerprint has %d hexadecimal digits", 2*sha256.Size)
	}
	return [sha256.Size]byte(decoded), nil
}

// Expected is a fingerprint that a person has typed.
type Expected struct{ prefix []byte }

// Matches reports whether it is the fingerprint of the key.
func (e Expected) Matches(public ed25519.PublicKey) bool {
	return len(public) == ed25519.PublicKeySize && e.Of(sha256.Sum256(public))
}

// Of reports whether a digest is the one, or begins as its words say.
func (e Expected) Of(sum [sha256.Size]byte) bool {
	return len(e.prefix) > 0 && bytes.HasPrefix(sum[:], e.prefix)
}

// MatchesText reports whether it is this fingerprint, all 64 hexadecimal digits of one.
func (e Expected) MatchesText(fingerprint string) bool {
	sum, err := sumOf(fingerprint)
	return err == nil && e.Of(sum)
}

// Prefix is what was typed of the digest, at least 22 hexadecimal digits.
func (e Expected) Prefix() string { return hex.EncodeToString(e.prefix) }

// ParseFingerprint reads a fingerprint that a person types: all 64 hexadecimal digits, or
// the eight words, in any case, with spaces, colons or hyphens between them; or SHA256:
// and the digest in base64, as ssh and age keys have it.
func ParseFingerprint(text string) (Expected, error) {
	if encoded, is := strings.CutPrefix(strings.TrimSpace(text), "SHA256:"); is {
		sum, err := base64.RawStdEncoding.Strict().DecodeString(encoded)
		if err != nil || len(sum) != sha256.Size {
			return Expected{}, errors.New("after SHA256: must be a digest in base64")
		}
		return Expected{sum}, nil
	}
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

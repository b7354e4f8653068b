package agentkey

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func made(t *testing.T, dir string) Key {
	t.Helper()
	key, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestCreateAndLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load() of no key = %v, want fs.ErrNotExist", err)
	}
	key := made(t, dir)
	again, err := Load(dir)
	if err != nil || again.Fingerprint() != key.Fingerprint() {
		t.Errorf("Load() = %s, %v, want the key %s that was made", again.Fingerprint(), err, key.Fingerprint())
	}
	if !ed25519.Verify(key.Public(), []byte("text"), again.Sign([]byte("text"))) {
		t.Error("what the loaded key signs does not verify with the made one")
	}
	if info, err := os.Stat(filepath.Join(dir, File)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file = %v, %v, want 0600", info.Mode(), err)
	}
	if _, err := Create(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create() again = %v, want fs.ErrExist", err)
	}
	if after, err := Load(dir); err != nil || after.Fingerprint() != key.Fingerprint() {
		t.Errorf("after Create() again the key is %s, %v, want the first", after.Fingerprint(), err)
	}
}

// At each step of a rotation the directory has the key that counts.
func TestRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := made(t, dir)
	if _, err := Pending(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Pending() before a rotation = %v, want fs.ErrNotExist", err)
	}
	next, err := Next(dir)
	if err != nil || next.Fingerprint() == old.Fingerprint() {
		t.Fatalf("Next() = %v, want a new key", err)
	}
	// The agent was killed here, and goes on.
	if again, err := Next(dir); err != nil || again.Fingerprint() != next.Fingerprint() {
		t.Errorf("Next() again = %v, want the same one", err)
	}
	if current, err := Load(dir); err != nil || current.Fingerprint() != old.Fingerprint() {
		t.Errorf("Load() before the next key is in force = %v, want the old one", err)
	}
	if err := Promote(dir); err != nil {
		t.Fatal(err)
	}
	if current, err := Load(dir); err != nil || current.Fingerprint() != next.Fingerprint() {
		t.Errorf("Load() after Promote() = %v, want the next one", err)
	}
	if err := Promote(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Promote() without a next key = %v, want fs.ErrNotExist", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(other)
	if err != nil {
		t.Fatal(err)
	}
	good := t.TempDir()
	made(t, good)
	whole, err := os.ReadFile(filepath.Join(good, File))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		mode    fs.FileMode
		says    string
	}{
		"readable by others": {whole, 0o644, "chmod o="},
		"torn":               {whole[:len(whole)/2], 0o600, "no private key"},
		"empty":              {nil, 0o600, "no private key"},
		"another kind":       {pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), 0o600, "not Ed25519"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), c.content, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: Load() = %v, want one that says %q", name, err, c.says)
		}
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	key := made(t, t.TempDir())
	other := made(t, t.TempDir()).Public()
	sum := sha256.Sum256(key.Public())
	if n := len(strings.Fields(key.Words())); n != 8 {
		t.Errorf("Words() = %q, %d words, want 8", key.Words(), n)
	}
	for _, text := range []string{
		key.Fingerprint(), strings.ToUpper(key.Fingerprint()), " " + key.Fingerprint()[:32] + ":" + key.Fingerprint()[32:] + "\n",
		"SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:]),
		key.Words(), strings.ToUpper(key.Words()), strings.ReplaceAll(key.Words(), " ", "-"), "  " + strings.ReplaceAll(key.Words(), " ", "\n ") + " ",
	} {
		expected, err := ParseFingerprint(text)
		if err != nil || !expected.Matches(key.Public()) || expected.Matches(other) {
			t.Errorf("ParseFingerprint(%q) = %v, want one that is of that key alone", text, err)
		}
	}
	word := strings.Fields(key.Words())
	for _, text := range []string{"", key.Fingerprint()[:62], key.Fingerprint() + "00", strings.Join(word[:7], " "), key.Words() + " zoo", strings.Join(word[:7], " ") + " zoologist", "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:20])} {
		if _, err := ParseFingerprint(text); err == nil {
			t.Errorf("ParseFingerprint(%q) = nil, want an error", text)
		}
	}
	if words, err := WordsOfText(key.Fingerprint()); err != nil || words != key.Words() {
		t.Errorf("WordsOfText() = %q, %v, want %q", words, err, key.Words())
	}
	if _, err := WordsOfText("66"); err == nil {
		t.Error("WordsOfText(66) = nil, want an error")
	}
	if (Expected{}).Matches(key.Public()) {
		t.Error("no fingerprint matches a key")
	}
}

// Each bit of the first 88 changes the words, which are those of a known digest.
func TestWordsAreKnown(t *testing.T) {
	t.Parallel()
	// SHA-256 of 32 zero bytes begins 66687aadf862bd776c8fc1.
	const want = "grid duck problem valid cloth roof rate wealth"
	if got := Words(make(ed25519.PublicKey, ed25519.PublicKeySize)); got != want {
		t.Errorf("Words(zeros) = %q, want %q", got, want)
	}
}

package seal_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/seal"
)

func generate(t *testing.T) seal.Identities {
	t.Helper()
	made, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func recipient(t *testing.T, public string) age.Recipient {
	t.Helper()
	r, err := seal.ParseRecipient(public)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOpen(t *testing.T) {
	t.Parallel()
	old, current, other := generate(t), generate(t), generate(t)
	rotated := append(current[:1:1], old...)
	const secret = "hunter2-hunter2"
	binary, err := seal.To(recipient(t, old.Public()), []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	armoured, err := seal.Armoured(recipient(t, old.Public()), []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string][]byte{"binary": binary, "armoured": []byte(armoured)} {
		if plain, err := rotated.Open(message, 100); err != nil || string(plain) != secret {
			t.Errorf("Open(%s) = %q, %v, want what was sealed to an older identity", name, plain, err)
		}
		if _, err := other.Open(message, 100); !errors.Is(err, seal.ErrNotForUs) {
			t.Errorf("Open(%s) by a stranger = %v, want ErrNotForUs", name, err)
		}
		if _, err := rotated.Open(message, 5); err == nil || !strings.Contains(err.Error(), "more than 5 bytes") {
			t.Errorf("Open(%s) with a limit of 5 = %v, want a refusal", name, err)
		}
		if bytes.Contains(message, []byte(secret)) {
			t.Errorf("the %s message holds the text", name)
		}
	}
	damaged := bytes.Clone(binary)
	damaged[len(damaged)-1] ^= 1
	if plain, err := rotated.Open(damaged, 100); err == nil {
		t.Errorf("Open(damaged) = %q, want an error", plain)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	old, current, other := generate(t), generate(t), generate(t)
	rotated := append(current[:1:1], old...)
	message := []byte("message")
	mac := old.Sign("plan", message)
	if !rotated.Verify("plan", uuid.Nil, message, mac) || !rotated.Verify("plan", uuid.Nil, message, current.Sign("plan", message)) {
		t.Error("Verify refuses what one of the identities has signed")
	}
	for name, valid := range map[string]bool{
		"another purpose":  rotated.Verify("state", uuid.Nil, message, mac),
		"another message":  rotated.Verify("plan", uuid.Nil, []byte("massage"), mac),
		"another identity": other.Verify("plan", uuid.Nil, message, mac),
		"no MAC":           rotated.Verify("plan", uuid.Nil, message, nil),
	} {
		if valid {
			t.Errorf("Verify accepts %s", name)
		}
	}
}

// A runner makes for its claim's workspace what agents of the cluster believe, and opens nothing but
// what its agent has given it the key of.
func TestKeysForARunner(t *testing.T) {
	t.Parallel()
	own, other := generate(t), generate(t)
	workspace, claim, message := uuid.New(), uuid.New(), []byte("message")
	key := own.ForClaim(workspace, claim)
	var maker seal.Maker = key
	mac := maker.Sign("plan", message)
	if maker.Public() != own.Public() || !own.Verify("plan", workspace, message, mac) || !append(other[:1:1], own...).Verify("plan", workspace, message, mac) {
		t.Error("Verify refuses what the runner has signed")
	}
	claimed := bytes.Clone(mac)
	claimed[0] ^= 1
	for name, valid := range map[string]bool{
		"another workspace's": own.Verify("plan", uuid.New(), message, mac),
		"another purpose":     own.Verify("state", workspace, message, mac),
		"another message":     own.Verify("plan", workspace, []byte("massage"), mac),
		"another identity":    other.Verify("plan", workspace, message, mac),
		"another claim's":     own.Verify("plan", workspace, message, claimed),
		"cut":                 own.Verify("plan", workspace, message, mac[16:]),
	} {
		if valid {
			t.Errorf("Verify accepts %s", name)
		}
	}

	to, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	one, errOne := seal.To(to, []byte("one"))
	two, errTwo := seal.To(to, []byte("two"))
	if errOne != nil || errTwo != nil {
		t.Fatal(errOne, errTwo)
	}
	fileKey, err := own.FileKey(one)
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := seal.OpenWith(fileKey, one, 100); err != nil || string(plain) != "one" {
		t.Errorf("OpenWith() = %q, %v, want what was sealed", plain, err)
	}
	if plain, err := seal.OpenWith(fileKey, two, 100); err == nil {
		t.Errorf("OpenWith(another message) = %q, want an error", plain)
	}
	if _, err := other.FileKey(one); !errors.Is(err, seal.ErrNotForUs) {
		t.Errorf("FileKey(not ours) = %v, want %v", err, seal.ErrNotForUs)
	}
}

func TestRecipients(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	message, err := seal.To(recipient(t, line+" ada@example"), []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := agessh.NewEd25519Identity(private)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := age.Decrypt(bytes.NewReader(message), identity); err != nil {
		t.Errorf("Decrypt with the SSH key = %v", err)
	}
	if a, b := seal.Fingerprint(line), seal.Fingerprint(line+" ada@example"); a != b || !strings.HasPrefix(a, "SHA256:") {
		t.Errorf("Fingerprint = %s, with a comment %s, want the same", a, b)
	}
	for _, bad := range []string{"", "age1", "ssh-rsa AAAA", "ssh-ed25519 AAAA", "AGE-SECRET-KEY-1", generate(t).Public() + "x"} {
		if _, err := seal.ParseRecipient(bad); err == nil {
			t.Errorf("ParseRecipient(%q) = nil, want an error", bad)
		}
	}
}

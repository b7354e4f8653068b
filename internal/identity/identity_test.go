package identity

import (
	"bufio"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

// rotateEnv names a file whose identity this program rotates without end, until it is killed.
const rotateEnv = "TENDRIL_TEST_ROTATE"

func TestMain(m *testing.M) {
	if path := os.Getenv(rotateEnv); path != "" {
		for {
			if _, err := Rotate(path); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println("rotated")
		}
	}
	os.Exit(m.Run())
}

func created(t *testing.T, path string) seal.Identities {
	t.Helper()
	made, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func agentKey(t *testing.T) agentkey.Key {
	t.Helper()
	key, err := agentkey.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), File)
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of no file = %v, want fs.ErrNotExist", err)
	}
	first := created(t, path)
	if _, err := Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create() again = %v, want fs.ErrExist", err)
	}
	if held, err := Read(path); err != nil || len(held) != 1 || held.Public() != first.Public() {
		t.Errorf("Read() = %d, %v, want the identity that was made", len(held), err)
	}
	rotated, err := Rotate(path)
	if err != nil || len(rotated) != 2 || rotated.Public() == first.Public() || !rotated.Holds(first.Public()) {
		t.Errorf("Rotate() = %d identities, %v, want a new one before the old one", len(rotated), err)
	}
	// Those that are there already are not written twice.
	if all, err := Add(path, first); err != nil || len(all) != 2 || all.Public() != first.Public() {
		t.Errorf("Add() of one that is there = %d identities, %v, want it first of two", len(all), err)
	}
	if held, err := Read(path); err != nil || len(held) != 2 || held.Public() != first.Public() {
		t.Errorf("Read() = %d, %v, want the two", len(held), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file = %v, %v, want 0600", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "chmod o=") {
		t.Errorf("Read() of a file that others may read = %v, want a refusal", err)
	}
	if _, err := Rotate(path); err == nil {
		t.Error("Rotate() of a file that others may read = nil, want a refusal")
	}
}

// A process that is killed while it writes leaves the old file or the new one.
func TestKilledWhileItWrites(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), File)
	first := created(t, path)
	held := 1
	for n := range 10 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), rotateEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "rotated" {
			t.Fatalf("it says %q, want that it rotates", lines.Text())
		}
		time.Sleep(time.Duration(n) * 300 * time.Microsecond) // at another place each time
		_ = cmd.Process.Kill()
		for lines.Scan() { // until it is gone
		}
		_ = cmd.Wait()
		all, err := Read(path)
		if err != nil || len(all) <= held || !all.Holds(first.Public()) || all[len(all)-1:].Public() != first.Public() {
			t.Fatalf("after it was killed the file has %d identities, %v, want more than %d, and the first one last", len(all), err, held)
		}
		if held = len(all); held > 100 { // a file has 64 KiB at most
			if err := os.WriteFile(path, []byte(Text(first)), 0o600); err != nil {
				t.Fatal(err)
			}
			held = 1
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	all, err := Rotate(filepath.Join(t.TempDir(), File))
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, created(t, filepath.Join(t.TempDir(), File))...)
	key, other, now := agentKey(t), agentKey(t), time.Now()
	sealed, err := Seal(all, key.Public(), "prod", now.Add(ShareFor))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(sealed, "AGE-SECRET-KEY") || !strings.HasPrefix(sealed, "-----BEGIN AGE ENCRYPTED FILE-----\n") {
		t.Errorf("Seal() = %q, want an armoured message", sealed)
	}
	opened, err := Open(sealed, key, "prod", now)
	if err != nil || Text(opened) != Text(all) {
		t.Errorf("Open() = %d identities, %v, want those that were shared, in their order", len(opened), err)
	}
	lines := strings.SplitAfter(sealed, "\n")
	changed := []byte(sealed)
	changed[len(sealed)*2/3] ^= 1
	for name, c := range map[string]struct {
		text, cluster string
		key           agentkey.Key
		now           time.Time
		says          string
	}{
		"another key":        {sealed, "prod", other, now, "another key"},
		"another cluster":    {sealed, "dev", key, now, `the cluster "prod"`},
		"expired":            {sealed, "prod", key, now.Add(ShareFor), "expired"},
		"truncated":          {strings.Join(lines[:len(lines)-3], ""), "prod", key, now, "damaged"},
		"changed":            {string(changed), "prod", key, now, ""},
		"nothing":            {"", "prod", key, now, "not an age message"},
		"plain":              {Text(all), "prod", key, now, "not an age message"},
		"too long":           {strings.Repeat("a", maxSealed+1), "prod", key, now, "more than"},
		"of another purpose": {sealedTo(t, key, share{Purpose: "other", Cluster: "prod", To: key.Fingerprint(), Until: now.Add(time.Hour), Identities: Text(all)}), "prod", key, now, "no share"},
		"for another key":    {sealedTo(t, key, share{Purpose: purpose, Cluster: "prod", To: other.Fingerprint(), Until: now.Add(time.Hour), Identities: Text(all)}), "prod", key, now, "made for another key"},
		"without identities": {sealedTo(t, key, share{Purpose: purpose, Cluster: "prod", To: key.Fingerprint(), Until: now.Add(time.Hour)}), "prod", key, now, "no identity"},
		"with more inside":   {sealedTo(t, key, map[string]any{"purpose": purpose, "only_for": "x"}), "prod", key, now, "no share"},
	} {
		if opened, err := Open(c.text, c.key, c.cluster, c.now); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "AGE-SECRET-KEY-1") {
			t.Errorf("%s: Open() = %d identities, %v, want an error that says %q", name, len(opened), err, c.says)
		}
	}
	if _, err := Seal(all, ed25519.PublicKey("short"), "prod", now); err == nil {
		t.Error("Seal() to what is no key = nil, want an error")
	}
}

// sealedTo seals anything to a key, as a hostile database can.
func sealedTo(t *testing.T, key agentkey.Key, inside any) string {
	t.Helper()
	text, err := json.Marshal(inside)
	if err != nil {
		t.Fatal(err)
	}
	to, err := recipientOf(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.Armoured(to, text)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	one, other := created(t, filepath.Join(t.TempDir(), File)).Public(), created(t, filepath.Join(t.TempDir(), File)).Public()
	sum := sha256.Sum256([]byte(one))
	for _, text := range []string{one, Fingerprint(one), seal.Fingerprint(one), hex.EncodeToString(sum[:])} {
		dir := t.TempDir()
		if accepted, err := ReadAccepted(dir); err != nil || accepted.Is(one) || accepted.Is("") {
			t.Errorf("ReadAccepted() = %v, %v, want nothing accepted", accepted, err)
		}
		if err := Accept(dir, " "+text+"\n"); err != nil {
			t.Fatal(err)
		}
		accepted, err := ReadAccepted(dir)
		if err != nil || !accepted.Is(one) || accepted.Is(other) || accepted.Is("") {
			t.Errorf("after Accept(%q) ReadAccepted() = %v, %v, want that one alone", text, accepted, err)
		}
		if err := errors.Join(Forget(dir), Forget(dir)); err != nil {
			t.Fatal(err)
		}
		if accepted, err := ReadAccepted(dir); err != nil || accepted.Is(one) {
			t.Errorf("ReadAccepted() after Forget() = %v, %v, want nothing accepted", accepted, err)
		}
	}
	for _, bad := range []string{"", "age1", one + "x", "SHA256:abc", "zoo zoo zoo", "AGE-SECRET-KEY-1"} {
		if err := Accept(t.TempDir(), bad); err == nil {
			t.Errorf("Accept(%q) = nil, want an error", bad)
		}
	}
}

// The refusals of a certificate for which no database is needed; the agent's own test has the others.
func TestCertificate(t *testing.T) {
	t.Parallel()
	key, now := agentKey(t), time.Now()
	by := agentKey(t)
	public := created(t, filepath.Join(t.TempDir(), File)).Public()
	good := Certificate{Cluster: "prod", Key: key.Words(), Identity: Fingerprint(public), From: now, Until: now.Add(MaxCertificate)}
	text, err := good.Sign(by.Private())
	if err != nil {
		t.Fatal(err)
	}
	named, err := ParseCertifiers([]string{authorized(t, agentKey(t)) + " a comment", authorized(t, by)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := named.Verify(text, "prod", key.Public(), now)
	if err != nil || !c.Allows(public) || c.Allows(created(t, filepath.Join(t.TempDir(), File)).Public()) || c.Certifier != authorized(t, by) {
		t.Errorf("Verify() = %+v, %v, want a certificate for that identity alone", c, err)
	}
	if _, err := (Certifiers{}).Verify(text, "prod", key.Public(), now); err == nil {
		t.Error("Verify() by nobody = nil, want an error")
	}
	if _, err := named.Verify(text, "prod", ed25519.PublicKey("short"), now); err == nil {
		t.Error("Verify() for what is no key = nil, want an error")
	}
	for name, change := range map[string]func(*Certificate){
		"no cluster":      func(c *Certificate) { c.Cluster = " " },
		"no key":          func(c *Certificate) { c.Key = "" },
		"half a key":      func(c *Certificate) { c.Key = key.Fingerprint()[:22] },
		"no identity":     func(c *Certificate) { c.Identity = "" },
		"a secret":        func(c *Certificate) { c.Identity = "AGE-SECRET-KEY-1" },
		"for too long":    func(c *Certificate) { c.Until = c.From.Add(MaxCertificate + time.Second) },
		"ends and begins": func(c *Certificate) { c.Until = c.From },
	} {
		bad := good
		change(&bad)
		if _, err := bad.Sign(by.Private()); err == nil {
			t.Errorf("%s: Sign() = nil, want an error", name)
		}
		bad.Certifier = authorized(t, by)
		signed, err := trust.Sign(certificateKind, bad, by.Private()) // as another program could
		if err != nil {
			t.Fatal(err)
		}
		if _, err := named.Verify(signed, "prod", key.Public(), now); err == nil {
			t.Errorf("%s: Verify() = nil, want an error", name)
		}
	}
	for _, bad := range []string{"", "ssh-ed25519", "age1q", "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7"} {
		if _, err := ParseCertifiers([]string{bad}); err == nil {
			t.Errorf("ParseCertifiers(%q) = nil, want an error", bad)
		}
	}
}

// authorized is a public key as ssh has it.
func authorized(t *testing.T, key agentkey.Key) string {
	t.Helper()
	text, err := trust.SignerText(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

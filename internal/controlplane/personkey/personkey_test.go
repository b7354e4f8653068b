package personkey_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/personkey"
	"github.com/tendril-run/tendril/internal/trust"
)

func TestKeyIsMadeOnceAndKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tendril")
	if _, err := personkey.Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load() of no key = %v, want %v", err, fs.ErrNotExist)
	}
	k, made, err := personkey.LoadOrMake(dir)
	if err != nil || !made || k.Asks(time.Now()) != k.Recipient() {
		t.Fatalf("LoadOrMake() = %+v, %t, %v", k, made, err)
	}
	again, made, err := personkey.LoadOrMake(dir)
	if err != nil || made || again.Recipient() != k.Recipient() {
		t.Errorf("LoadOrMake() again = %s, %t, %v, want the same key", again.Recipient(), made, err)
	}
	if info, err := os.Stat(k.Path()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key = %v, %v, want 0600", info.Mode(), err)
	}
	if err := os.Chmod(k.Path(), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := personkey.Load(dir); err == nil {
		t.Error("a key that others can read is used")
	}
}

func TestCertificateIsKeptForItsKey(t *testing.T) {
	t.Parallel()
	k, _, err := personkey.LoadOrMake(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	authority, err := trust.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(recipient string) string {
		text, err := authority.Certify(trust.Certificate{
			Name: "ada", Recipient: recipient, Workspaces: []string{"**"}, From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if _, err := k.Use(issue(authority.Recipient())); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("Use() of another's = %v, want a refusal", err)
	}
	for range 2 { // a renewed one takes its place
		certificate := issue(k.Recipient())
		if _, err := k.Use(certificate); err != nil {
			t.Fatal(err)
		}
		again, err := personkey.Load(filepath.Dir(k.Path()))
		if err != nil || again.Asks(time.Now()) != certificate {
			t.Errorf("Asks() = %q, %v, want the certificate", again.Asks(time.Now()), err)
		}
		if got := again.Asks(time.Now().Add(2 * time.Hour)); got != k.Recipient() {
			t.Errorf("Asks() once the certificate has expired = %q, want the key", got)
		}
	}
}

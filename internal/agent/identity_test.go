package agent

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/seal"
)

func TestIdentityIsMadeOnce(t *testing.T) {
	t.Parallel()
	d, err := openDataDir(t.TempDir(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	one, _, err := loadIdentities(d, Identity{})
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := loadIdentities(d, Identity{})
	if err != nil || again.Public() != one.Public() {
		t.Errorf("loadIdentities() = %v, %v at the second start, want the same identity", again, err)
	}
	info, err := os.Stat(d.path("identity"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the identity's file has mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestIdentityFile(t *testing.T) {
	t.Parallel()
	first, second := newIdentity(t), newIdentity(t)
	for name, c := range map[string]struct{ content, public, says string }{
		"two":         {"# of the cluster\n" + first.String() + "\n\n" + second.String() + "\n", first.Recipient().String(), ""},
		"none":        {"# nothing\n", "", "holds no age identity"},
		"a recipient": {first.Recipient().String() + "\n", "", "line 1: no age identity"},
		"torn":        {first.String() + "\n" + second.String()[:40] + "\n", "", "line 2: no age identity"},
	} {
		got, _, err := loadIdentities(&dataDir{}, Identity{File: "/keys", Text: c.content})
		switch {
		case c.says == "" && (err != nil || got.Public() != c.public || len(got) != 2):
			t.Errorf("%s: loadIdentities() = %d, %v, want two, the first of them current", name, len(got), err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "AGE-SECRET-KEY-1"+second.String()[16:30])):
			t.Errorf("%s: loadIdentities() = %v, want one that says %q and no key", name, err, c.says)
		}
	}
}

func TestAnotherClusterKeyIsToldOf(t *testing.T) {
	t.Parallel()
	mine, old, others := newIdentity(t), newIdentity(t), newIdentity(t)
	for name, c := range map[string]struct{ cluster, says string }{
		"none":     {"", ""},
		"current":  {mine.Recipient().String(), ""},
		"older":    {old.Recipient().String(), "level=INFO"},
		"stranger": {others.Recipient().String(), "level=WARN"},
	} {
		var out bytes.Buffer
		compareKeys(seal.Identities{mine, old}, c.cluster, slog.New(slog.NewTextHandler(&out, nil)))
		said := out.String()
		if c.says == "" && said != "" || !strings.Contains(said, c.says) || strings.Contains(said, "AGE-SECRET-KEY") {
			t.Errorf("%s: compare() says %q, want %q", name, said, c.says)
		}
		if c.says != "" && (!strings.Contains(said, c.cluster) || !strings.Contains(said, mine.Recipient().String()) || !strings.Contains(said, "set_cluster_key")) {
			t.Errorf("%s: compare() says %q, want both keys and what to do", name, said)
		}
	}
}

func newIdentity(t *testing.T) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// A control plane is set up by hand as the guide and SUPABASE.md say it, up to the first
// agent's registration.
func TestSetUpCommands(t *testing.T) {
	t.Parallel()
	database, address := pgtest.New(t).URL, site.Address(t)
	url := "https://" + address
	certificate, key := site.Certificate(t)
	me := newTypist(t, "TRELLIS_CA_FILE="+certificate, "TENDRIL_QUEUE_CA_FILE="+certificate)
	for name, from := range map[string]string{"tls.crt": certificate, "tls.key": key} {
		if err := os.Symlink(from, filepath.Join(me.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	const serving = "serving people and agents"

	stop := me.start(pages.Block(t, "docs/GUIDE.md", "trellis serve --listen", "postgres://owner@db.example/tendril", "'"+database+"'", ":443", address, "https://tendril.example", url), serving)
	out := me.with("TRELLIS_DATABASE_URL=" + database).run(pages.Block(t, "docs/GUIDE.md", "trellis admin token", "https://tendril.example", url))
	token := regexp.MustCompile(`tnd_[\w-]+`).FindString(out)
	stop()

	stop = me.with("TRELLIS_DATABASE_URL="+database).start(pages.Block(t, "docs/GUIDE.md", "trellis serve …",
		"…", "--listen "+address+" --tls-cert tls.crt --tls-key tls.key"), serving)
	stop()

	supabase := "postgresql://postgres:PASSWORD@db.PROJECT.supabase.co:5432/postgres"
	if out := me.run(pages.Block(t, "docs/SUPABASE.md", "trellis migrate", supabase, database)); strings.Contains(out, "applied") {
		t.Errorf("the second trellis migrate says %s, want nothing to do", out)
	}
	me.run(pages.Code(t, "docs/SUPABASE.md", "trellis migrate --print > tendril.sql"))
	if script := readFile(t, filepath.Join(me.dir, "tendril.sql")); !strings.Contains(script, "fit_platform") {
		t.Errorf("trellis migrate --print writes %d bytes, want the migrations", len(script))
	}
	if err := os.WriteFile(filepath.Join(me.dir, "anon.key"), []byte("sb_publishable_key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	me.start(pages.Block(t, "docs/SUPABASE.md", "trellis serve", supabase, database, ":443", address, "https://tendril.example", url, "PROJECT", "project"), serving)
	me.with("TENDRIL_POLICY_REPOS=https://github.com/acme/**", "TENDRIL_DATA_DIR="+filepath.Join(me.dir, "agent")).start(pages.Block(t, "docs/SUPABASE.md", "tendril doctor",
		"https://PROJECT.supabase.co", url, "sb_publishable_…", "sb_publishable_key", "tnd_…", token), "registered")
}

// What OPERATIONS.md and the guide say of people, secrets and states, for bob, whom an
// authority has certified.
func TestSecretsCommands(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", s.Org, instance.LocalUser)
	people := s.People()
	ada, bob := newTypist(t, people...), newTypist(t, people...)
	bob.dir = ada.dir // each has a home of their own
	keysOf := func(p typist) (keys struct{ Recipient, Signer, Fingerprint string }) {
		t.Helper()
		if err := json.Unmarshal([]byte(p.run("trellis keys -o json 2>/dev/null")), &keys); err != nil {
			t.Fatal(err)
		}
		return keys
	}
	bobs := keysOf(bob)
	certify := pages.Lines(pages.Block(t, "docs/OPERATIONS.md", "trellis keys certify", "age1…", bobs.Recipient, "ssh-ed25519 AAAA…", bobs.Signer))
	for i, p := range []typist{bob, ada, bob} {
		p.run(certify[i])
	}

	identity := s.IdentityFile()
	a := s.NewAgent("one", 2, "")
	a.ManageState(identity)
	a.Set("TENDRIL_POLICY_OPERATIONS", "plan,apply,destroy,refresh,inspect,state,unlock")
	a.Set("TENDRIL_POLICY_REQUESTER_KEYS", "authority "+keysOf(ada).Fingerprint)
	a.Start()
	a.AwaitOutput("registered")
	repo := s.Template("secret", map[string]string{"main.tf": strings.ReplaceAll(handedOut, "password", "db_password")})
	bob.run("trellis templates add hello --repo " + repo + " --version v1")
	if out := bob.run(pages.Block(t, "docs/GUIDE.md", "trellis seal"), "correct-horse"); !strings.Contains(out, `"correct-horse"`) {
		t.Errorf("trellis outputs --reveal says %s, want the secret", out)
	}

	operator := newTypist(t, append(a.Env, "TENDRIL_CONFIG="+a.Config, "TENDRIL_DATA_DIR="+a.Dir)...)
	operator.run(pages.Code(t, "docs/TROUBLESHOOTING.md", "tendril doctor --repo URL", "URL", repo))
	var known []struct {
		ID          string
		StateDigest string `json:"state_digest"`
	}
	if err := json.Unmarshal([]byte(operator.run("tendril workspaces -o json")), &known); err != nil || len(known) != 1 {
		t.Fatalf("the agent knows %v, %v, want one workspace", known, err)
	}
	if out := operator.run(pages.Block(t, "docs/OPERATIONS.md", "tendril workspaces accept", "UUID", known[0].ID, "SHA256", known[0].StateDigest)); strings.Count(out, "Accepted for the next run") != 2 {
		t.Errorf("tendril workspaces accept says %s, want both accepted", out)
	}

	// A state that the agent keeps in rejected/ is sealed as those in the database are.
	text, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.ParseIdentities(identity, string(text))
	if err != nil {
		t.Fatal(err)
	}
	to, err := seal.ParseRecipient(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	var state map[string]any
	if err := json.Unmarshal([]byte(bob.run("trellis state pull acme/prod 2>/dev/null")), &state); err != nil {
		t.Fatal(err)
	}
	state["serial"] = state["serial"].(float64) + 1
	newer, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := seal.To(to, newer)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"identity": text, "CLAIM.state.age": sealed} {
		if err := os.WriteFile(filepath.Join(bob.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tools := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tools, "filippo.io/age/cmd/age").CombinedOutput(); err != nil {
		t.Fatalf("build age: %v\n%s", err, out)
	}
	bob.run("PATH=" + tools + ":$PATH\n" + pages.Block(t, "docs/OPERATIONS.md", "age --decrypt", "state push", "state push --yes"))
}

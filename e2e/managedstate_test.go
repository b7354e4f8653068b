package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/seal"
)

const keptTemplate = `
variable "word" { type = string }
resource "terraform_data" "each" {
  for_each = toset([var.word])
  input    = "hunter2-${var.word}"
}
`

// keptSite has an agent that keeps states in the database.
func keptSite(t *testing.T) (s *site.Site, repo, identity string) {
	t.Helper()
	s = site.New(t)
	identity = s.IdentityFile()
	a := s.NewAgent("one", 4, "")
	a.ManageState(identity)
	a.Start()
	return s, s.Template("kept", map[string]string{"main.tf": keptTemplate}), identity
}

// Who can write any row of the database cannot have an agent work with a state
// that no agent made, that was made for another workspace, or that is not the
// newest.
func TestForgedStates(t *testing.T) {
	t.Parallel()
	s, repo, identity := keptSite(t)
	text, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.ParseIdentities(identity, string(text))
	if err != nil {
		t.Fatal(err)
	}
	recipient, err := seal.ParseRecipient(key.Public()) // which everybody may know
	if err != nil {
		t.Fatal(err)
	}
	own, err := seal.To(recipient, []byte(`{"version": 4, "serial": 99, "lineage": "x", "resources": []}`))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(own)
	if got := s.AwaitEnd(s.DeployTemplate(repo, "another", map[string]any{"word": "a"})); got != "SUCCESS" {
		t.Fatalf("deploy = %s, want SUCCESS", got)
	}

	// newest and first are the blobs of the workspace, $1 is its id.
	const newest, first = "(SELECT id FROM tendril.blobs WHERE workspace_id = $1 ORDER BY number DESC LIMIT 1)", "(SELECT id FROM tendril.blobs WHERE workspace_id = $1 ORDER BY number LIMIT 1)"
	const anothers = "(SELECT b.id FROM tendril.blobs b JOIN public.workspaces w ON w.id = b.workspace_id AND w.name = 'another' WHERE $1::uuid IS NOT NULL)"
	take := func(from string) []string {
		return []string{
			"UPDATE tendril.blobs t SET digest = f.digest, meta = f.meta FROM tendril.blobs f WHERE t.id = " + newest + " AND f.id = " + from,
			"UPDATE tendril.blob_parts t SET data = f.data FROM tendril.blob_parts f WHERE t.blob_id = " + newest + " AND f.blob_id = " + from,
		}
	}
	forgeries := map[string][]string{
		"anothers": take(anothers),
		"older":    take(first),
		"self-made": {
			"UPDATE tendril.blobs SET digest = '" + hex.EncodeToString(sum[:]) + "' WHERE id = " + newest,
			"UPDATE tendril.blob_parts SET data = '\\x" + hex.EncodeToString(own) + "' WHERE blob_id = " + newest,
		},
		"removed": {
			"DELETE FROM tendril.blobs WHERE id = " + newest,
			"UPDATE public.workspaces SET state_version = (SELECT max(number) FROM tendril.blobs WHERE workspace_id = $1) WHERE id = $1",
		},
		"all-removed": {
			"DELETE FROM tendril.blobs WHERE workspace_id = $1",
			"UPDATE public.workspaces SET state_version = NULL WHERE id = $1",
		},
	}
	// all deploys to each of the workspaces, side by side.
	all := func(word, want string) map[string]uuid.UUID {
		t.Helper()
		ids := map[string]uuid.UUID{}
		for name := range forgeries {
			ids[name] = s.DeployTemplate(repo, name, map[string]any{"word": word})
		}
		for name, id := range ids {
			if got := s.AwaitEnd(id); got != want {
				t.Errorf("%s: deploy of %s = %s: %s, want %s", name, word, got, s.Message(id), want)
			}
		}
		return ids
	}
	all("a", "SUCCESS")
	all("b", "SUCCESS")
	for name, statements := range forgeries {
		workspace := s.Text(t, "SELECT id::text FROM public.workspaces WHERE name = $1", name)
		for _, statement := range statements {
			s.Exec(t, statement, workspace)
		}
	}
	for name, id := range all("c", "FAILED/state_invalid") {
		if log := s.Log(t, id); strings.Contains(log, "Creating") {
			t.Errorf("%s: the run made something:\n%s", name, log)
		}
	}
	if got := s.Text(t, "SELECT count(*)::text FROM tendril.blob_parts WHERE position('hunter2'::bytea IN data) > 0"); got != "0" {
		t.Errorf("states that can be read in the database = %s, want 0", got)
	}
}

// An agent with another identity neither reads a state nor begins a new one.
func TestStateOfAnotherIdentity(t *testing.T) {
	t.Parallel()
	s, repo, _ := keptSite(t)
	if got := s.AwaitEnd(s.DeployTemplate(repo, "w", map[string]any{"word": "a"})); got != "SUCCESS" {
		t.Fatalf("deploy = %s, want SUCCESS", got)
	}
	s.Exec(t, "UPDATE public.workspaces SET locked_at = now(), lock_reason = 'for the other'")
	other := s.NewAgent("other", 2, "")
	other.ManageState(s.IdentityFile())
	other.Start()
	other.AwaitOutput("registered")
	s.Exec(t, "UPDATE public.agents SET boot_id = gen_random_uuid() WHERE name = 'one'") // it claims nothing more
	s.Exec(t, "UPDATE public.workspaces SET locked_at = NULL, lock_reason = NULL")
	id := s.DeployTemplate(repo, "w", map[string]any{"word": "b"})
	if got := s.AwaitEnd(id); got != "FAILED/state_invalid" || !strings.Contains(s.Message(id), "identity_file") {
		t.Errorf("the run = %s: %s, want FAILED/state_invalid and what to do", got, s.Message(id))
	}
}

// Nothing of a state is left on the agent's disk.
func TestManagedStateLeavesNoFile(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	a := s.NewAgent("one", 1, "")
	a.ManageState(s.IdentityFile())
	a.Start()
	repo := s.Template("kept", map[string]string{"main.tf": keptTemplate})
	if got := s.AwaitEnd(s.DeployTemplate(repo, "w", map[string]any{"word": "a"})); got != "SUCCESS" {
		t.Fatalf("deploy = %s, want SUCCESS", got)
	}
	a.Terminate()
	err := filepath.WalkDir(a.Dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasPrefix(path, filepath.Join(a.Dir, "repos")) {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "hunter2") {
			t.Errorf("%s has what is in the state", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

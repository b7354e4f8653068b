package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/seal"
)

// deploySealed queues a provision whose child says which password it was given.
func (w *world) deploySealed(t *testing.T, workspace, repo, variable, message string) uuid.UUID {
	t.Helper()
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": repo, "version": "v1"}, "workspace": workspace,
		"terraform_vars": script{Dir: w.meet, Steps: []string{"opened " + variable, "succeed"}}, "sealed_vars": map[string]string{variable: message},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w.DeploySnapshot(t, string(snapshot))
}

// refuses waits for the end of a provision whose sealed value must not be opened.
func (w *world) refuses(t *testing.T, id uuid.UUID, want ...string) {
	t.Helper()
	w.becomes(t, id, "FAILED/sealed_invalid")
	message := w.Text(t, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	for _, part := range want {
		if !strings.Contains(message, part) {
			t.Errorf("the error is %q, want %q in it", message, part)
		}
	}
	if strings.Contains(message, "hunter2") {
		t.Errorf("the error %q shows the value", message)
	}
}

// identityOf reads the identities of an agent that has registered.
func (w *world) identityOf(t *testing.T) seal.Identities {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.data, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := seal.ParseIdentities("identity", string(text))
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// A value that was sealed for one workspace, template and variable is copied out
// of its snapshot into others, and the workspace is renamed.
func TestCopiedSealedValuesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	a.says(t, "registered")
	own := w.identityOf(t)
	message := sealed(t, own, "password", "acme/a", "hunter2-hunter2")
	w.becomes(t, w.deploySealed(t, "acme/a", sealedRepo, "password", message), "SUCCESS")
	w.becomes(t, w.deploySealed(t, "acme/a", sealedRepo+".git", "password", message), "SUCCESS") // another spelling

	w.refuses(t, w.deploySealed(t, "acme/b", sealedRepo, "password", message),
		"sealed_vars.password: it was sealed for the workspace acme/a, and this run is for the workspace acme/b",
		"trellis seal password --cluster prod --workspace acme/b --repo "+sealedRepo)
	w.refuses(t, w.deploySealed(t, "acme/a", sealedRepo, "motd", message), "sealed_vars.motd: it was sealed for the variable password")
	recipient, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	old, err := seal.Armoured(recipient, []byte(`{"v": 1, "name": "password", "value": "hunter2-hunter2"}`))
	if err != nil {
		t.Fatal(err)
	}
	w.refuses(t, w.deploySealed(t, "acme/a", sealedRepo, "password", old), "sealed_vars.password: it was sealed the old way", "trellis seal password")
	// Another template in a workspace that was bound to it by a row.
	w.Exec(t, "UPDATE public.workspaces SET repo = 'https://git.example/eve' WHERE name = 'acme/a'")
	w.refuses(t, w.deploySealed(t, "acme/a", "https://git.example/eve", "password", message), "this run is for the template repository https://git.example/eve")

	// What was queued before its workspace was renamed is to be sealed again.
	w.Exec(t, "UPDATE public.clusters SET paused_at = now()")
	queued := w.deploySealed(t, "acme/c", sealedRepo, "password", sealed(t, own, "password", "acme/c", "hunter2-hunter2"))
	asRow := w.deploySealed(t, "acme/d", sealedRepo, "password", sealed(t, own, "password", "acme/d", "hunter2-hunter2"))
	w.Exec(t, "UPDATE public.workspaces SET name = 'acme/renamed' WHERE name = 'acme/c'")
	w.Exec(t, "UPDATE public.workspaces SET name = 'acme/other' WHERE name = 'acme/d'")
	w.Exec(t, "SET session_replication_role = replica") // the snapshot as well, which triggers guard
	w.Exec(t, `UPDATE public.provisions SET config_snapshot = jsonb_set(config_snapshot, '{workspace}', '"acme/other"') WHERE id = $1`, asRow)
	w.Exec(t, "SET session_replication_role = origin")
	w.Exec(t, "UPDATE public.clusters SET paused_at = NULL")
	w.becomes(t, queued, "FAILED/workspace_changed")
	w.refuses(t, asRow, "it was sealed for the workspace acme/d, and this run is for the workspace acme/other", "--workspace acme/other")
	a.stops(t)
	w.wantNothingLeft(t)
	if strings.Contains(a.log.String(), "hunter2") {
		t.Error("the agent's log shows the value")
	}
}

// Two clusters were given the same identity, so either's agent could open what is
// sealed for the other.
func TestSealedForAnotherClusterOfTheSameIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := startAgent(t, w.setup())
	first.says(t, "registered")
	own := w.identityOf(t)
	message := sealed(t, own, "password", "acme/a", "hunter2-hunter2")
	first.stops(t)

	other := *w.World
	dev := &world{World: &other, data: filepath.Join(t.TempDir(), "data"), meet: t.TempDir()}
	dev.Cluster, dev.Token = w.NewCluster(t, "dev")
	if err := os.MkdirAll(dev.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev.data, "identity"), []byte(own[0].String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := startAgent(t, dev.setup())
	second.says(t, "registered")
	dev.refuses(t, dev.deploySealed(t, "acme/a", sealedRepo, "password", message), "it was sealed for the cluster prod, and this run is for the cluster dev")
	second.stops(t)

	// Nor does the database make prod's agent of it by calling dev so.
	w.Exec(t, "UPDATE public.clusters SET name = 'staging' WHERE id = $1", w.Cluster)
	w.Exec(t, "UPDATE public.clusters SET name = 'prod' WHERE id = $1", dev.Cluster)
	third := startAgent(t, dev.setup())
	third.says(t, "the database says that this agent belongs to the cluster prod")
	dev.refuses(t, dev.deploySealed(t, "acme/a", sealedRepo, "password", message), filepath.Join(dev.data, "cluster")+" says dev", "remove that file")
	third.stops(t)

	// Its operator does.
	if err := os.Remove(filepath.Join(dev.data, "cluster")); err != nil {
		t.Fatal(err)
	}
	fourth := startAgent(t, dev.setup())
	dev.becomes(t, dev.deploySealed(t, "acme/a", sealedRepo, "password", message), "SUCCESS")
	fourth.stops(t)
}

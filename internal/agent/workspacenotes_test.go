package agent

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// Name and id of a workspace stay together, whatever the rows say: for an agent that
// remembers them, and by the state's word for one that does not.
func TestWorkspacesAreRecognised(t *testing.T) {
	t.Parallel()
	key, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	k, fresh := newKeeper(t, key), newKeeper(t, key)
	dev, db := assignment(t, uuid.New(), "dev/x"), newRows()
	prod := assignment(t, uuid.New(), "prod")
	if err := k.run(db, dev, 1); err != nil {
		t.Fatal(err)
	}
	if err := k.run(newRows(), prod, 1); err != nil {
		t.Fatal(err)
	}
	snapshot := dev
	snapshot.Workspace = "prod"
	wantRefusal(t, "a snapshot for another workspace", k.notes.check(snapshot), provision.CodeWorkspaceChanged, "dev/x", "prod")
	renamed := assignment(t, dev.WorkspaceID, "prod")
	wantRefusal(t, "dev is called prod", k.run(db, renamed, 0), provision.CodeWorkspaceChanged, "dev/x", "prod", "tendril workspaces accept "+dev.WorkspaceID.String())
	other := assignment(t, dev.WorkspaceID, "other")
	wantRefusal(t, "dev has another name", k.run(db, other, 0), provision.CodeWorkspaceChanged, "dev/x", "other")
	wantRefusal(t, "prod is another workspace", k.run(newRows(), assignment(t, uuid.New(), "prod"), 0), provision.CodeWorkspaceChanged, prod.WorkspaceID.String())
	wantRefusal(t, "an agent without notes", fresh.run(db, other, 0), provision.CodeWorkspaceChanged, "is that of workspace dev/x")
	if err := fresh.run(db, dev, 0); err != nil {
		t.Errorf("an agent without notes, once the name is right again: %v", err)
	}
	unusual := assignment(t, uuid.New(), "acme/prod; reboot")
	wantRefusal(t, "a name that no workspace can have", k.notes.check(unusual), provision.CodeWorkspaceChanged, "may hold letters")

	// A word for another name is none.
	if err := Accept(k.notes.dir.root, dev.WorkspaceID, Acceptance{Name: "prod/x"}); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "accepted as another", k.run(db, other, 0), provision.CodeWorkspaceChanged)
	for _, agent := range []*keeper{k, newKeeper(t, key)} {
		if err := Accept(agent.notes.dir.root, dev.WorkspaceID, Acceptance{Name: "other"}); err != nil {
			t.Fatal(err)
		}
		if err := agent.run(db, other, 1); err != nil {
			t.Errorf("once it is accepted: %v", err)
		}
		if err := agent.run(db, other, 0); err != nil {
			t.Errorf("from then on: %v", err)
		}
	}
	wantRefusal(t, "the former name", k.run(db, dev, 0), provision.CodeWorkspaceChanged)

	// What cannot be read is not taken for nothing.
	if err := durable.WriteFile(k.notes.knownPath(prod.WorkspaceID), []byte("{")); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "a damaged note", k.run(newRows(), prod, 0), provision.CodeWorkspaceChanged, "cannot be read")
}

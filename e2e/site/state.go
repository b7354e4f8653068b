package site

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

// IdentityFile makes an identity for the agents of a cluster.
func (s *Site) IdentityFile() string {
	s.T.Helper()
	key, err := seal.Generate()
	if err != nil {
		s.T.Fatal(err)
	}
	path := filepath.Join(s.T.TempDir(), "identity")
	if err := os.WriteFile(path, fmt.Appendln(nil, key[0]), 0o600); err != nil {
		s.T.Fatal(err)
	}
	return path
}

// ManageState has an agent keep states in the database, by the identity in a
// file.
func (a *Agent) ManageState(identity string) {
	a.Set("TENDRIL_STATE_DEFAULT", "managed")
	a.Set("TENDRIL_IDENTITY_FILE", identity)
}

// AllowState has an agent carry out all operations, those on the state as well, for
// somebody.
func (a *Agent) AllowState(who trust.Person) {
	a.Set("TENDRIL_POLICY_OPERATIONS", "plan,apply,destroy,refresh,unlock,state,inspect")
	a.Set("TENDRIL_POLICY_REQUESTER_KEYS", who.Recipient()+","+who.SignerKey())
}

// Instance is one object of a state.
type Instance struct {
	Tainted bool
}

// ManagedState opens the newest state of a workspace as an agent does, and
// answers what is in it by key; nothing where there is none.
func (s *Site) ManagedState(t testing.TB, workspace, identity string) map[string]Instance {
	t.Helper()
	return s.StateVersion(t, workspace, 0, identity)
}

// StateVersion is ManagedState of a version that is kept; 0 is the newest.
func (s *Site) StateVersion(t testing.TB, workspace string, version int64, identity string) map[string]Instance {
	t.Helper()
	text, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.ParseIdentities(identity, string(text))
	if err != nil {
		t.Fatal(err)
	}
	var sealed []byte
	err = s.Conn.QueryRow(t.Context(), `SELECT string_agg(p.data, '' ORDER BY p.part) FROM public.workspaces w
		JOIN tendril.blobs b ON b.workspace_id = w.id AND b.number = coalesce(nullif($2, 0), w.state_version) JOIN tendril.blob_parts p ON p.blob_id = b.id WHERE w.name = $1`,
		workspace, version).Scan(&sealed)
	if err != nil || sealed == nil && version > 0 {
		t.Fatalf("read state %d of %s: %v", version, workspace, err)
	}
	if sealed == nil {
		return map[string]Instance{}
	}
	opened, err := key.Open(sealed, managedstate.MaxState)
	if err != nil {
		t.Fatal(err)
	}
	var state struct {
		Resources []struct {
			Instances []struct {
				Key    string `json:"index_key"`
				Status string
			}
		}
	}
	if err := json.Unmarshal(opened, &state); err != nil {
		t.Fatal(err)
	}
	found := map[string]Instance{}
	for _, r := range state.Resources {
		for _, i := range r.Instances {
			found[i.Key] = Instance{Tainted: i.Status == "tainted"}
		}
	}
	return found
}

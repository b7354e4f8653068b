// Package site gives whole-system tests a place to run in: a database with one
// cluster, a git server, and agents as processes of the built program.
//
// It must not know what is tested: it claims nothing about how a run ends.
package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
	"github.com/tendril-run/tendril/internal/trust"
)

// Patience is how long a test waits for what must happen, on a machine that does
// nothing else; see package patience.
const Patience = 2 * time.Minute

// Site is one database with one cluster, and a git server.
type Site struct {
	*queuetest.World
	T   testing.TB
	Git *gittest.Server
	// QueueURL is where agents reach the queue: the database, or the gateway.
	QueueURL string
	// Gateway is nil where agents reach the database itself.
	Gateway *Gateway
	// ByKey has agents join by a key of their own, in place of the cluster's token.
	ByKey bool
	// Keep is a directory for what agents share.
	Keep string
}

// Meeting makes a directory in which a test and its templates meet, whoever
// they run as.
func Meeting(t testing.TB) string {
	t.Helper()
	// Below one that lists nothing to others, so it is not among what a run may
	// have left behind anywhere.
	dir := filepath.Join(pgtest.Dir(t), "meeting")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// New makes a site in a database of the test's own on the shared server.
func New(t testing.TB) *Site {
	t.Helper()
	return On(t, queuetest.NewWorld(t))
}

// On makes a site in a world that is there.
func On(t testing.TB, w *queuetest.World) *Site {
	t.Helper()
	s := &Site{World: w, T: t, Git: gittest.NewServer(t), Keep: Meeting(t)}
	switch way := way(t); way {
	case "https", "key":
		s.Serve()
		s.ByKey = way == "key"
	case "pgbouncer":
		s.QueueURL = pgbouncer.Start(t, w.URL, nil).URL(t, w.AgentURL(t))
	default:
		s.QueueURL = w.AgentURL(t)
	}
	return s
}

// Template serves files as a repository tagged v1 and returns its URL.
func (s *Site) Template(name string, files map[string]string) (url string) {
	s.T.Helper()
	repo, _ := s.Git.Repo(name, gittest.Text(files), "v1")
	return repo.URL
}

// SnapshotOf is a snapshot of version v1 of a repository.
func SnapshotOf(repo, workspace string, vars map[string]any) string {
	snapshot := map[string]any{
		"template_source": map[string]any{"repo": repo, "version": "v1"}, "workspace": workspace,
	}
	if vars != nil {
		snapshot["terraform_vars"] = vars
	}
	text, err := json.Marshal(snapshot)
	if err != nil {
		panic(err) // maps of strings and numbers always encode
	}
	return string(text)
}

// DeployTemplate inserts the row that is a whole deploy.
func (s *Site) DeployTemplate(repo, workspace string, vars map[string]any) uuid.UUID {
	s.T.Helper()
	return s.DeploySnapshot(s.T, SnapshotOf(repo, workspace, vars))
}

// Await waits until the query, which answers one boolean, says true.
func (s *Site) Await(what, query string, args ...any) {
	s.T.Helper()
	limit := patience.Begin(Patience)
	for {
		var yes bool
		if err := s.Conn.QueryRow(s.T.Context(), query, args...).Scan(&yes); err != nil {
			s.T.Fatalf("waiting for %s: %v", what, err)
		}
		if yes {
			return
		}
		if limit.Over() {
			s.T.Fatalf("timed out waiting for %s", what)
		}
		limit.Pause()
	}
}

// AwaitEnd waits for a provision's end and answers its Status.
func (s *Site) AwaitEnd(id uuid.UUID) string {
	s.T.Helper()
	s.Await("the provision's end", "SELECT status IN ('SUCCESS', 'FAILED', 'CANCELLED') FROM public.provisions WHERE id = $1", id)
	return s.Status(s.T, id)
}

// AwaitLine waits until a provision's log says the text; see runlog.Says.
func (s *Site) AwaitLine(id uuid.UUID, text string) {
	s.T.Helper()
	limit := patience.Begin(Patience)
	for !runlog.Says(s.Log(s.T, id), text) {
		if limit.Over() {
			s.T.Fatalf("timed out waiting for the line %q", text)
		}
		limit.Pause()
	}
}

// AwaitPrinted waits until what a provision's provisioners printed, without whitespace,
// matches, and answers the match with its groups.
func (s *Site) AwaitPrinted(id uuid.UUID, pattern *regexp.Regexp) []string {
	s.T.Helper()
	limit := patience.Begin(Patience)
	for {
		if match := pattern.FindStringSubmatch(runlog.Printed(s.Log(s.T, id))); match != nil {
			return match
		}
		if limit.Over() {
			s.T.Fatalf("timed out waiting for %s in:\n%s", pattern, s.Log(s.T, id))
		}
		limit.Pause()
	}
}

// Message is a provision's error message.
func (s *Site) Message(id uuid.UUID) string {
	s.T.Helper()
	return s.Text(s.T, "SELECT coalesce(error_message, '') FROM public.provisions WHERE id = $1", id)
}

// SharedState is agent configuration that keeps all state in one place, so that
// any agent may run any workspace. One uid writes it, whichever agent it is.
func (s *Site) SharedState() string {
	return fmt.Sprintf("uids = \"off\"\n[state]\nbackend = \"local\"\n[state.config.local]\npath = %q\n", s.StatePath("{workspace_id}"))
}

// StatePath is where SharedState keeps a workspace's state.
func (s *Site) StatePath(workspaceID string) string {
	return filepath.Join(s.Keep, workspaceID, "terraform.tfstate")
}

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
	opened := s.OpenState(t, workspace, version, identity)
	if opened == nil {
		return map[string]Instance{}
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

// OpenState is what is in a version of a workspace's managed state, or in its newest, 0; nil
// where there is none yet.
func (s *Site) OpenState(t testing.TB, workspace string, version int64, identity string) []byte {
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
		return nil
	}
	opened, err := key.Open(sealed, managedstate.MaxState)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

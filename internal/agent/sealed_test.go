package agent

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// sealedRepo is the template's repository in these tests.
const sealedRepo = "https://git.example/t"

// sealed seals a text for a variable in a workspace of the cluster prod, to the
// key of the identities.
func sealed(t *testing.T, to seal.Identities, name, workspace, text string) string {
	t.Helper()
	return sealedFor(t, to, seal.Use{Cluster: "prod", Workspace: workspace, Repo: sealedRepo, Name: name}, text)
}

func sealedFor(t *testing.T, to seal.Identities, use seal.Use, text string) string {
	t.Helper()
	recipient, err := seal.ParseRecipient(to.Public())
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	message, err := seal.Variable{Use: use, Value: value}.Seal(recipient)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// assignmentOf is one in workspace acme/prod with these sealed variables.
func assignmentOf(t *testing.T, vars map[string]string) provision.Assignment {
	t.Helper()
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": sealedRepo, "version": "v1"}, "workspace": "acme/prod", "sealed_vars": vars,
	})
	if err != nil {
		t.Fatal(err)
	}
	return provision.Assignment{ClaimID: uuid.New(), Workspace: "acme/prod", Snapshot: snapshot}
}

// While a key is replaced messages to either are opened, whichever of them the
// cluster's is.
func TestSealedVariablesWhileKeysRotate(t *testing.T) {
	t.Parallel()
	old, current := seal.Identities{newIdentity(t)}, seal.Identities{newIdentity(t)}
	for _, cluster := range []seal.Identities{old, current} {
		b := &sealedVars{keys: &keys{own: seal.Identities{current[0], old[0]}, cluster: cluster.Public()}, cluster: "prod"}
		got, _, err := b.open(assignmentOf(t, map[string]string{
			"before": sealed(t, old, "before", "acme/prod", "sealed-to-the-old-key"), "after": sealed(t, current, "after", "acme/prod", "sealed-to-the-new-key"),
		}))
		if err != nil || string(got["before"]) != `"sealed-to-the-old-key"` || string(got["after"]) != `"sealed-to-the-new-key"` {
			t.Errorf("openSealed() = %s, %v, want both", got, err)
		}
	}
}

func TestSealedVariablesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	own, other := seal.Identities{newIdentity(t), newIdentity(t)}, seal.Identities{newIdentity(t)}
	many := map[string]string{}
	for i := range seal.MaxVariables + 1 {
		many[fmt.Sprintf("v%d", i)] = sealed(t, own, "v", "acme/prod", "hunter2-hunter2")
	}
	for name, c := range map[string]struct {
		vars    map[string]string
		cluster string
		want    []string
	}{
		"of another key": {map[string]string{"a": sealed(t, other, "a", "acme/prod", "hunter2-hunter2")}, own.Public(),
			[]string{"sealed_vars.a: sealed to another key", seal.Fingerprint(own.Public()), seal.Fingerprint(own[1:].Public()), "Seal the value again"}},
		"of a cluster's key that is not ours": {map[string]string{"a": sealed(t, other, "a", "acme/prod", "hunter2-hunter2")}, other.Public(),
			[]string{seal.Fingerprint(own.Public()), seal.Fingerprint(other.Public()), "identity_file", "set_cluster_key"}},
		"of a cluster without a key": {map[string]string{"a": sealed(t, other, "a", "acme/prod", "hunter2-hunter2")}, "", []string{seal.Fingerprint(own.Public()), "no key"}},
		"of another variable":        {map[string]string{"motd": sealed(t, own, "password", "acme/prod", "hunter2-hunter2")}, own.Public(), []string{"sealed_vars.motd: ", "for the variable password, and this run is for the variable motd"}},
		"of another workspace":       {map[string]string{"a": sealed(t, own, "a", "acme/dev", "hunter2-hunter2")}, own.Public(), []string{"sealed_vars.a: ", "for the workspace acme/dev, and this run is for the workspace acme/prod"}},
		"two": {map[string]string{"a": sealed(t, other, "a", "acme/prod", "hunter2-hunter2"), "b": sealed(t, own, "c", "acme/prod", "hunter2-hunter2"), "d": sealed(t, own, "d", "acme/prod", "hunter2-hunter2")},
			own.Public(), []string{"sealed_vars.a: ", "sealed_vars.b: "}},
		"too many": {many, own.Public(), []string{"101 values, at most 100"}},
	} {
		got, _, err := (&sealedVars{keys: &keys{own: own, cluster: c.cluster}, cluster: "prod"}).open(assignmentOf(t, c.vars))
		f, ok := errors.AsType[*provision.Failure](err)
		if !ok || f.Code != provision.CodeSealedInvalid || got != nil || strings.Contains(f.Message, "hunter2") {
			t.Errorf("openSealed(%s) = %s, %v, want a Failure with %s and no value", name, got, err, provision.CodeSealedInvalid)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(f.Message, want) {
				t.Errorf("openSealed(%s) = %s, want %q in it", name, f.Message, want)
			}
		}
	}
}

// The agent opens what is sealed and hands it to the child; what it cannot open
// ends the provision before there is one.
func TestAgentOpensSealedVariables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	a.says(t, "registered")
	text, err := os.ReadFile(filepath.Join(w.data, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := seal.ParseIdentities("identity", string(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Text(t, "SELECT age_public_key FROM public.clusters"); got != own.Public() {
		t.Fatalf("the cluster's key = %s, want the agent's", got)
	}
	a.says(t, "key="+seal.Fingerprint(own.Public()))
	deploy := func(workspace, message string) uuid.UUID {
		snapshot, err := json.Marshal(map[string]any{
			"template_source": map[string]any{"repo": sealedRepo, "version": "v1"}, "workspace": workspace,
			"terraform_vars": script{Dir: w.meet, Steps: []string{"opened password", "succeed"}}, "sealed_vars": map[string]string{"password": message},
		})
		if err != nil {
			t.Fatal(err)
		}
		return w.DeploySnapshot(t, string(snapshot))
	}
	id := deploy("acme/prod", sealed(t, own, "password", "acme/prod", "hunter2-hunter2"))
	w.becomes(t, id, "SUCCESS")
	if want := fmt.Sprintf("password is %x", sha256.Sum256([]byte(`"hunter2-hunter2"`))); !strings.Contains(w.Log(t, id), want) {
		t.Errorf("the child says %q, want %q", w.Log(t, id), want)
	}
	stranger := deploy("acme/dev", sealed(t, seal.Identities{newIdentity(t)}, "password", "acme/dev", "hunter2-hunter2"))
	w.becomes(t, stranger, "FAILED/sealed_invalid")
	// Nothing is held for it: the next one in the workspace runs.
	w.becomes(t, deploy("acme/dev", sealed(t, own, "password", "acme/dev", "hunter2-hunter2")), "SUCCESS")
	a.stops(t)
	w.wantNothingLeft(t)
	if strings.Contains(a.log.String(), "hunter2") {
		t.Error("the agent's log shows the value")
	}
}

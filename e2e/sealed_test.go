package e2e

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/process"

	"github.com/tendril-run/tendril/e2e/site"
)

// lives lets runs end in each way but for those that begin with a kill.
func (k *keeper) lives(fates map[string]string) {
	k.T.Helper()
	ids := map[string]uuid.UUID{}
	for fate := range fates { // at once
		ids[fate] = k.deploy("acme/"+fate, fate)
	}
	for fate, want := range fates {
		if got := k.AwaitEnd(ids[fate]); got != want {
			k.T.Fatalf("provision %s = %s: %s, want %s", fate, got, k.Message(ids[fate]), want)
		}
		log := k.Log(k.T, ids[fate])
		for _, want := range []string{"password is ***", "sealed_vars.undeclared: the template does not declare"} {
			if !strings.Contains(log, want) && (fate == "well" || fate == "apply") {
				k.T.Errorf("the log of %s lacks %q:\n%s", fate, want, log)
			}
		}
	}
}

// live deploys what runs until it is killed, and returns its process.
func (k *keeper) live(workspace string) (id uuid.UUID, exec int) {
	k.T.Helper()
	agent := k.agents[0].Cmd.Process.Pid
	before, err := children(agent)
	if err != nil {
		k.T.Fatal(err)
	}
	id = k.deploy(workspace, "wait")
	k.AwaitLine(id, "waiting")
	after, err := children(agent)
	if err != nil {
		k.T.Fatal(err)
	}
	for _, child := range after {
		if !slices.Contains(before, child) {
			return id, child
		}
	}
	k.T.Fatal("the live run has no process")
	return id, 0
}

// children are the processes that one has started.
func children(pid int) (pids []int, err error) {
	all, err := process.Descendants(pid)
	for _, child := range all {
		if child.Parent == pid {
			pids = append(pids, child.PID)
		}
	}
	return pids, err
}

// wantLiveFiles looks at the files that a live run has of its variables.
func (k *keeper) wantLiveFiles(workspace uuid.UUID) (secrets string) {
	k.T.Helper()
	secrets = filepath.Join(k.agents[0].Dir, "work", workspace.String(), "secrets")
	found := 0
	err := filepath.WalkDir(secrets, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			found++
		}
		if err == nil && info.Mode().Perm() != want {
			k.T.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
		return err
	})
	if err != nil || found < 4 { // two of variables, the plan, the credentials
		k.T.Errorf("the live run has %d files, %v, want those of its variables and the plan", found, err)
	}
	return secrets
}

// What is sealed, and a sensitive output, are in the live run's files and in
// Terraform's state, and nowhere else, in no form and whatever becomes of the
// run. Here states are in the database, and agents reach it by a gateway.
func TestSealedValuesAppearNowhere(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, []string{"one", "two"}, true)
	// What waits for approval is kept, but by nobody who could read it, and what
	// is ephemeral is given to the apply anew.
	approved := k.deploy("acme/approval", "well")
	k.lives(map[string]string{"well": "SUCCESS", "plan": "FAILED/plan_failed", "apply": "FAILED/apply_failed", "hook": "FAILED/policy_refused"})
	k.Await("approval to be asked for", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", approved)
	k.wantNowhere("after runs that ended, and while a plan waits")

	child, exec := k.live("acme/child")
	if err := syscall.Kill(exec, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := k.AwaitEnd(child); got != "FAILED/exec_died" {
		t.Errorf("the run whose process was killed = %s: %s", got, k.Message(child))
	}
	killed, exec := k.live("acme/killed")
	secrets := k.wantLiveFiles(uuid.MustParse(k.Text(t, "SELECT workspace_id::text FROM public.provisions WHERE id = $1", killed)))
	one := k.agents[0]
	_ = syscall.Kill(one.Cmd.Process.Pid, syscall.SIGKILL)
	if err := syscall.Kill(exec, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-one.Done
	if _, err := os.Stat(filepath.Join(secrets, "sealed.tfvars.json")); err != nil {
		t.Errorf("what was killed left no file of sealed variables (%v), so the test shows nothing", err)
	}
	k.lookAt("the killed agent's log", one.Out.String())

	// Another agent applies what was approved.
	k.agents[1].Start()
	k.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", approved)
	if got := k.AwaitEnd(approved); got != "SUCCESS" {
		t.Fatalf("the approved provision = %s: %s", got, k.Message(approved))
	}
	one.Start()
	if got := k.AwaitEnd(killed); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s: %s, want FAILED/agent_restarted", got, k.Message(killed))
	}
	k.destroyAll()
	k.wantNowhere("in the end")
	k.wantSealedOutput(approved)
	k.wantTheSearchToFind()
}

// The same with states that are files of the agent's: the one place where the
// values are to be found afterwards, by root and the run's own user.
func TestSealedValuesAppearNowhereButInLocalState(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, []string{"one"}, false)
	approved := k.deploy("acme/approval", "well")
	k.lives(map[string]string{"well": "SUCCESS", "apply": "FAILED/apply_failed"})
	k.Await("approval to be asked for", "SELECT status = 'AWAITING_APPROVAL' FROM public.provisions WHERE id = $1", approved)
	k.Exec(t, "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE id = $1", approved)
	if got := k.AwaitEnd(approved); got != "SUCCESS" {
		t.Fatalf("the approved provision = %s: %s", got, k.Message(approved))
	}
	k.wantNowhere("before what exists is destroyed")
	k.destroyAll()
	k.wantNowhere("in the end")
}

// destroyAll destroys what the runs that went well have made; the engine shows
// what it takes away.
func (k *keeper) destroyAll() {
	k.T.Helper()
	var ids []uuid.UUID
	for _, workspace := range []string{"acme/well", "acme/approval"} {
		var id uuid.UUID
		err := k.Conn.QueryRow(k.T.Context(), `INSERT INTO public.provisions (cluster_id, operation, config_snapshot)
			SELECT cluster_id, 'destroy', config_snapshot - 'approval' FROM public.provisions WHERE config_snapshot ->> 'workspace' = $1 LIMIT 1 RETURNING id`, workspace).Scan(&id)
		if err != nil {
			k.T.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if got := k.AwaitEnd(id); got != "SUCCESS" {
			k.T.Fatalf("the destroy = %s: %s", got, k.Message(id))
		}
	}
	k.ids = append(k.ids, ids...)
}

// wantSealedOutput opens what the requester gets.
func (k *keeper) wantSealedOutput(id uuid.UUID) {
	k.T.Helper()
	message := k.Text(k.T, "SELECT outputs -> 'token' ->> 'sealed' FROM public.provisions WHERE id = $1", id)
	opened, err := age.Decrypt(armor.NewReader(strings.NewReader(message)), k.asks)
	if err != nil {
		k.T.Fatal(err)
	}
	if got, err := io.ReadAll(opened); err != nil || string(got) != `"`+k.others[0]+`"` {
		k.T.Errorf("the requester opens %q, %v, want the sensitive output", got, err)
	}
}

// What Terraform itself shows, because its template does not call it sensitive,
// is hidden all the same in what the database gets of it.
func TestSealedValuesThatTheTemplateShows(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	agent := s.NewAgent("one", 2, "").Start()
	repo := s.Template("open", map[string]string{"main.tf": `
variable "undeclared" { type = string }
resource "terraform_data" "a" { input = { "text" = "with ${var.undeclared}" } }
output "shown" { value = "shown: ${var.undeclared}" }
output "alone" { value = [var.undeclared] }
`})
	values := map[string]any{"undeclared": canary()}
	for range 2 { // the second time there is nothing to do
		id := deploySealed(s, keyOf(agent), repo, "acme/open", nil, values)
		if got := s.AwaitEnd(id); got != "SUCCESS" {
			t.Fatalf("provision = %s: %s", got, s.Message(id))
		}
	}
	all := dump(s)
	if at := strings.Index(all, "canary-"); at >= 0 {
		t.Errorf("the database holds the value: …%s…", all[max(0, at-200):min(len(all), at+60)])
	}
	if !strings.Contains(all, "with ***") {
		t.Error("the database lacks what is made of the value, masked")
	}
}

package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// checks has the site ask how a machine is, by the template's commit.
func (s *site) checks(repo, commit string, timeout int) {
	s.ask(repo, "v1", "", nil)
	s.job.Assignment.Operation, s.job.Assignment.PinnedCommit = provision.OperationRefresh, commit
	s.job.Check = &job.Check{Machine: "web", Check: provision.HealthCheck{
		Kind: provision.CheckCommand, Target: "10.0.0.100", Port: 22, Interval: 60, Timeout: timeout,
		Command: &provision.CommandCheck{Repo: repo, Version: "v1", Commit: commit, Workspace: "acme/test", ID: "abc123", ExternalID: "vm-12345", Pool: "lab"},
	}}
}

const (
	healthBlock = "health { command = [\"./health\", \"--deep\"] }\n"
	onceHealth  = `provisioner "script" {
  speak        = "once"
  provision    = ["./health"]
  terminate    = ["./health"]
  health_check = ["./health"]
}
`
	linesHealth = "provisioner \"script\" {\n  speak = \"lines\"\n  command = [\"./health\"]\n}\nhealth {}\n"
)

// A command of the template says how a machine is: the one of its health block, or its
// script in either form.
func TestHealthByCommand(t *testing.T) {
	t.Parallel()
	// What a command is told, and nothing else.
	const told = `[ "$*" = --deep ] && [ "$TENDRIL_WORKSPACE $TENDRIL_MACHINE $TENDRIL_MACHINE_ID $TENDRIL_POOL $TENDRIL_ADDRESS $TENDRIL_EXTERNAL_ID $TENDRIL_SSH_PORT" = "acme/test web abc123 lab 10.0.0.100 vm-12345 22" ] && [ -z "${TENDRIL_RUN:-}" ]`
	const seeds = `{"action":"health_check","contract_id":"abc123","external_id":"vm-12345","ip_address":"10.0.0.100","ssh_port":22}`
	for name, tt := range map[string]struct {
		file, program string
		timeout       int
		code          provision.Code // "" for healthy
		why           string
	}{
		"healthy":              {healthBlock, told, 20, "", ""},
		"unhealthy":            {healthBlock, "echo looking; echo 'the disk  is full' >&2; exit 2", 20, job.CodeUnhealthy, "./health: exit status 2: the disk is full"},
		"silent":               {healthBlock, "exit 1", 20, job.CodeUnhealthy, "./health: exit status 1"},
		"killed":               {healthBlock, "kill -9 $$", 20, job.CodeUnhealthy, "signal: killed"},
		"a tool is missing":    {healthBlock, "exec /nowhere/curl", 20, provision.CodeInternal, "exit status 127"},
		"late":                 {healthBlock, "sleep 100 & exec sleep 100", 1, job.CodeUnhealthy, "./health did not answer within 1s"},
		"deaf":                 {healthBlock, "trap '' INT TERM; while :; do sleep 1; done", 1, job.CodeUnhealthy, "./health did not answer within 1s"},
		"a flood":              {healthBlock, "head -c 50000000 /dev/zero | tr '\\0' x; head -c 50000000 /dev/zero | tr '\\0' '\\n' >&2; exit 1", 30, job.CodeUnhealthy, "exit status 1"},
		"leaves a process":     {healthBlock, "sleep 1000 >/dev/null 2>&1 &", 20, "", ""},
		"not allowed":          {"health { command = [\"/bin/true\"] }\n", "", 20, provision.CodePolicyRefused, "policy.programs"},
		"not a command's":      {"health { tcp = 22 }\n", "", 20, provision.CodeInternal, "no command"},
		"once":                 {onceHealth, "read -r r; [ \"$r\" = '" + seeds + "' ] || exit 1; echo '{\"success\": true}'", 20, "", ""},
		"once, unhealthy":      {onceHealth, `echo '{"success": false, "error": "no  route"}'`, 20, job.CodeUnhealthy, "no route"},
		"once, says so":        {onceHealth, `echo '{"success": true, "health": "unhealthy"}'`, 20, job.CodeUnhealthy, "./health says that it is unhealthy"},
		"once, nobody knows":   {onceHealth, `echo '{"success": false, "error": "the API is down", "retry_possible": true}'`, 20, provision.CodeInternal, "the API is down"},
		"once, nonsense":       {onceHealth, "echo hello", 20, provision.CodeInternal, "not JSON"},
		"once, late":           {onceHealth, "exec sleep 100", 1, job.CodeUnhealthy, "./health did not answer within 1s"},
		"lines, not described": {linesHealth, "head -n1 >/dev/null; " + `echo '{"type":"result","ok":true,"protocol":"tendril-provisioner/1","name":"x","version":"1","actions":["plan","apply","destroy"]}'`, 20, provision.CodeInternal, "does not describe the action health"},
		"lines, nonsense":      {linesHealth, "echo hello", 20, provision.CodeInternal, "could not be used"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.job.Settings.LogLimit = 64 << 10
			files := gittest.Text(map[string]string{"variables.tf": "", "tendril.hcl": tt.file})
			files["health"] = gittest.Executable("#!/bin/sh\n" + tt.program + "\n")
			repo, commit := s.git.Repo("checked", files, "v1")
			s.checks(repo.URL, commit, tt.timeout)
			got, run := s.run()
			if tt.code == "" {
				wantEnd(t, got, provision.Success, "")
				return
			}
			wantEnd(t, got, provision.Failed, tt.code)
			if !strings.Contains(got.Detail.ErrorMessage, tt.why) || strings.Contains(got.Detail.ErrorMessage, "\n") || len(got.Detail.ErrorMessage) > 1000 {
				t.Errorf("why = %.1000q, want a line with %q", got.Detail.ErrorMessage, tt.why)
			}
			if n := len(run.text()); n > 1<<20 {
				t.Errorf("its log has %d bytes", n)
			}
		})
	}
}

// A program that speaks lines is asked with the machine alone.
func TestHealthByLines(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"bash": "bash/fake-cloud", "python": "python/fake_cloud.py"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			cloud := t.TempDir()
			s.env = append(s.env, "FAKE_CLOUD="+cloud)
			files := gittest.Text(map[string]string{"variables.tf": "", "tendril.hcl": linesHealth})
			files["health"] = gittest.Executable(example(t, path))
			repo, commit := s.git.Repo("checked", files, "v1")
			for _, status := range []string{"running", "stopped"} {
				vm := fmt.Sprintf(`{"id": "abc123", "mark": "abc123", "name": "web", "status": %q}`, status)
				if err := os.WriteFile(filepath.Join(cloud, "vm-12345"), []byte(vm), 0o600); err != nil {
					t.Fatal(err)
				}
				s.checks(repo.URL, commit, 20)
				got, _ := s.run()
				if status == "running" {
					wantEnd(t, got, provision.Success, "")
				} else {
					wantEnd(t, got, provision.Failed, job.CodeUnhealthy)
				}
			}
		})
	}
}

// The command is that of the commit that a run has had: also once the tag has moved, without
// a question to the git server, and of no other commit.
func TestHealthOfThePinnedCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	files := func(status int) gittest.Files {
		files := gittest.Text(map[string]string{"variables.tf": "", "tendril.hcl": healthBlock})
		files["health"] = gittest.Executable(fmt.Sprintf("#!/bin/sh\nexit %d\n", status))
		return files
	}
	repo, pinned := s.git.Repo("checked", files(0), "v1")
	s.checks(repo.URL, pinned, 20)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	repo.Git("tag", "-f", "v1", repo.Commit(files(1)))
	s.git.Close()
	s.checks(repo.URL, pinned, 20)
	got, _ = s.run()
	wantEnd(t, got, provision.Success, "")
	// A repository that the agent's policy does not allow any more.
	s.job.Settings.Policy.Repos = []string{"https://git.example/**"}
	got, _ = s.run()
	wantEnd(t, got, provision.Failed, provision.CodeRepoRefused)
}

// A run says how its machines are to be checked: by which template, at which commit, and
// what the machine is known by.
func TestChecksOfARun(t *testing.T) {
	t.Parallel()
	c := newCloud(t, true, 60)
	file := strings.Replace(fmt.Sprintf(scriptTemplate, true, 60), "idempotent", "health_check = [\"./provision.sh\"]\n  idempotent", 1)
	files := gittest.Text(map[string]string{"variables.tf": scriptVariables, "tendril.hcl": file})
	files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
	repo, commit := c.git.Repo("checked", files, "v1")
	c.repo = repo
	got, run := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	listed := run.machines()
	if len(listed) != 1 || listed[0].Check == nil || listed[0].Check.Command == nil {
		t.Fatalf("machines = %+v, want one with a check by its script", listed)
	}
	check := *listed[0].Check
	command := *check.Command
	id := command.ID
	if want := (provision.CommandCheck{Repo: repo.URL, Version: "v1", Commit: commit, Workspace: "acme/test", ID: id, ExternalID: "vm-" + id, Made: command.Made}); id == "" || command != want || command.Made == 0 {
		t.Errorf("command = %+v, want %+v", command, want)
	}
	if check.Kind != provision.CheckCommand || check.Target != "10.0.0.7" || check.Port != 2222 || check.Interval != 300 || check.Timeout != 10 || check.UnhealthyAfter != 3 {
		t.Errorf("check = %+v", check)
	}
}

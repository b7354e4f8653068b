package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// The whole life of a workspace, by the verbs alone.
func TestLifeOfAWorkspace(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	own := []string{"TRELLIS_CONFIG=" + filepath.Join(t.TempDir(), "config.toml")} // and so one key
	beginEnv(t, own, "up", "--data-dir", dir, "--listen", "127.0.0.1:0").await(t, "Ctrl-C ends everything.")
	run := func(line string, more ...string) result {
		return trellisEnv(t, own, append(append(typed(line), more...), "--data-dir", dir)...)
	}
	const hello = " --template hello --workspace life/one --var name=Ada --var steps=1 --var pause_seconds=0"

	run("workspaces").want(t, "workspaces of nothing", exitOK, "There is no workspace yet")
	run("destroy life/one --yes").want(t, "destroy of nothing", exitFailed, `there is no workspace "life/one"`)
	run("plan"+hello+" --follow").want(t, "plan", exitOK, "Run 1 succeeded")
	if p := status(t, dir, "1"); p.Operation != provision.OperationPlan || p.Plan == nil || p.Plan.Add == 0 {
		t.Errorf("the plan is %s with %+v, want one that adds something", p.Operation, p.Plan)
	}
	run("resources life/one").want(t, "resources after a plan", exitOK, "Nothing exists in workspace life/one")
	run("outputs life/one").want(t, "outputs after a plan", exitFailed, "no outputs yet")
	run("destroy life/one --yes").want(t, "destroy of what was never deployed", exitFailed, "nothing was ever deployed")

	// A person's word.
	run("deploy"+hello+" --approval always --follow").want(t, "deploy", exitAwaits, "Run 2 needs approval: 2 to add.", "approve 2 --follow")
	run("workspaces").want(t, "workspaces", exitOK, "life/one", "2 AWAITING_APPROVAL", "awaiting approval")
	run("approve 2").want(t, "approve without --yes", exitUsage, "+ terraform_data", "to add", "Digest", "--yes")
	run("approve 2 --digest "+strings.Repeat("0", 64)).want(t, "approve of another plan", exitFailed, "another plan")
	run("approve 2 --yes --follow").want(t, "approve", exitOK, "The plan was approved.", "Run 2 succeeded")
	run("approve 2 --digest "+strings.Repeat("0", 64)).want(t, "approve of what has ended", exitFailed, "does not need approval")
	run("approve 2").want(t, "approve of what has ended", exitFailed, "run 2 is SUCCESS and awaits no approval")
	run("deploy"+hello+" --var name=Eve --approval always").want(t, "deploy", exitOK, "Run 3 is queued")
	run("approve 3").want(t, "approve of what is still planned", exitUsage, "This applies the plan above")
	run("reject 3", "--reason", "not now").want(t, "reject", exitOK, "The plan of run 3 is rejected")
	run(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis status N", "N", "3")).want(t, "status of a rejected one", exitOK, "CANCELLED", "not now")
	run(pages.Code(t, "docs/SECURITY.md", "trellis status N -o json", "N", "3")).want(t, "status as JSON", exitOK, `"status": "CANCELLED"`)
	run("outputs life/one").want(t, "outputs", exitOK, `message = "Hello, Ada!"`)
	run("lock life/one", "--reason", "nothing starts here").want(t, "lock", exitOK, "") // else the run may have ended before it is cancelled
	run(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis retry N --plan", "N", "3")).want(t, "retry", exitOK, "Run 4 is queued")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis cancel N", "N", "4")).want(t, "cancel", exitOK, "")
	run("unlock life/one").want(t, "unlock", exitOK, "")

	// The state itself.
	run("state list life/one").want(t, "state list", exitOK, "terraform_data.greeting", "The state records")
	pulled := run("state pull life/one")
	if pulled.code != exitOK || !json.Valid([]byte(pulled.out)) || !strings.Contains(pulled.out, "Hello, Ada!") {
		t.Errorf("state pull = %d %q %q, want the state on stdout", pulled.code, pulled.out, pulled.stderr)
	}
	run(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis state versions WORKSPACE", "WORKSPACE", "life/one")).want(t, "state versions", exitOK, "VERSION", "SERIAL")
	run("state rm life/one terraform_data.greeting").want(t, "state rm without --yes", exitUsage, "--yes")
	run("state rm life/one terraform_data.greeting --yes").want(t, "state rm", exitOK, "Removed terraform_data.greeting")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis state rollback WORKSPACE VERSION", "WORKSPACE", "life/one", "VERSION", "1"), "--yes").want(t, "state rollback", exitOK, "The state records")
	run("state list life/one").want(t, "state list", exitOK, "terraform_data.greeting")
	run("drift").want(t, "drift of nothing", exitOK, "No workspace is checked")
	run("drift life/one --now --follow").want(t, "drift --now", exitOK, "No drift")
	run("drift life/one").want(t, "drift", exitOK, "life/one on cluster local: no drift")
	run(pages.Code(t, "docs/GUIDE.md", "trellis drift WORKSPACE --every 24h", "WORKSPACE", "life/one")).want(t, "drift --every", exitOK, "every 24h")

	r := run("resources life/one -o json")
	var resources []wire.Resource
	if err := json.Unmarshal([]byte(r.out), &resources); err != nil || len(resources) == 0 || resources[0].Type != "terraform_data" {
		t.Errorf("resources = %s, %v, want those of the template", r.out, err)
	}
	run("outputs 2 -o json").want(t, "outputs of a provision", exitOK, `"value": "Hello, Ada!"`)
	run("outputs 99").want(t, "outputs of none", exitFailed, "there is no run 99")

	// What keeps it waiting.
	run("lock life/one").want(t, "lock without a reason", exitUsage, "--reason is missing")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis lock WORKSPACE --reason …", "WORKSPACE", "life/one", "…", "cleaning")).want(t, "lock", exitOK, "Workspace life/one on cluster local is locked")
	run("deploy"+hello).want(t, "deploy to a locked one", exitOK, "Run 11 is queued")
	run("status 11").want(t, "status", exitOK, "cleaning")
	run("cancel 11").want(t, "cancel", exitOK, "Run 11 is cancelled.")
	run("unlock life/one").want(t, "unlock", exitOK, "is unlocked")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis clusters pause NAME", "NAME", "local"), "--reason", "maintenance").want(t, "pause", exitOK, "Cluster local is paused")
	run("clusters policy local --approval destructive --four-eyes").want(t, "set the policy", exitOK, "destructive", "Four eyes  true", "7 days")
	run("clusters policy local --approval never --four-eyes=false --approval-expiry 12h").want(t, "set it back", exitOK, "never", "12:00:00")
	run("clusters policy local -o json").want(t, "the policy", exitOK, `"approval": "never"`, `"four_eyes": false`, `"approvers": "operator"`)
	run("clusters policy local --approvers viewer").want(t, "a policy that cannot be", exitFailed, "approvers: must be one of operator, admin")
	run("deploy"+hello).want(t, "deploy to a paused one", exitOK, "Run 12 is queued")
	run("status 12").want(t, "status", exitOK, "paused")
	run("clusters resume local").want(t, "resume", exitOK, "Cluster local is resumed.")
	run("logs 12 --follow").want(t, "logs", exitOK, "Run 12 succeeded")
	run("destroy life/one").want(t, "destroy without --yes", exitUsage, "This destroys everything in workspace life/one", "--yes")
	run("destroy life/one --yes --follow").want(t, "destroy", exitOK, "Run 13 succeeded")
	run("resources life/one").want(t, "resources after a destroy", exitOK, "Nothing exists in workspace life/one")
	run(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis unlock WORKSPACE --state-lock ID", "WORKSPACE", "life/one", "ID", "12ab"), "--yes").want(t, "unlock of a state", exitOK, "Run 14 is queued")

	// Another cluster's tokens.
	run("clusters create prod").want(t, "clusters create", exitOK, "Cluster prod is made")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis clusters pause prod")).want(t, "pause", exitOK, "Cluster prod is paused")
	for _, rotate := range []string{
		pages.Code(t, "docs/OPERATIONS.md", "trellis clusters rotate-token prod --overlap 1h"),
		pages.Code(t, "docs/SECURITY.md", "trellis clusters rotate-token NAME --overlap 0s", "NAME", "prod"),
	} {
		if r := run(rotate); r.code != exitOK || !strings.HasPrefix(r.out, "tnd_") || strings.Count(r.out, "\n") != 1 {
			t.Errorf("%s = %d %q %q, want the token alone on stdout", rotate, r.code, r.out, r.stderr)
		}
	}
	list := run(pages.Code(t, "docs/OPERATIONS.md", "trellis clusters tokens list prod"))
	list.want(t, "clusters tokens list", exitOK, "MADE")
	lines := strings.Split(list.out, "\n")
	run(pages.Code(t, "docs/OPERATIONS.md", "trellis clusters tokens revoke prod ID", "ID", strings.Fields(lines[1])[0])).want(t, "clusters tokens revoke", exitOK, "revoked")
}

// typed are the words of a command as a page has it.
func typed(command string) []string { return strings.Fields(strings.TrimPrefix(command, "trellis ")) }

package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// An agent is lost while it applies; an admin frees its workspace.
func testRelease(t *testing.T, url string, env []string, token string) {
	run := func(args ...string) result { return trellisEnv(t, env, args...) }
	deploy := func(number string) {
		t.Helper()
		run("deploy", "--repo", "https://git.example/a/b", "--version", "v1", "--workspace", "a/b").want(t, "deploy", exitOK, "Run "+number+" is queued")
	}
	deploy("1")
	loseDuringApply(t, url, token, false)
	deploy("2")

	run("status", "2").want(t, "status of what waits", exitOK, "The workspace is held by run 1: ", "trellis release a/b")
	run("release").want(t, "release of nothing", exitUsage, "give one argument, a workspace's name or id")
	run("release", "a/c").want(t, "release of none", exitFailed, `there is no workspace "a/c", or you have no access to it`)
	run(typed(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis release WORKSPACE --reason …", "WORKSPACE", "a/b", "…", "burnt"))...).want(t, "release", exitOK, "Workspace a/b on cluster prod is released; what is queued there may start.")
	run("logs", "1").want(t, "logs", exitOK, "An admin released the workspace (burnt).")
	run("release", "a/b").want(t, "release twice", exitFailed, `workspace "a/b" is not held: there is nothing to release`)
	if r := run("status", "2"); r.code != exitOK || strings.Contains(r.out, "held") {
		t.Errorf("status after the release: exit code %d\n%s%s", r.code, r.out, r.stderr)
	}
}

// What is queued waits for the agent that has the state, released or not: an
// admin is not told that it may start.
func testReleaseOfALocalState(t *testing.T, url string, env []string) {
	run := func(args ...string) result { return trellisEnv(t, env, args...) }
	token := strings.TrimSpace(run("clusters", "create", "edge").out)
	run("deploy", "--cluster", "edge", "--repo", "https://git.example/a/b", "--version", "v1", "--workspace", "local").want(t, "deploy", exitOK)
	loseDuringApply(t, url, token, true)
	r := run("release", "local")
	r.want(t, "release", exitOK, "Workspace local on cluster edge is released. Its state is a file on agent one on one.example; only that agent can run it.")
	if strings.Contains(r.out, "may start") {
		t.Errorf("release says %q, want nothing of a start", r.out)
	}
}

// The lines of an agent that was lost come late, and its result: who follows the log sees
// them, and the end that counts.
func testFollowOfALostRun(t *testing.T, url string, env []string) {
	run := func(args ...string) result { return trellisEnv(t, env, args...) }
	token := strings.TrimSpace(run("clusters", "create", "far").out)
	deployed := run("deploy", "--cluster", "far", "--repo", "https://git.example/a/b", "--version", "v1", "--workspace", "far", "-o", "json")
	deployed.want(t, "deploy", exitOK)
	number := regexp.MustCompile(`"number": (\d+)`).FindStringSubmatch(deployed.out)[1]
	q, claim := loseApplying(t, url, token, false)
	follower := beginEnv(t, env, "logs", number, "--follow")
	follower.await(t, "The agent of run "+number+" was lost.")
	line := func(n int64, text string) {
		t.Helper()
		if _, err := q.AppendLog(t.Context(), claim, n, []provision.LogChunk{{Stream: provision.Stdout, Text: text + "\n", EmittedAt: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		follower.await(t, text)
	}
	line(1, "the first late line")
	line(2, "the last line")
	if err := q.Report(t.Context(), claim, provision.Report{Status: provision.Success}); err != nil {
		t.Fatal(err)
	}
	if code := follower.end(t); code != exitOK {
		t.Errorf("logs --follow of a run that was settled late = %d, want 0\n%s", code, follower.said)
	}
	follower.await(t, "Run "+number+" succeeded")
	if log := run("logs", number).out; !strings.HasPrefix(follower.said.String(), log[:strings.Index(log, "the first")]) {
		t.Errorf("what was followed is\n%s\nwant the log\n%s", follower.said, log)
	}
}

// loseDuringApply claims a run and loses it while it applies.
func loseDuringApply(t *testing.T, url, token string, localState bool) {
	t.Helper()
	loseApplying(t, url, token, localState)
}

// loseApplying is the same for a test that goes on as the lost agent.
func loseApplying(t *testing.T, url, token string, localState bool) (q *pgqueue.Queue, claim uuid.UUID) {
	t.Helper()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: url, ListenURL: "off", Token: token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := q.Claim(t.Context(), uuid.New())
	if err != nil || a == nil {
		t.Fatalf("Claim() = %v, %v, want an assignment", a, err)
	}
	apply := provision.Detail{Stage: provision.StageApply, Commit: strings.Repeat("a", 40), LocalState: localState}
	if err := q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: apply}); err != nil {
		t.Fatalf("Report(apply) = %v, want nil", err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // a test's
	for _, statement := range []string{"UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 second'", "SELECT tendril.reap()"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return q, a.ClaimID
}

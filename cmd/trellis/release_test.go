package main

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/queuetest"
)

// An agent is lost while it applies; an admin frees its workspace.
func testRelease(t *testing.T, url string, env []string, token string) {
	run := func(args ...string) result { return trellisEnv(t, env, args...) }
	deploy := func(number string) {
		t.Helper()
		run("deploy", "--repo", "https://git.example/a/b", "--version", "v1", "--workspace", "a/b").want(t, "deploy", exitOK, "Provision "+number+" is queued")
	}
	deploy("1")
	loseDuringApply(t, url, token, false)
	deploy("2")

	run("status", "2").want(t, "status of what waits", exitOK, "The workspace is held by provision 1: ", "trellis release a/b")
	run("release").want(t, "release of nothing", exitUsage, "give one argument, a workspace's name or id")
	run("release", "a/c").want(t, "release of none", exitFailed, `there is no workspace "a/c" that you may see`)
	run("release", "a/b", "--reason", "the node is gone").want(t, "release", exitOK, "Workspace a/b on cluster prod is released; what is queued there may start.")
	run("logs", "1").want(t, "logs", exitOK, "An admin released the workspace (the node is gone).")
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

func loseDuringApply(t *testing.T, url, token string, localState bool) {
	t.Helper()
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: url, ListenURL: "off", Token: token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
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
}

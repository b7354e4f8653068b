package main

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/instance"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// What does not ask for a stack of its own shares one.
func TestOnOneStack(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	stack := up(t, dir)
	runtime, err := instance.ReadRuntime(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("Completion", func(t *testing.T) { testCompletion(t, dir) }) // of what is alone there
	t.Run("Login", func(t *testing.T) { testLogin(t, dir, runtime) })
	t.Run("FollowThroughTrouble", func(t *testing.T) { testFollowThroughTrouble(t, dir, runtime) })
	t.Run("ServeBesideUp", func(t *testing.T) { testServeBesideUp(t, stack, runtime) })
	t.Run("ServeTakesAChangedPassword", func(t *testing.T) { testServeTakesAChangedPassword(t, runtime) })
	t.Run("LookAfterIt", func(t *testing.T) { testLookAfterIt(t, dir, runtime) })
}

// What an admin looks after: the catalogue, members, webhooks.
func testLookAfterIt(t *testing.T, dir string, runtime instance.Runtime) {
	t.Parallel()
	run := func(line string) result {
		t.Helper()
		return trellis(t, append(typed(line), "--data-dir", dir)...)
	}
	for verb, want := range map[string]string{
		"clusters": "local", "clusters tokens": "MADE", "templates": "hello", "members": "admin",
		"webhooks": "no webhook", "api-tokens": "LAST USED", "contexts": "local",
	} {
		alone, listed := run(verb), run(verb+" list")
		head, _, _ := strings.Cut(listed.out, "\n") // a time in the rows may have changed
		if alone.code != exitOK || !strings.HasPrefix(alone.out, head) || !strings.Contains(alone.out+alone.stderr, want) {
			t.Errorf("trellis %s = %d %q %q, want the list with %q, as trellis %s list prints it", verb, alone.code, alone.out, alone.stderr, want, verb)
		}
	}
	run("clusters tokens local").want(t, "clusters tokens of one", exitOK, "MADE")
	repo := "file://" + dir + "/templates/hello.git"
	run("templates add greeting --version v1").want(t, "a template without a repository", exitUsage, "--repo and --version are needed")
	run("templates add greeting --repo "+repo+" --version v1 --approval always").want(t, "templates add", exitOK, "The template greeting is in the catalogue at v1", "templates show greeting")
	shown := result{}
	patience.AwaitShowing(t, "what the template declares", func() string { return shown.out }, func() bool {
		shown = run("templates show greeting")
		return strings.Contains(shown.out, "name: string, required") && strings.Contains(shown.out, "passphrase: string, sensitive")
	})
	run("templates inspect greeting --version v9").want(t, "templates inspect", exitOK, "templates show greeting --version v9")
	run("templates inspect nothing").want(t, "inspect of none", exitFailed, `there is no template "nothing"`)
	run("templates remove greeting").want(t, "templates remove", exitOK, "out of the catalogue")
	run("templates show greeting").want(t, "show of one removed", exitFailed, `there is no template "greeting"`)

	run("members invite ada@example.com boss").want(t, "a role that is none", exitUsage, "must be viewer, operator or admin")
	run(pages.Code(t, "docs/GUIDE.md", "trellis members invite EMAIL ROLE", "EMAIL", "ada@example.com", "ROLE", "viewer")).want(t, "members invite", exitOK, "ada@example.com is invited as viewer: have them sign in at "+runtime.URL+" and accept")
	run("members invitations").want(t, "members invitations", exitOK, "ada@example.com", "viewer")
	run("members uninvite Ada@Example.com").want(t, "members uninvite", exitOK, "Invitation of ada@example.com revoked")
	run("members uninvite ada@example.com").want(t, "uninvite of nobody", exitFailed, "no open invitation")
	run("members invitations").want(t, "members invitations", exitOK, "no open invitation")
	conn, err := pgx.Connect(t.Context(), runtime.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()

	// The local user is invited elsewhere, and answers.
	run("invitations").want(t, "invitations", exitOK, "You have no open invitation.")
	for _, org := range []string{"guests", "strangers"} {
		if _, err := conn.Exec(t.Context(), `WITH o AS (INSERT INTO public.orgs (name) VALUES ($1) RETURNING id)
			INSERT INTO public.invitations (org_id, user_id, role, expires_at) SELECT id, $2, 'viewer', now() + interval '1 day' FROM o`, org, instance.LocalUser); err != nil {
			t.Fatal(err)
		}
	}
	run("invitations").want(t, "invitations", exitOK, "guests", "strangers", "viewer")
	run("invitations accept guests").want(t, "invitations accept without --yes", exitUsage, "You join guests as viewer", "--yes")
	run("invitations decline strangers").want(t, "invitations decline", exitOK, "You declined the invitation to strangers.")
	run("invitations accept strangers --yes").want(t, "accept of one declined", exitFailed, "no open invitation")
	run(pages.Code(t, "docs/GUIDE.md", "trellis invitations accept ORGANISATION", "ORGANISATION", "guests")+" --yes").want(t, "invitations accept", exitOK, "You are viewer of guests now.")
	if _, err := conn.Exec(t.Context(), "DELETE FROM public.org_members WHERE org_id IN (SELECT id FROM public.orgs WHERE name = 'guests')"); err != nil {
		t.Fatal(err)
	}

	user := uuid.NewString()
	if _, err := conn.Exec(t.Context(), "INSERT INTO public.org_members (org_id, user_id, role) SELECT id, $1, 'viewer' FROM public.orgs WHERE name NOT IN ('guests', 'strangers')", user); err != nil {
		t.Fatal(err)
	}
	run("members set "+user+" operator").want(t, "members set", exitOK, user+" is operator now.")
	run("members list").want(t, "members list", exitOK, "operator", "Local user")
	run("members remove "+user).want(t, "members remove without --yes", exitUsage, "--yes")
	run("members remove "+user+" --yes").want(t, "members remove", exitOK, "is no member any more")
	run("members set "+user+" viewer").want(t, "set of nobody", exitFailed, "there is no member")

	run("webhooks list").want(t, "webhooks list of none", exitOK, "There is no webhook yet.")
	add := command(t, nil, "webhooks", "add", "team", "--kind", "slack", "--event", "drift", "--url-file", "-", "--data-dir", dir)
	add.Stdin = strings.NewReader("https://hooks.example/services/hunter2\n")
	if out, err := add.CombinedOutput(); err != nil || !strings.Contains(string(out), "The webhook team to ") || strings.Contains(string(out), "hunter2") {
		t.Errorf("webhooks add = %v %s, want it made, and nothing of its URL but the host", err, out)
	}
	run("webhooks list").want(t, "webhooks list", exitOK, "team", "slack", "hooks.example", "drift", "on")
	run(pages.Code(t, "docs/TROUBLESHOOTING.md", "trellis webhooks deliveries NAME", "NAME", "team")).want(t, "webhooks deliveries", exitOK, "Nothing")
	run("webhooks remove team").want(t, "webhooks remove", exitOK, "team")
	run("webhooks deliveries team").want(t, "deliveries of none", exitFailed, `there is no webhook "team"`)
}

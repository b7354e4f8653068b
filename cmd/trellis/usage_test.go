package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		want string
	}{
		{"tatus", `did you mean "status"?`},
		{"clusters crate x", `did you mean "create"?`},
		{"logs", "give one argument, a run's number or id"},
		{"deploy --nope", "unknown flag: --nope"},
		{"status -o xml", "must be text or json"},
		{"up extra", `trellis up takes no argument, and there is "extra"`},
		{"status 1 2", "give one argument at most"},
		{"status -n x", `--limit: "x" is no number`},
		{"drift a --every soon", `--every: "soon" is no time such as`},
		{"status --server nonsense", "must be like https://"},
		{"migrate --print --accept-newer", "give one of them"},
		{"up --slots 0", "--slots: from 1 to 64"},
	} {
		r := trellis(t, strings.Fields(tt.args)...)
		r.want(t, tt.args, exitUsage, tt.want, "--help")
		if r.out != "" || strings.Count(r.stderr, "\n") > 3 {
			t.Errorf("%s said %q and %q, want a few lines on stderr only", tt.args, r.out, r.stderr)
		}
	}
	trellis(t).want(t, "trellis", exitOK, "trellis demo")
	trellis(t, "version").want(t, "version", exitOK, "trellis ", fmt.Sprintf("contract %d, go1.", queue.Contract))
	trellis(t, "version", "-o", "json").want(t, "version -o json", exitOK, `"commit": `, fmt.Sprintf(`"contract": %d,`, queue.Contract), `"platform": `)
	if r := trellis(t, "--help"); strings.Contains(r.out, "The agent") {
		t.Errorf("the agent's verbs are not hidden:\n%s", r.out)
	}
	trellis(t, "tendril", "version").want(t, "tendril version", exitOK, "tendril ")
	trellis(t, "tendril", "run").want(t, "tendril run without configuration", exitUsage, "queue.url: missing")
}

func TestNothingRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, verb := range []string{"status", "logs 1", "cancel 1", "release a/b", "env", "migrate", "clusters list", "deploy --template hello --workspace a"} {
		r := trellis(t, append(strings.Fields(verb), "--data-dir", dir)...)
		r.want(t, verb, exitUnreachable, "trellis up is not running (looked in "+dir+"); start it with `trellis up`, or log in to a server: trellis login URL")
		if r.out != "" || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s said %q and %q, want one line on stderr", verb, r.out, r.stderr)
		}
	}
	for _, verb := range []string{"migrate", "up", "admin token"} {
		r := trellisEnv(t, []string{"TRELLIS_DATABASE_URL=postgres://me:s3cret@127.0.0.1:1/x"}, append(strings.Fields(verb), "--data-dir", dir)...)
		r.want(t, verb+" without a database", exitUnreachable)
		if strings.Contains(r.out+r.stderr, "s3cret") {
			t.Errorf("%s shows the password: %s%s", verb, r.out, r.stderr)
		}
	}
	// People ask a server: a database is for who runs one.
	home := []string{"HOME=" + t.TempDir()}
	trellisEnv(t, append(home, "TRELLIS_DATABASE_URL=postgres://me:s3cret@127.0.0.1:1/x"), "status").
		want(t, "status of a database", exitUsage, "TRELLIS_DATABASE_URL is for up, serve, migrate, gc, link and admin", "trellis login URL")
	trellisEnv(t, home, "status", "--database-url", "postgres://me:s3cret@127.0.0.1:1/x").
		want(t, "status of a database", exitUsage, "--database-url is for up, serve, migrate, gc, link and admin", "trellis login URL")
}

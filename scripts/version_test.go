package scripts

import (
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	r := ourRepository(t, "scripts/version.sh")
	version := func(environ ...string) (string, string) {
		t.Helper()
		stdout, stderr, code := r.run(append([]string{"VERSION=", "DIRTY="}, environ...), "scripts/version.sh")
		if (code == 0) != (stderr == "") || (code == 0) != (stdout != "") {
			t.Errorf("version.sh = %d, %q, %q, want a version or an error", code, stdout, stderr)
		}
		return strings.TrimSpace(stdout), stderr
	}
	want := func(what, want string, environ ...string) {
		t.Helper()
		if got, err := version(environ...); got != want {
			t.Errorf("%s: version = %q (%s), want %q", what, got, err, want)
		}
	}
	refused := func(what, want string, environ ...string) {
		t.Helper()
		if got, err := version(environ...); got != "" || !strings.Contains(err, want) {
			t.Errorf("%s: version = %q, error %q, want one with %q", what, got, err, want)
		}
	}
	commit := func() string { return strings.TrimSpace(r.must("git", "rev-parse", "--short=12", "HEAD")) }

	want("without a tag", "0.0.0-1-g"+commit())
	r.must("git", "tag", "v1.2.3-rc.1")
	r.must("git", "tag", "another")
	want("at a tag", "1.2.3-rc.1")
	r.commit()
	want("behind a tag", "1.2.3-rc.1-1-g"+commit())
	want("given", "4.5.6", "VERSION=4.5.6")
	want("given as tags are", "4.5.6", "VERSION=v4.5.6")
	for _, wrong := range []string{"latest", "1.2", "1.2.3+build", "01.2.3", "1.2.3;x", "1.2.3-"} {
		refused("given "+wrong, "must be as 1.2.3", "VERSION="+wrong)
	}
	r.write("scripts/new", "")
	refused("a new file", "scripts/new")
	refused("a new file, version given", "scripts/new", "VERSION=4.5.6")
	want("a new file, told to", "4.5.6-dirty", "VERSION=4.5.6", "DIRTY=1")
}

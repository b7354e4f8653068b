package container

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// What stands on an image, and what is in its environment.
func TestImagesSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	tendril := []string{"TENDRIL_DATA_DIR=/var/lib/tendril", "HOME=/var/lib/tendril/home"}
	for _, c := range []struct {
		image, title, licenses, version, entry, command string
		env                                             []string
		megabytes                                       int64 // at most, unpacked
	}{
		{shared.images.tendril(oldVersion), "tendril", "Apache-2.0 AND BUSL-1.1", oldVersion, "/usr/local/bin/tendril", "run", tendril, 380},
		{shared.images.tendril(newVersion), "tendril", "Apache-2.0 AND BUSL-1.1", newVersion, "/usr/local/bin/tendril", "run", tendril, 380},
		{shared.images.slim(oldVersion), "tendril, without an engine", "Apache-2.0", oldVersion, "/usr/local/bin/tendril", "run", tendril, 290},
		{shared.images.trellis(oldVersion), "trellis", "Apache-2.0", oldVersion, "/usr/local/bin/trellis", "serve", []string{"HOME=/tmp", "TRELLIS_LISTEN=:8080"}, 54},
	} {
		found, err := shared.docker.ImageInspect(t.Context(), c.image)
		if err != nil {
			t.Fatal(err)
		}
		for label, want := range map[string]string{
			"title": c.title, "licenses": c.licenses, "version": c.version, "revision": revision, "source": "https://github.com/tendril-run/tendril",
		} {
			if got := found.Config.Labels["org.opencontainers.image."+label]; got != want {
				t.Errorf("%s: label %s = %q, want %q", c.image, label, got, want)
			}
		}
		if found.Config.Labels["org.opencontainers.image.description"] == "" {
			t.Errorf("%s: no description", c.image)
		}
		if found.Config.User != "10001:10001" {
			t.Errorf("%s: user = %q, want numbers, for runAsNonRoot to be checked", c.image, found.Config.User)
		}
		// The program itself, no shell around it: signals reach it.
		if !slices.Equal(found.Config.Entrypoint, []string{c.entry}) || !slices.Equal(found.Config.Cmd, []string{c.command}) {
			t.Errorf("%s: runs %q %q, want %s %s", c.image, found.Config.Entrypoint, found.Config.Cmd, c.entry, c.command)
		}
		env := slices.DeleteFunc(slices.Clone(found.Config.Env), func(entry string) bool { return strings.HasPrefix(entry, "PATH=") })
		if !slices.Equal(env, c.env) {
			t.Errorf("%s: environment = %q, want %q", c.image, env, c.env)
		}
		if found.Size > c.megabytes*1_000_000 {
			t.Errorf("%s has %d MB, want at most %d", c.image, found.Size/1_000_000, c.megabytes)
		}
		t.Logf("%s has %d MB", c.title, found.Size/1_000_000)
	}
}

// Whoever tries an image without having read anything is told what to do.
func TestImagesWithoutConfiguration(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		image string
		args  []string
		code  int
		says  []string
	}{
		{shared.images.tendril(oldVersion), nil, 2, []string{"queue.url: missing", "TENDRIL_QUEUE_URL", "TENDRIL_API_TOKEN"}},
		{shared.images.tendril(oldVersion), []string{"--help"}, 0, []string{"TENDRIL_QUEUE_URL", "doctor"}},
		{shared.images.tendril(oldVersion), []string{"version"}, 0, []string{"tendril " + oldVersion + ", commit " + revision[:12]}},
		{shared.images.slim(oldVersion), []string{"version"}, 0, []string{"tendril " + oldVersion + ","}},
		{shared.images.trellis(oldVersion), nil, 2, []string{"TRELLIS_DATABASE_URL"}},
		{shared.images.trellis(oldVersion), []string{"--help"}, 0, []string{"serve", "migrate"}},
		{shared.images.trellis(newVersion), []string{"version"}, 0, []string{"trellis " + newVersion + ", commit " + revision[:12]}},
	} {
		code, said := once(t, c.image, c.args...)
		if code != c.code {
			t.Errorf("%s %v = %d, want %d", c.image, c.args, code, c.code)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("%s %v does not say %q:\n%s", c.image, c.args, want, said)
			}
		}
	}
}

// What Terraform needs for modules is there, and nothing that gives rights.
func TestToolsOfTheAgentsImage(t *testing.T) {
	t.Parallel()
	const look = `exec 2>&1 # one stream keeps its order
id -u; id -un
git --version
ssh -V
ssh -G git@github.com | grep '^user '
test -s /etc/ssl/certs/ca-certificates.crt && echo has certificates
terraform version || echo no engine
echo "setuid: $(find / -xdev -type f -perm /6000 2>/dev/null | wc -l)"
echo "writable: $(find / -xdev -writable ! -path '/proc/*' ! -path '/dev/*' ! -type l 2>/dev/null | sort | tr '\n' ' ')"`
	for image, engine := range map[string]string{shared.images.tendril(oldVersion): "Terraform v1.", shared.images.slim(oldVersion): "no engine"} {
		c := start(t, image, hardened(), testcontainers.WithEntrypoint("sh", "-uc", look), testcontainers.WithWaitStrategy(wait.ForExit()))
		said, err := logOf(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"10001\ntendril\n", "git version 2.", "OpenSSH_", "user git\n", "has certificates", engine, "setuid: 0\n"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s does not say %q:\n%s", image, want, said)
			}
		}
		// The root file system is read-only; the volume is what is mounted there.
		if want := "writable: /tmp \n"; !strings.Contains(said, want) {
			t.Errorf("%s lets its user write elsewhere than in /tmp:\n%s", image, said)
		}
	}
}

// A data directory that cannot be used is named, with what to do about it.
func TestDataDirectoryThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	configured := testcontainers.WithEnv(map[string]string{
		"TENDRIL_QUEUE_URL": "postgres://nobody@127.0.0.1:1/none", "TENDRIL_API_TOKEN": "tnd_" + strings.Repeat("A", 43), "TENDRIL_POLICY_REPOS": "https://git.example.com/**",
	})
	tmpfs := func(options string) testcontainers.CustomizeRequestOption {
		return hardened(func(h *dockercontainer.HostConfig) { h.Tmpfs[dataDir] = options })
	}
	for _, c := range []struct {
		what  string
		mount testcontainers.CustomizeRequestOption
		says  []string
	}{
		{"no volume", hardened(), []string{"read-only file system", "Mount a volume at " + dataDir}},
		{"another's volume", tmpfs("uid=0,mode=0755"), []string{"permission denied", "user 10001, group 10001", "give " + dataDir}},
		{"a full volume", tmpfs("uid=10001,mode=0700,size=4k"), []string{"no space left", "larger volume"}},
	} {
		container := start(t, shared.images.slim(oldVersion), configured, c.mount, testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(patience.For(usual))))
		state, err := container.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		said, err := logOf(t.Context(), container)
		if err != nil {
			t.Fatal(err)
		}
		if state.ExitCode != 1 {
			t.Errorf("%s: exit code = %d, want 1", c.what, state.ExitCode)
		}
		for _, want := range c.says {
			if !strings.Contains(said, want) {
				t.Errorf("%s: the agent does not say %q:\n%s", c.what, want, said)
			}
		}
	}
}

// TestImagesHaveLicenses: ours, those of what is linked in and the engine's, and
// what the program consists of.
func TestImagesHaveLicenses(t *testing.T) {
	t.Parallel()
	for image, name := range map[string]string{shared.images.tendril(oldVersion): "tendril", shared.images.slim(oldVersion): "tendril", shared.images.trellis(oldVersion): "trellis"} {
		c := start(t, image, testcontainers.WithCmd("version"), testcontainers.WithWaitStrategy(wait.ForExit()))
		files := map[string][]string{
			name + "/LICENSE":                  {"Apache License"},
			name + "/THIRD-PARTY-LICENSES.txt": {"Go standard library", "github.com/jackc/pgx/v5", "htmx", "Permission is hereby granted"},
			name + "/" + name + ".cdx.json":    {`"name": "` + name + `"`, `"version": "` + oldVersion + `"`, "pkg:golang/github.com/jackc/pgx/v5@v5"},
		}
		if image == shared.images.tendril(oldVersion) {
			files["terraform/LICENSE.txt"] = []string{"Business Source License", "Licensed Work:", "Terraform"}
		}
		for file, want := range files {
			content, err := c.CopyFileFromContainer(t.Context(), "/usr/share/doc/"+file)
			if err != nil {
				t.Errorf("%s of %s: %v", file, image, err)
				continue
			}
			text, err := io.ReadAll(content)
			if err := errors.Join(err, content.Close()); err != nil {
				t.Fatal(err)
			}
			for _, part := range want {
				if !strings.Contains(string(text), part) {
					t.Errorf("%s of %s does not have %q", file, image, part)
				}
			}
		}
	}
}

// once runs a container to its end.
func once(t testing.TB, image string, args ...string) (code int, said string) {
	t.Helper()
	options := []testcontainers.ContainerCustomizer{hardened(), testcontainers.WithWaitStrategy(wait.ForExit().WithExitTimeout(patience.For(usual)))}
	if len(args) > 0 {
		options = append(options, testcontainers.WithCmd(args...))
	}
	c := start(t, image, options...)
	state, err := c.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if said, err = logOf(t.Context(), c); err != nil {
		t.Fatal(fmt.Errorf("log of %s: %w", image, err))
	}
	return state.ExitCode, said
}

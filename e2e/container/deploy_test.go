package container

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// The control plane's container migrates, the agent's runs hello.
func TestDeployHello(t *testing.T) {
	t.Parallel()
	if !regexp.MustCompile(`The database is up to date; \d+ migrations were applied`).MatchString(shared.migrated) {
		t.Errorf("trellis migrate says %q", shared.migrated)
	}
	w := newWorld(t)
	a := newAgent(w).start(shared.images.tendril(oldVersion))
	if got := w.agents(); !strings.HasSuffix(got, " "+oldVersion) || strings.Contains(got, ",") {
		t.Errorf("agents = %q, want one of version %s", got, oldVersion)
	}
	id := w.deploy(a.helloRepo(), "hello", "acme/prod", map[string]any{"name": "world", "steps": 20, "pause_seconds": 0})
	if got := w.awaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s", got)
	}
	log := w.Log(t, id) // also checks that rows are numbered 1…n
	wantOnce := []string{"(local-exec): Hello, world!\n", "(local-exec): done\n"}
	for i := range 20 {
		wantOnce = append(wantOnce, fmt.Sprintf("step %d of 20: growing\n", i+1))
	}
	for _, want := range wantOnce {
		if got := strings.Count(log, want); got != 1 {
			t.Errorf("the log has %q %d times, want once:\n%s", want, got, log)
		}
	}
	if !strings.HasSuffix(log, "Done.\n") {
		t.Errorf("the log ends with %q", log[max(0, len(log)-60):])
	}
	// What a wary team would ask next: the agent finds nothing wrong there, and
	// what runs is neither root nor left over.
	a.awaitDoctor("/usr/local/bin/tendril doctor")
	if code, said := a.exec("sh", "-c", `for s in /proc/[0-9]*/status; do grep -E '^(Name|State|Uid|CapEff|NoNewPrivs)' "$s"; done`); code != 0 || strings.Contains(said, "zombie") ||
		strings.Contains(said, "Uid:\t0") || strings.Count(said, "CapEff:\t0000000000000000") != strings.Count(said, "Name:") || strings.Contains(said, "NoNewPrivs:\t0") {
		t.Errorf("processes = %s", said)
	}
}

// Without an engine that may be used or fetched the run says what is missing.
func TestDeployWithoutAnEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	a.env["TENDRIL_ENGINE_INSTALL"] = "false"
	a.start(shared.images.slim(oldVersion))
	got := w.awaitEnd(w.deploy(a.helloRepo(), "hello", "acme/prod", map[string]any{"name": "world"}))
	if !strings.HasPrefix(got, "FAILED/engine_missing: ") || !strings.Contains(got, "terraform >= 1.4 is not on this agent: install it") {
		t.Errorf("provision = %s, want FAILED/engine_missing, and which one", got)
	}
}

// Kubernetes gives a volume to root and the pod's group, and all that is in it to
// that group anew whenever a pod begins. It is how a new file system is at first.
func TestVolumeOfTheGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	repo := a.helloRepo()
	mounted := func() {
		const mount = `chgrp -R 10001 .; find . -type d -exec chmod g+rwxs {} +; find . -type f -exec chmod g+rw {} +`
		a.run(shared.images.tendril(oldVersion), testcontainers.WithEntrypoint("sh", "-euc", "mkdir -p lost+found; "+mount), asRoot(dataDir),
			testcontainers.WithWaitStrategy(wait.ForExit()))
	}
	a.run(shared.images.tendril(oldVersion), testcontainers.WithEntrypoint("sh", "-euc", "rmdir home; mkdir lost+found; chown 0:0 ."), asRoot(dataDir),
		testcontainers.WithWaitStrategy(wait.ForExit()))
	was := ""
	for range 2 {
		mounted()
		a.start(shared.images.tendril(oldVersion))
		if got := w.awaitEnd(w.deploy(repo, "hello", "acme/prod", map[string]any{"name": "world", "pause_seconds": 0})); got != "SUCCESS" {
			t.Errorf("provision = %s", got)
		}
		said := a.awaitDoctor("stat -c '%U %g %a' " + dataDir + " && /usr/local/bin/tendril doctor")
		if !strings.HasPrefix(said, "root 10001 2770\n") {
			t.Errorf("the data directory = %s", said)
		}
		if was == "" {
			was = w.agents()
		}
		a.kill()
	}
	if got := w.agents(); got != was {
		t.Errorf("agents = %s, want still %s", got, was)
	}
}

// Terraform fetches a module over SSH by git and the key that the agent is given,
// who knows the host by the file mounted for ssh. The token comes from a file,
// too.
func TestModulesOverSSH(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	shell := gittest.NewSSHServer(t, gittest.Listen(shared.gateway))
	module, _ := shell.Repo("modules/shell", gittest.Text(map[string]string{"main.tf": `output "it" { value = "fetched" }`}), "v1")
	repo, _ := a.server.Repo("app", gittest.Text(map[string]string{"main.tf": fmt.Sprintf(`
module "shell" { source = "git::%s?ref=v1" }
resource "terraform_data" "a" {
  provisioner "local-exec" { command = "echo module: ${module.shell.it}" }
}`, module.URL)}), "v1")

	const files = dataDir + "/home"
	a.env["KEY"], a.env["TOKEN"] = shell.ClientPEM, w.Token
	a.run(shared.images.tendril(oldVersion),
		testcontainers.WithEntrypoint("sh", "-euc", `umask 077; cd `+files+`; printf %s "$KEY" >key; printf %s "$TOKEN" >token`), testcontainers.WithWaitStrategy(wait.ForExit()))
	for _, name := range []string{"KEY", "TOKEN", "TENDRIL_API_TOKEN"} {
		delete(a.env, name)
	}
	a.env["TENDRIL_QUEUE_TOKEN_FILE"] = files + "/token"
	a.env["TENDRIL_GIT_HOSTS"] = fmt.Sprintf("%[1]s.ssh_key_file=%[2]s/key,%[1]s.repos=ssh://git@%[1]s/modules/*", shell.Addr, files)
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte(shell.KnownHosts), 0o644); err != nil {
		t.Fatal(err)
	}
	a.bind(known, "/etc/ssh/ssh_known_hosts")
	a.start(shared.images.tendril(oldVersion))
	id := w.deploy(repo.URL, "", "acme/prod", nil)
	if got := w.awaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s", got)
	}
	if log := w.Log(t, id); !strings.Contains(log, "module: fetched") {
		t.Errorf("the log lacks what the module says:\n%s", log)
	}
}

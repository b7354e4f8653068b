package container

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// docker runs the commands of a page, with more in the environment.
func docker(t *testing.T, commands string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("a documented command fails: %v\n$ %s\n%s", err, commands, out)
	}
	return string(out)
}

// removed removes a container with the test, however that ends.
func removed(t *testing.T, name string) {
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "docker", "rm", "--force", name).CombinedOutput(); err != nil {
			t.Errorf("docker rm %s: %v\n%s", name, err, out)
		}
	})
}

// The guide's docker run gives an agent over HTTPS, which finds nothing wrong there.
func TestRunCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server := startTrellis(w, shared.images.trellis(oldVersion))
	a := newAgent(w)
	removed(t, a.name)
	docker(t, pages.Block(t, "docs/GUIDE.md", "docker run",
		"docker run -d ", fmt.Sprintf("docker run -d --network %s --label %s=%s -v %s:/ca.pem:ro -e TENDRIL_QUEUE_CA_FILE=/ca.pem ", shared.network.Name, label, shared.images.registry, a.server.CAFile),
		"--name tendril --hostname tendril", "--name "+a.name+" --hostname "+a.name, "-v tendril:", "-v "+a.name+":",
		"https://tendril.example", server.url, "ghcr.io/tendril-run/tendril:VERSION", shared.images.tendril(oldVersion)), "TENDRIL_JOIN_TOKEN="+w.Text(t, "SELECT token FROM public.create_join_token($1)", w.Cluster))
	w.await("the agent to register", "SELECT EXISTS (SELECT FROM public.agents WHERE name = $1)", a.name)
	docker(t, "docker exec "+a.name+" tendril doctor")
	if out := docker(t, "docker stop "+a.name+" && docker inspect --format '{{.State.ExitCode}} {{.HostConfig.ReadonlyRootfs}}' "+a.name); !strings.HasSuffix(out, "\n0 true\n") {
		t.Errorf("docker stop, and how it ended = %q, want exit code 0 of a read-only container", out)
	}
}

// UPGRADING.md shows the sum of the program in an image.
func TestProgramCommand(t *testing.T) {
	t.Parallel()
	image := shared.images.tendril(oldVersion)
	c := start(t, image, testcontainers.WithCmd("version"), testcontainers.WithWaitStrategy(wait.ForExit()))
	program, err := c.CopyFileFromContainer(t.Context(), "/usr/local/bin/tendril")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, program); err != nil {
		t.Fatal(err)
	}
	_ = program.Close() // it was only read
	out := docker(t, pages.Block(t, "docs/UPGRADING.md", "docker create",
		"create --name look", "create --label "+label+"="+shared.images.registry+" --name "+shared.images.registry+"-look", "look", shared.images.registry+"-look", "ghcr.io/tendril-run/tendril:1.2.3", image))
	if want := fmt.Sprintf("%x  -\n", sum.Sum(nil)); !strings.Contains(out, want) {
		t.Errorf("the documented commands say %s, want the sum %s", out, want)
	}
}

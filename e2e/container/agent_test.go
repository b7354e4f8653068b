package container

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/network"

	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

const dataDir = "/var/lib/tendril"

// hardened runs a container as a wary operator does. The user is the image's.
func hardened(more ...func(*dockercontainer.HostConfig)) testcontainers.CustomizeRequestOption {
	return testcontainers.WithHostConfigModifier(func(h *dockercontainer.HostConfig) {
		h.ReadonlyRootfs = true
		h.CapDrop = []string{"ALL"}
		h.SecurityOpt = []string{"no-new-privileges"}
		h.Tmpfs = map[string]string{"/tmp": ""}
		for _, change := range more {
			change(h)
		}
	})
}

// agent is one data directory with one container after the other at it.
type agent struct {
	w      *world
	name   string // of the agent and its volume
	host   string // the next container's name
	env    map[string]string
	binds  []string
	now    testcontainers.Container
	server *gittest.Server
}

// newAgent makes an agent that may use the templates of a git server of its own,
// and removes all of it with the test.
func newAgent(w *world) *agent {
	w.t.Helper()
	name := strings.ReplaceAll(w.name, "_", "-")
	a := &agent{w: w, name: name, host: name, server: gittest.NewServer(w.t, gittest.Listen(shared.gateway))}
	_, port, _ := strings.Cut(strings.TrimPrefix(a.server.URL, "https://"), ":")
	a.server.URL = "https://" + gitHost + ":" + port
	a.env = map[string]string{
		"TENDRIL_QUEUE_URL": w.agentURL(), "TENDRIL_API_TOKEN": w.Token, "TENDRIL_NAME": name, "TENDRIL_SLOTS": "1", "TENDRIL_QUEUE_POLL_INTERVAL": "1s",
		"TENDRIL_POLICY_REPOS": a.server.URL + "/**", "TENDRIL_GIT_CA_FILE": "/etc/tendril/ca.pem",
	}
	a.bind(a.server.CAFile, "/etc/tendril/ca.pem")
	w.t.Cleanup(func() {
		if _, err := shared.docker.VolumeRemove(context.Background(), a.name, client.VolumeRemoveOptions{}); err != nil {
			w.t.Errorf("remove the volume: %v", err)
		}
	})
	return a
}

// bind shows the container a file of the machine's.
func (a *agent) bind(file, as string) { a.binds = append(a.binds, file+":"+as+":ro") }

// start runs an image at the volume and waits until the agent has registered.
func (a *agent) start(image string) *agent {
	a.w.t.Helper()
	last := a.w.Text(a.w.t, "SELECT coalesce(max(boot_id::text), '') FROM public.agents WHERE name = $1", a.name)
	a.now = a.run(image)
	a.w.await("the agent to register", "SELECT EXISTS (SELECT FROM public.agents WHERE name = $1 AND boot_id::text <> $2)", a.name, last)
	return a
}

// run starts a container of the agent's, whose end is up to the test.
func (a *agent) run(image string, options ...testcontainers.ContainerCustomizer) testcontainers.Container {
	t := a.w.t
	t.Helper()
	options = append([]testcontainers.ContainerCustomizer{
		network.WithNetwork(nil, shared.network),
		testcontainers.WithEnv(a.env),
		testcontainers.WithConfigModifier(func(c *dockercontainer.Config) { c.Hostname = a.host }),
		hardened(func(h *dockercontainer.HostConfig) {
			h.Binds = a.binds
			h.ExtraHosts = []string{gitHost + ":" + shared.gateway}
			h.Mounts = []mount.Mount{volume(a.name, shared.images.registry)}
		}),
	}, options...)
	return start(t, image, options...)
}

// volume is one for an agent's data, made when it is first used.
func volume(name, owner string) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: name, Target: dataDir, VolumeOptions: &mount.VolumeOptions{Labels: labelled(owner)}}
}

// asRoot runs a container as who owns a volume, in a directory.
func asRoot(dir string) testcontainers.CustomizeRequestOption {
	return func(r *testcontainers.GenericContainerRequest) error {
		host := r.HostConfigModifier
		r.ConfigModifier = func(c *dockercontainer.Config) { c.User, c.WorkingDir = "0:0", dir }
		r.HostConfigModifier = func(h *dockercontainer.HostConfig) {
			host(h)
			h.CapDrop = nil
		}
		return nil
	}
}

// start runs a container that is removed with the test, which shows its log
// when it fails.
func start(t testing.TB, image string, options ...testcontainers.ContainerCustomizer) testcontainers.Container {
	t.Helper()
	c, err := testcontainers.Run(t.Context(), image, append(options, testcontainers.WithLabels(labelled(shared.images.registry)))...)
	if c != nil {
		t.Cleanup(func() {
			if t.Failed() {
				said, _ := logOf(context.Background(), c)
				t.Logf("log of %s:\n%s", image, said)
			}
			if err := c.Terminate(context.Background(), testcontainers.StopTimeout(0)); err != nil {
				t.Errorf("remove a container of %s: %v", image, err)
			}
		})
	}
	if err != nil {
		t.Fatalf("run %s: %v", image, err)
	}
	return c
}

// kill is kill -9 of everything in the container.
func (a *agent) kill() {
	a.w.t.Helper()
	if _, err := shared.docker.ContainerKill(a.w.t.Context(), a.now.GetContainerID(), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		a.w.t.Fatal(err)
	}
	a.awaitEnd()
}

// stop is docker stop, with as much grace as it needs; it answers the exit code.
func (a *agent) stop() <-chan int {
	code := make(chan int, 1)
	go func() {
		defer close(code)
		grace := patience.For(usual)
		if err := a.now.Stop(context.Background(), &grace); err != nil {
			a.w.t.Errorf("stop the agent: %v", err)
			return
		}
		if state, err := a.now.State(context.Background()); err == nil {
			code <- state.ExitCode
		}
	}()
	return code
}

func (a *agent) awaitEnd() {
	a.w.t.Helper()
	patience.Await(a.w.t, "the container's end", func() bool {
		state, err := a.now.State(a.w.t.Context())
		return err == nil && !state.Running
	})
}

// says waits for a text in the agent's own log.
func (a *agent) says(text string) {
	a.w.t.Helper()
	patience.Await(a.w.t, fmt.Sprintf("the agent to say %q", text), func() bool {
		said, err := logOf(a.w.t.Context(), a.now)
		return err == nil && strings.Contains(said, text)
	})
}

// exec runs a program in the agent's container, as its user.
func (a *agent) exec(argv ...string) (int, string) {
	a.w.t.Helper()
	code, out, err := a.now.Exec(a.w.t.Context(), argv, tcexec.Multiplexed())
	if err != nil {
		a.w.t.Fatalf("%v: %v", argv, err)
	}
	text, err := io.ReadAll(out)
	if err != nil {
		a.w.t.Fatalf("%v: %v", argv, err)
	}
	return code, string(text)
}

// awaitDoctor runs a shell command that ends with the doctor, until nothing is
// wrong: on a busy machine it may wait for the database in vain.
func (a *agent) awaitDoctor(command string) (said string) {
	a.w.t.Helper()
	patience.AwaitShowing(a.w.t, "a doctor that finds nothing wrong", func() string { return said }, func() bool {
		var code int
		code, said = a.exec("sh", "-c", command)
		return code == 0
	})
	return said
}

// logOf is what a container has said so far.
func logOf(ctx context.Context, c testcontainers.Container) (string, error) {
	reader, err := c.Logs(ctx)
	if err != nil {
		return "", err
	}
	defer reader.Close() //nolint:errcheck // it was only read
	var text bytes.Buffer
	if _, err := text.ReadFrom(reader); err != nil {
		return "", err
	}
	return text.String(), nil
}

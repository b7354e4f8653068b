//go:build kube

package kubejobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
)

// number tells this cluster from others on the machine; host is the machine, as pods see it.
var (
	number = strconv.Itoa(os.Getpid() % 200)
	host   = "10.213." + number + ".1"
)

const (
	// hostName is what the certificates of test servers are for, and what pods take for host.
	hostName = "example.com"

	runnerImage = "tendril.test/runner:1"
)

// cluster is a Kubernetes of one node.
type cluster struct {
	dir, tools, kubeconfig string
}

// script is scripts/kube-node.sh.
func (c *cluster) script(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "../../scripts/kube-node.sh", args...)
	cmd.WaitDelay = time.Second // its servers hold its output
	return cmd
}

func startCluster(tools string) (*cluster, error) {
	dir, err := os.MkdirTemp("/tmp", "tendril-kubejobs-") // a short name, for sockets
	if err != nil {
		return &cluster{}, err
	}
	c := &cluster{dir: dir, tools: tools, kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	images, err := c.images()
	if err != nil {
		return c, fmt.Errorf("make the images: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := os.Create(filepath.Join(dir, "up.log"))
	if err != nil {
		return c, err
	}
	defer out.Close() //nolint:errcheck // the script writes it
	cmd := c.script(ctx, append([]string{"up", dir, tools, number}, images...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return c, fmt.Errorf("%w\n%s\n%s", err, text, c.said())
	}
	return c, nil
}

func (c *cluster) stop() {
	if c == nil || c.dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if out, err := c.script(ctx, "down", c.dir, number).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the node does not end: %v\n%s", err, out)
	}
	_ = os.RemoveAll(c.dir)
}

// said is the end of what each server says.
func (c *cluster) said() string {
	var all strings.Builder
	logs, _ := filepath.Glob(filepath.Join(c.dir, "log", "*"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		fmt.Fprintf(&all, "== %s\n%s\n", log, bytes.Join(lines[max(0, len(lines)-15):], []byte("\n")))
	}
	return all.String()
}

// kubectl answers what it prints.
func (c *cluster) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.try(t, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) try(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(c.tools, "kubernetes", "kubectl"), append([]string{"--kubeconfig", c.kubeconfig}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// apply has objects, in YAML, made.
func (c *cluster) apply(t testing.TB, yaml string) {
	t.Helper()
	c.applyIn(t, "default", yaml)
}

func (c *cluster) applyIn(t testing.TB, namespace, yaml string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.tools, "kubernetes", "kubectl"), "--kubeconfig", c.kubeconfig, "-n", namespace, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(yaml)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s\n%s", err, out, yaml)
	}
}

// ctr asks containerd.
func (c *cluster) ctr(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"-a", filepath.Join(c.dir, "run/containerd.sock"), "-n", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// killContainer is kill -9 of the runner in a pod.
func (c *cluster) killContainer(t testing.TB, namespace, pod string) {
	t.Helper()
	id := c.kubectl(t, "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	c.ctr(t, "tasks", "kill", "-s", "KILL", strings.TrimPrefix(id, "containerd://"))
}

// tryKillContainer is killContainer of one that may have ended.
func (c *cluster) tryKillContainer(t testing.TB, namespace, pod string) {
	t.Helper()
	id, err := c.try(t, "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	if err == nil && id != "" {
		_ = exec.CommandContext(t.Context(), "ctr", "-a", filepath.Join(c.dir, "run/containerd.sock"), "-n", "k8s.io", "tasks", "kill", "-s", "KILL", strings.TrimPrefix(id, "containerd://")).Run()
	}
}

// server is the process of one of its servers.
func (c *cluster) server(t testing.TB, name string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "pids"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var pid int
		var of string
		if _, err := fmt.Sscan(line, &pid, &of); err == nil && of == name {
			return pid
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// images are a pause image and one with what the agent's has: the program, git and Terraform.
func (c *cluster) images() ([]string, error) {
	pause, err := c.image("tendril.test/pause:1", `["/bin/busybox","sleep","2147483647"]`, map[string]string{"/bin/busybox": find("busybox")})
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"/usr/local/bin/tendril": site.Program("tendril"), "/usr/local/bin/tendril-dispatcher": site.Program("tendril-dispatcher"),
		"/usr/local/bin/terraform": find("terraform"), "/usr/bin/git": find("git"),
		"/bin/busybox": find("busybox"), "/etc/ssl/certs/ca-certificates.crt": "/etc/ssl/certs/ca-certificates.crt",
	}
	for _, helper := range []string{"git-remote-https", "git-remote-http"} {
		files["/usr/lib/git-core/"+helper] = "/usr/lib/git-core/" + helper
	}
	for _, program := range []string{find("git"), "/usr/lib/git-core/git-remote-https"} {
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w", program, err)
		}
		for _, word := range strings.Fields(string(out)) {
			if strings.HasPrefix(word, "/") {
				files[word] = word
			}
		}
	}
	for _, library := range []string{"libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"} {
		if found, _ := filepath.Glob("/lib/*/" + library); len(found) > 0 {
			files[found[0]] = found[0]
		}
	}
	runner, err := c.image(runnerImage, `["/usr/local/bin/tendril"]`, files)
	return []string{pause, runner}, err
}

func find(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return program // the copy says what is missing
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// image writes an archive as docker save does, of one layer with these files.
func (c *cluster) image(name, entrypoint string, files map[string]string) (string, error) {
	dir, err := os.MkdirTemp(c.dir, "image-")
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	for to, from := range files {
		if err := copyFile(filepath.Join(root, to), from); err != nil {
			return "", err
		}
	}
	for _, made := range []string{"tmp", "etc", "bin", "var/lib/tendril"} {
		if err := os.MkdirAll(filepath.Join(root, made), 0o755); err != nil {
			return "", err
		}
	}
	if err := errors.Join(
		os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky),
		os.Symlink("busybox", filepath.Join(root, "bin/sh")), os.Symlink("busybox", filepath.Join(root, "bin/sleep")), os.Symlink("busybox", filepath.Join(root, "bin/wget")),
		os.Symlink("busybox", filepath.Join(root, "bin/cat")), os.Symlink("busybox", filepath.Join(root, "bin/grep")), os.Symlink("busybox", filepath.Join(root, "bin/tr")), os.Symlink("busybox", filepath.Join(root, "bin/find")), os.Symlink("busybox", filepath.Join(root, "bin/head")),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/:/bin/sh\ntendril:x:10001:10001:Tendril:/tmp:/bin/sh\n"), 0o644),
	); err != nil {
		return "", err
	}
	out := filepath.Join(dir, "image.tar")
	pack := exec.Command("sh", "-euc", `
		tar --sort=name --owner=0 --group=0 --numeric-owner -C root -cf layer.tar .
		digest=$(sha256sum layer.tar | cut -d' ' -f1)
		printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/usr/local/bin:/usr/bin:/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$(go env GOARCH)" "$2" "$digest" >config.json
		printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >manifest.json
		tar -cf image.tar manifest.json config.json layer.tar
		rm -r root layer.tar`, "pack", name, entrypoint)
	pack.Dir = dir
	if said, err := pack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}
	return out, nil
}

func copyFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // only read
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm()|0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// forward lets pods reach what listens on the loopback address, or on a socket, at a port of host,
// which it returns.
func forward(t testing.TB, network, address string) (port string) {
	t.Helper()
	listener, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer from.Close() //nolint:errcheck // both ends are told
				to, err := net.Dial(network, address)
				if err != nil {
					return
				}
				defer to.Close() //nolint:errcheck // likewise
				var both sync.WaitGroup
				both.Go(func() { _, _ = io.Copy(to, from); _ = to.Close() })
				both.Go(func() { _, _ = io.Copy(from, to); _ = from.Close() })
				both.Wait()
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close() })
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

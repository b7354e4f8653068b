// Package hypervisors gives tests real hypervisors: libvirt daemons, each in Linux namespaces
// of its own, with QEMU below that emulates processors.
//
//	Start ──► Host: a namespace of processes, mounts and network
//	            ├─ libvirtd, which can be killed, stopped and started again
//	            ├─ network "default" with DHCP, storage pools "default" and "images"
//	            └─ the machines that tests make: they end with the host
//
// It needs root, and what scripts/vm-deps.sh installs. It must not know any driver.
package hypervisors

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Images is the directory of the images that scripts/vm-deps.sh has made; make puts its parent on
// PATH.
func Images() (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "vm-images", "small.qcow2")); err == nil {
			return filepath.Join(dir, "vm-images"), nil
		}
	}
	return "", errors.New("no hypervisors can be started here: `make vm-deps`, as root, installs libvirt and QEMU and makes their image")
}

// MetalImages is the directory of the guest that scripts/metal-guest.sh has made, for machines
// without a system: boot.iso, vmlinuz and initrd.gz.
func MetalImages() (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "metal-images", "boot.iso")); err == nil {
			return filepath.Join(dir, "metal-images"), nil
		}
	}
	return "", errors.New("there is no guest for bare metal: `make metal-guest`, as root, makes it")
}

// Three starts hv1, hv2 and hv3 with the small image, for the length of a test.
func Three(t testing.TB) []*Host {
	t.Helper()
	images, err := Images()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // they die with the thread that starts them
	// A test's own directory is too long for the path of a socket.
	dir, err := os.MkdirTemp("", "tendril-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := patience.Context(t.Context(), 2*time.Minute)
	defer cancel()
	hosts, err := Start(ctx, dir, []string{filepath.Join(images, "small.qcow2")}, "hv1", "hv2", "hv3")
	t.Cleanup(func() {
		for _, h := range hosts {
			h.Stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return hosts
}

// Host is one hypervisor.
type Host struct {
	Name string
	// Dir has all that it keeps; Images and Volumes are the directories of its storage pools.
	Dir, Images, Volumes string
	// Network is the beginning of its machines' addresses, such as 10.77.1.
	Network string

	init *exec.Cmd // the first process of its namespaces: all others end with it

	mu     sync.Mutex
	daemon *exec.Cmd
}

// URL is where its daemon listens.
func (h *Host) URL() string { return "unix://" + filepath.Join(h.Dir, "sock", "libvirt-sock") }

// Start makes hosts of these names below dir, with the images (paths of files, by their base
// name), and waits until they answer.
func Start(ctx context.Context, dir string, images []string, names ...string) ([]*Host, error) {
	hosts := make([]*Host, len(names))
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		hosts[i] = &Host{Name: name, Dir: filepath.Join(dir, name), Network: fmt.Sprintf("10.77.%d", i+1)}
		all.Go(func() { errs[i] = hosts[i].start(ctx, images) })
	}
	all.Wait()
	return hosts, errors.Join(errs...)
}

// setUp makes the namespaces' view: the daemon's directories are below $2, and /dev has no kvm,
// as a machine's own may be there and hang what uses it. (One that is there and is no KVM makes
// libvirt probe QEMU at each request.)
const setUp = `
mount --make-rprivate / && hostname "$1" && ip link set lo up
mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt "$2/dev"
mount -t tmpfs none "$2/dev" && mkdir "$2"/dev/{pts,shm,net} && ln -s pts/ptmx "$2/dev/ptmx" && mknod "$2/dev/net/tun" c 10 200 || exit 1
for each in null zero full random urandom tty pts shm; do
  [ -d "/dev/$each" ] || touch "$2/dev/$each"
  mount --bind "/dev/$each" "$2/dev/$each" || exit 1
done
mount --move "$2/dev" /dev || exit 1
for each in run lib cache log; do
  case $each in run) at=/run/libvirt ;; *) at=/var/$each/libvirt ;; esac
  mount --bind "$2/$each" "$at" || exit 1
done
mount --bind "$2/etc" /etc/libvirt || exit 1
echo ready
# As the first process it inherits all whose parents end, and must wait for them.
while :; do sleep 3600 & wait $!; done
`

func (h *Host) start(ctx context.Context, images []string) error {
	h.Images, h.Volumes = filepath.Join(h.Dir, "images"), filepath.Join(h.Dir, "volumes")
	for _, each := range []string{"run", "lib", "cache", "log/qemu", "etc", "sock", "images", "volumes"} {
		if err := os.MkdirAll(filepath.Join(h.Dir, each), 0o755); err != nil {
			return err
		}
	}
	for _, each := range images {
		if err := copyFile(each, filepath.Join(h.Images, filepath.Base(each))); err != nil {
			return err
		}
	}
	if err := h.configure(ctx); err != nil {
		return err
	}
	h.init = exec.Command("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-uc", setUp, "_", h.Name, h.Dir)
	h.init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h.init.Stderr = os.Stderr
	out, err := h.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := h.init.Start(); err != nil {
		return err
	}
	var line [6]byte
	if _, err := io.ReadFull(out, line[:]); err != nil || string(line[:]) != "ready\n" {
		return fmt.Errorf("the namespaces of %s were not made: %q, %w", h.Name, line, err)
	}
	if err := h.StartDaemon(ctx); err != nil {
		return err
	}
	for _, each := range []struct{ kind, name, document string }{
		{"pool", "default", pool("default", h.Volumes)},
		{"pool", "images", pool("images", h.Images)},
		{"net", "default", h.network()},
	} {
		file := filepath.Join(h.Dir, each.kind+each.name+".xml")
		if err := os.WriteFile(file, []byte(each.document), 0o600); err != nil {
			return err
		}
		for _, args := range [][]string{{each.kind + "-define", file}, {each.kind + "-start", each.name}, {each.kind + "-autostart", each.name}} {
			if _, err := h.Virsh(ctx, args...); err != nil {
				return err
			}
		}
	}
	return nil
}

func pool(name, dir string) string {
	return "<pool type='dir'><name>" + name + "</name><target><path>" + dir + "</path></target></pool>"
}

// network has mode open, for which libvirt makes no rules of a firewall.
func (h *Host) network() string {
	return "<network><name>default</name><forward mode='open'/><bridge name='virbr0' stp='off' delay='0'/>" +
		"<ip address='" + h.Network + ".1' netmask='255.255.255.0'><dhcp><range start='" + h.Network + ".10' end='" + h.Network + ".250'/></dhcp></ip></network>"
}

func (h *Host) configure(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", "/etc/libvirt/.", filepath.Join(h.Dir, "etc")).CombinedOutput(); err != nil {
		return fmt.Errorf("libvirt's configuration: %w: %s", err, out)
	}
	// Its network "default" would need a firewall.
	for _, each := range []string{"default.xml", "autostart/default.xml"} {
		if err := os.Remove(filepath.Join(h.Dir, "etc/qemu/networks", each)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	uuid, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return err
	}
	daemon := fmt.Sprintf("listen_tls = 0\nlisten_tcp = 0\nunix_sock_dir = %q\nauth_unix_ro = \"none\"\nauth_unix_rw = \"none\"\nunix_sock_rw_perms = \"0700\"\nhost_uuid = %q\nlog_outputs = \"3:file:%s\"\n",
		filepath.Join(h.Dir, "sock"), strings.TrimSpace(string(uuid)), filepath.Join(h.Dir, "log/libvirtd.log"))
	qemu := "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\ncgroup_controllers = [ ]\nnamespaces = [ ]\nremember_owner = 0\ndynamic_ownership = 0\nstdio_handler = \"file\"\nseccomp_sandbox = 0\n"
	return errors.Join(os.WriteFile(filepath.Join(h.Dir, "etc/libvirtd.conf"), []byte(daemon), 0o600),
		os.WriteFile(filepath.Join(h.Dir, "etc/qemu.conf"), []byte(qemu), 0o600))
}

// Inside makes a command in the host's namespaces, from where its machines can be reached.
func (h *Host) Inside(ctx context.Context, args ...string) *exec.Cmd {
	first := strconv.Itoa(h.init.Process.Pid) // of unshare, whose child is the first inside
	children, _ := os.ReadFile("/proc/" + first + "/task/" + first + "/children")
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strings.TrimSpace(string(children)), "--mount", "--net", "--uts", "--pid"}, args...)...)
}

// StartDaemon starts the daemon and waits until it answers.
func (h *Host) StartDaemon(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.daemon = h.Inside(context.WithoutCancel(ctx), "libvirtd", "--config", "/etc/libvirt/libvirtd.conf", "--pid-file", h.pidFile(), "-t", "0")
	log, err := os.OpenFile(filepath.Join(h.Dir, "log/libvirtd.out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	h.daemon.Stdout, h.daemon.Stderr = log, log
	if err := h.daemon.Start(); err != nil {
		return err
	}
	for {
		if _, err = h.Virsh(ctx, "version"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(filepath.Join(h.Dir, "log/libvirtd.log"))
			return fmt.Errorf("libvirtd of %s does not answer: %w\n%s", h.Name, err, said)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (h *Host) pidFile() string { return filepath.Join(h.Dir, "libvirtd.pid") }

// Signal sends the daemon a signal, by its number inside.
func (h *Host) Signal(ctx context.Context, signal syscall.Signal) error {
	pid, err := os.ReadFile(h.pidFile())
	if err != nil {
		return err
	}
	out, err := h.Inside(ctx, "kill", "-"+strconv.Itoa(int(signal)), strings.TrimSpace(string(pid))).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kill: %w: %s", err, out)
	}
	return nil
}

// KillDaemon ends the daemon at once. Its machines run on.
func (h *Host) KillDaemon(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.Signal(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	h.awaitDaemon()
	return os.Remove(h.pidFile())
}

// Virsh runs a command of libvirt's own client: what a person would do there.
func (h *Host) Virsh(ctx context.Context, args ...string) (string, error) {
	socket := "qemu+unix:///system?socket=" + filepath.Join(h.Dir, "sock", "libvirt-sock")
	out, err := exec.CommandContext(ctx, "virsh", append([]string{"--connect", socket}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("virsh %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Console answers what a machine has printed, by the name of its log.
func (h *Host) Console(name string) string {
	text, _ := os.ReadFile(filepath.Join(h.Dir, "log/qemu", name))
	return string(text)
}

// Stop ends the host with all that runs there.
func (h *Host) Stop() {
	if h.init == nil || h.init.Process == nil {
		return
	}
	_ = h.init.Process.Kill() // its child is killed with it, and with that one all of the namespace
	_ = h.init.Wait()
	if h.daemon != nil {
		h.awaitDaemon()
	}
}

// awaitDaemon waits for a daemon that was killed. nsenter stops itself where its child is stopped,
// and is not continued with it: left so it would never see that the child has ended.
func (h *Host) awaitDaemon() {
	_ = h.daemon.Process.Signal(syscall.SIGCONT)
	_ = h.daemon.Wait()
}

// copyFile links where it can: images are read and never written.
func copyFile(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

//go:build metal

package redfish

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
	"github.com/tendril-run/tendril/internal/testkit/ironic"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Lab is a hypervisor with servers that have no system, their BMC, and a web server that has the
// system for them: boot.iso, and its vmlinuz and initrd.gz alone.
type Lab struct {
	Host *hypervisors.Host
	BMC  *Server
	Web  *httptest.Server
	// IDs are the servers' UUIDs, in the order of their names.
	IDs []string

	dir   string
	media string // the directory of the images that are inserted
	ctx   context.Context
}

// NewLab makes a server of each name, for the length of a test. It needs what `make metal-guest`
// makes.
func NewLab(ctx context.Context, t testing.TB, names ...string) *Lab {
	t.Helper()
	runtime.LockOSThread() // the hypervisor dies with the thread that starts it
	images, err := hypervisors.MetalImages()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{ctx: ctx}
	// A test's own directory is too long for the path of a socket.
	if l.dir, err = os.MkdirTemp("", "tendril-vm-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.dir) })
	hosts, err := hypervisors.Start(ctx, l.dir, nil, "hv1")
	l.Host = hosts[0]
	t.Cleanup(l.Host.Stop)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		id, err := l.Host.Blank(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		l.IDs = append(l.IDs, id)
	}
	hypervisor, err := Libvirt(l.Host.URL())
	if err != nil {
		t.Fatal(err)
	}
	l.media = filepath.Join(l.dir, "media")
	if err := os.Mkdir(l.media, 0o755); err != nil {
		t.Fatal(err)
	}
	if l.BMC, err = New(hypervisor, Options{Dir: l.media}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.BMC.Close(); err != nil {
			t.Error(err)
		}
	})
	l.Web = httptest.NewServer(http.FileServer(http.Dir(images)))
	t.Cleanup(l.Web.Close)
	return l
}

// Inserted are the images that are in the servers' drives.
func (l *Lab) Inserted(t testing.TB) (names []string) {
	t.Helper()
	all, err := os.ReadDir(l.media)
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range all {
		names = append(names, each.Name())
	}
	return names
}

// StartIronic starts an Ironic for the length of a test. It publishes its images over HTTP, as BMCs
// need it, and what it enrolls boots by virtual media, and runs from there. More are further lines
// of its configuration.
func StartIronic(ctx context.Context, t testing.TB, more string) *ironic.Ironic {
	t.Helper()
	dir, err := os.MkdirTemp("", "tendril-ironic-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	published := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(dir, "http"))))
	t.Cleanup(published.Close)
	// With SQLite's usual journal a greenlet that reads keeps those off that write, and they stop the
	// whole process for 5 s and fail ("database is locked"); in this mode they don't wait for readers.
	if out, err := exec.CommandContext(ctx, "/usr/bin/python3", "-c", `import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.execute("pragma journal_mode = wal")
c.execute("create table made (x)")
c.execute("drop table made")`, filepath.Join(dir, "ironic.sqlite")).CombinedOutput(); err != nil {
		t.Fatalf("Ironic's database: %v: %s", err, out)
	}
	i, err := ironic.Run(ctx, dir, ironic.Options{More: `[DEFAULT]
enabled_bios_interfaces = no-bios,fake,redfish
enabled_boot_interfaces = fake,redfish-virtual-media
enabled_deploy_interfaces = fake,ramdisk
isolinux_bin = /usr/lib/ISOLINUX/isolinux.bin
ldlinux_c32 = /usr/lib/syslinux/modules/bios/ldlinux.c32
[deploy]
http_url = ` + published.URL + `
[redfish]
connection_attempts = 2
connection_retry_interval = 1
` + more})
	if i != nil {
		t.Cleanup(func() {
			i.Kill()
			if t.Failed() {
				t.Logf("Ironic's log ends:\n%s", i.Log())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// Node is what a server's owner writes down to enrol it at Ironic, by the UUID of its domain: it
// boots by virtual media, and its system runs from there.
func (s *Server) Node(name, id string) map[string]any {
	return map[string]any{
		"name": name, "driver": "redfish", "resource_class": "baremetal",
		"boot_interface": "redfish-virtual-media", "deploy_interface": "ramdisk", "inspect_interface": "redfish", "bios_interface": "redfish",
		"driver_info": map[string]any{
			"redfish_address": s.URL(), "redfish_system_id": SystemPath(id), "redfish_username": s.user, "redfish_password": "password",
		},
	}
}

// Key is one for SSH: a file, and the line of authorized_keys.
type Key struct{ File, Public string }

// NewKey makes one in the lab's directory.
func (l *Lab) NewKey(t testing.TB, name string) Key {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, name)
	if err != nil {
		t.Fatal(err)
	}
	k := Key{File: filepath.Join(l.dir, name)}
	if err := os.WriteFile(k.File, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	of, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	k.Public = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(of))) + " " + name
	return k
}

// Guest is the system that runs on a server.
type Guest struct {
	lab  *Lab
	name string
}

// Guest is the system of a server, by its name.
func (l *Lab) Guest(name string) Guest { return Guest{lab: l, name: name} }

// Console is all that it has printed.
func (g Guest) Console() string { return g.lab.Host.Console(g.name + ".log") }

// Last is what its console says last after some words, such as GUEST address.
func (g Guest) Last(words string) string {
	found := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(words)+` (.*?)\r?$`).FindAllStringSubmatch(g.Console(), -1)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1][1]
}

// Address is where it is in the hypervisor's network.
func (g Guest) Address() string {
	address, _, _ := strings.Cut(g.Last("GUEST address"), "/")
	return address
}

// Await waits until a system has started so often.
func (g Guest) Await(t testing.TB, times int) {
	t.Helper()
	patience.AwaitShowing(t, fmt.Sprintf("start %d of a system", times), g.Console, func() bool {
		return strings.Count(g.Console(), "GUEST up") >= times
	})
}

// AwaitOff waits until the hypervisor says that the server is off.
func (g Guest) AwaitOff(t testing.TB) {
	t.Helper()
	patience.Await(t, "the machine to be off", func() bool {
		state, err := g.lab.Host.Virsh(g.lab.ctx, "domstate", g.name)
		return err == nil && strings.TrimSpace(state) == "shut off"
	})
}

// SSH runs a command there as root, from the hypervisor's network, if the host key is the one that
// the console says. It gives up after 5 s where nobody answers.
func (g Guest) SSH(by Key, command string) (string, error) {
	known := filepath.Join(g.lab.dir, "known_hosts")
	if err := os.WriteFile(known, []byte(g.Address()+" "+g.Last("GUEST host-key")+"\n"), 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(g.lab.ctx, time.Minute)
	defer cancel()
	out, err := g.lab.Host.Inside(ctx, "ssh", "-F", "none", "-i", by.File, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
		"-o", "UserKnownHostsFile="+known, "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=5", "root@"+g.Address(), command).CombinedOutput()
	return string(out), err
}

// Expect fails the test unless a command over SSH prints this.
func (g Guest) Expect(t testing.TB, by Key, command, want string) {
	t.Helper()
	if out, err := g.SSH(by, command); err != nil || out != want {
		t.Errorf("%s over SSH = %q, %v; want %q", command, out, err, want)
	}
}

//go:build vm

package libvirt

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// newKey answers a public key as cloud-init takes it, and the file of the private one.
func newKey(t *testing.T) (public, file string) {
	t.Helper()
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), file
}

// A whole distribution does what the seed says: it is the one thing that a small guest can't show.
func TestDebianReadsItsSeed(t *testing.T) {
	t.Parallel()
	if os.Getenv("TENDRIL_TEST_VM") != "all" {
		t.Skip("make e2e-vm VM_TESTS=all runs it: a Debian takes minutes to start where processors are emulated")
	}
	ctx, cancel := patience.Context(t.Context(), 10*time.Minute)
	defer cancel()
	d, h := open(t), hosts[0]
	key, file := newKey(t)
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	spec := small(h)
	spec.Image, spec.Memory = "debian.qcow2", 768
	spec.Address = netip.MustParsePrefix(h.Network + ".252/24")
	spec.Gateway = netip.MustParseAddr(h.Network + ".1")
	spec.Nameservers = []netip.Addr{netip.MustParseAddr(h.Network + ".1")}
	spec.Init = pool.Init{
		User: "ops", SSHKeys: []string{key}, Keys: &keys, Wait: "agent",
		UserData: "#cloud-config\nwrite_files: [{path: /etc/greeting, content: 'written by user data'}]\nruncmd: ['echo ran >/etc/ran']\n",
	}
	began := time.Now()
	create(ctx, t, d, spec)
	t.Logf("its agent answers after %s", time.Since(began).Round(time.Second))
	for _, each := range []struct{ command, want string }{
		{"cloud-init status --wait | tail -n 1", "status: done"},
		{"cat /etc/greeting /etc/ran", "written by user dataran"},
		{"hostname", spec.Name},
		{"ip -4 -o addr show dev eth0 | grep -o '10[0-9./]*' | head -n 1", spec.Address.String()},
		{"ip route show default | cut -d' ' -f3", spec.Gateway.String()},
		{"id -un ops", "ops"},
	} {
		out := &recorder{t: t}
		if err := d.Exec(ctx, refOf(spec), each.command, out); err != nil || out.log() != each.want {
			t.Errorf("Exec(%s) = %q, %v; want %q", each.command, out.log(), err, each.want)
		}
	}
	t.Logf("cloud-init is done after %s", time.Since(began).Round(time.Second))
	// Its host key is the one that the seed gave it.
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, []byte(spec.Address.Addr().String()+" "+keys.Public(keys.Host)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := h.Inside(ctx, "ssh", "-i", file, "-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile="+known, "-o", "LogLevel=ERROR",
		"-o", "ConnectTimeout=60", "ops@"+spec.Address.Addr().String(), "id -un; sudo -n id -un").CombinedOutput()
	if err != nil || string(said) != "ops\nroot\n" {
		t.Errorf("ssh as ops, by the key = %q, %v", said, err)
	}
	if t.Failed() {
		console := h.Console("tendril-" + spec.ID + "-console.log")
		t.Logf("the console ends:\n%s", console[max(0, len(console)-4000):])
	}
}

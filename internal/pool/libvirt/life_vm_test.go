//go:build vm

package libvirt

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

const stopSignal, continueSignal = syscall.SIGSTOP, syscall.SIGCONT

func TestLifeOfAMachine(t *testing.T) {
	t.Parallel()
	ctx, d, h := limit(t), open(t), hosts[1]
	spec := small(h)
	spec.Address = netip.MustParsePrefix(h.Network + ".251/24")
	spec.Gateway = netip.MustParseAddr(h.Network + ".1")
	spec.Nameservers = []netip.Addr{netip.MustParseAddr("10.0.0.53")}
	spec.Init = pool.Init{Wait: "agent", Password: "open sesame", UserData: "runcmd: [[true]]"}
	began := time.Now()
	found, progress := create(ctx, t, d, spec)
	t.Logf("its agent answers after %s", time.Since(began).Round(time.Millisecond))
	if len(found.Addresses) != 1 || found.Addresses[0] != spec.Address.Addr() {
		t.Errorf("its addresses are %v, want %s", found.Addresses, spec.Address.Addr())
	}
	if len(progress.secrets) != 1 || progress.secrets[0] != spec.Init.Password || strings.Contains(progress.log(), spec.Init.Password) {
		t.Errorf("secrets are %q", progress.secrets)
	}
	if inventory, err := d.List(ctx); err != nil || !containsAddress(inventory.Addresses, spec.Address.Addr()) {
		t.Errorf("List = %+v, %v; want the address %s among those in use", inventory.Addresses, err, spec.Address.Addr())
	}

	for command, want := range map[string]struct {
		output string
		status int
	}{
		"ip -4 -o addr show dev eth0 | grep -c " + spec.Address.String(): {"1", 0},
		`printf 'one\ntwo'; echo three >&2; exit 7`:                      {"one\ntwothree", 7},
		`echo "$0 $1 '\"$HOME"`:                                          {`/bin/sh  '"`, 0},
		"kill -9 $$":                                                     {"", 137},
		"ls /run/tendril-*":                                              {"ls: /run/tendril-*: No such file or directory", 1},
		"cat /seed/user-data | tail -n 1 | grep -o runcmd":               {"runcmd", 0},
	} {
		out := &recorder{t: t}
		err := d.Exec(ctx, refOf(spec), command, out)
		status := 0
		var exit *pool.ExitError
		if errors.As(err, &exit) {
			status = exit.Status
		} else if err != nil {
			t.Errorf("Exec(%s): %v", command, err)
			continue
		}
		if got := strings.TrimRight(out.log(), "/"); status != want.status || got != want.output {
			t.Errorf("Exec(%s) = %q, status %d; want %q, status %d", command, got, status, want.output, want.status)
		}
	}
	out := &recorder{t: t}
	if err := d.Exec(ctx, refOf(spec), "yes | head -c 2000000", out); err != nil {
		t.Errorf("Exec of what prints much: %v", err)
	}
	if text := out.log(); len(text) > 1<<20+200 || !strings.HasSuffix(text, "the rest is not shown") {
		t.Errorf("Exec of what prints much logs %d bytes, and ends %q", len(text), text[max(0, len(text)-100):])
	}

	spec.Disk = 3
	changed, err := d.Change(ctx, refOf(spec), spec, &recorder{t: t})
	if err != nil || changed.Disk != 3 || changed.Status != provisioner.StatusRunning {
		t.Errorf("Change of the disk = %+v, %v", changed, err)
	}
	out = &recorder{t: t}
	if err := d.Exec(ctx, refOf(spec), "cat /sys/block/vda/size", out); err != nil || out.log() != fmt.Sprint(3<<30/512) {
		t.Errorf("the guest sees a disk of %s sectors, %v; want %d", out.log(), err, 3<<30/512)
	}
	stopped, err := d.Power(ctx, refOf(spec), provisioner.PowerStop, &recorder{t: t})
	if err != nil || stopped.Status != provisioner.StatusStopped || !stopped.Ready {
		t.Errorf("Power stop = %+v, %v", stopped, err)
	}
	if err := d.Exec(ctx, refOf(spec), "true", &recorder{t: t}); err == nil {
		t.Error("Exec in a machine that is stopped succeeds")
	}
	spec.Cores, spec.Memory = 2, 192
	changed, err = d.Change(ctx, refOf(spec), spec, &recorder{t: t})
	if err != nil || changed.Cores != 2 || changed.Memory != 192 || changed.Status != provisioner.StatusStopped {
		t.Errorf("Change of what is stopped = %+v, %v", changed, err)
	}
	spec.Disk = 1
	if _, err := d.Change(ctx, refOf(spec), spec, &recorder{t: t}); err == nil || !strings.Contains(err.Error(), "can't be made smaller") {
		t.Errorf("Change to a smaller disk: %v", err)
	}
	spec.Disk, spec.Cores, spec.Memory = 3, 1, 160
	started, err := d.Power(ctx, refOf(spec), provisioner.PowerStart, &recorder{t: t})
	if err != nil || started.Status != provisioner.StatusRunning {
		t.Errorf("Power start = %+v, %v", started, err)
	}
	// The start is done once it runs; it is switched off by Destroy while it boots.
	changed, err = d.Change(ctx, refOf(spec), spec, &recorder{t: t})
	if err != nil || changed.Cores != 1 || changed.Memory != 160 || changed.Status != provisioner.StatusRunning {
		t.Errorf("Change of what runs = %+v, %v", changed, err)
	}
}

func TestMachinesAtTheSameTime(t *testing.T) {
	t.Parallel()
	ctx, d := limit(t), open(t)
	var all sync.WaitGroup
	for i := range 6 {
		spec := unwaited(hosts[i%3])
		if i < 3 {
			spec.Settings = []byte(`{"full_clone": true}`)
			spec.Disk = 1
		}
		t.Cleanup(func() { destroy(t, d, spec) })
		all.Go(func() {
			found, err := d.Create(ctx, spec, &recorder{t: t})
			if err != nil || !found.Ready || found.Node != spec.Node {
				t.Errorf("Create = %+v, %v", found, err)
				return
			}
			whole(ctx, t, hosts[i%3], spec.ID)
			document, err := hosts[i%3].Virsh(ctx, "vol-dumpxml", "--pool", "default", diskName(spec.ID, "qcow2"))
			if err != nil || strings.Contains(document, "<backingStore>") != (i >= 3) {
				t.Errorf("full_clone is %t, and the disk is %s, %v", i < 3, document, err)
			}
			if i < 3 && found.Disk != 1 {
				t.Errorf("the copy has %d GiB, want 1", found.Disk)
			}
		})
	}
	all.Wait()
}

func TestListAndCheck(t *testing.T) {
	t.Parallel()
	ctx, d := limit(t), open(t)
	if err := os.WriteFile(filepath.Join(hosts[0].Images, "notes.iso"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inventory, err := d.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range inventory.Nodes {
		if node.Name != hosts[i].Name || !node.Online || node.Cores < 1 || node.Memory < 100 || node.MemoryUsed <= 0 || node.MemoryUsed >= 1 || node.CoresUsed < 0 || node.CoresUsed > 1 {
			t.Errorf("node %+v", node)
		}
		if len(node.Images) == 0 || node.Images[len(node.Images)-1].Name != "small.qcow2" {
			t.Errorf("node %s has the images %+v, want small.qcow2", node.Name, node.Images)
		}
		if len(node.Storages) != 2 || node.Storages[0].Name != "default" || !node.Storages[0].Linked || node.Storages[0].Size == 0 {
			t.Errorf("node %s has the storages %+v", node.Name, node.Storages)
		}
	}
	if len(inventory.VMIDs) != 0 {
		t.Errorf("libvirt has no VMIDs: %v", inventory.VMIDs)
	}
	var text strings.Builder
	for _, finding := range d.Check(ctx) {
		fmt.Fprintf(&text, "%s: %s %s\n", finding.What, finding.Problem, finding.Detail)
		if finding.Problem != "" && !finding.Warning {
			t.Errorf("Check: %+v", finding)
		}
	}
	for _, want := range []string{"hv1: reach:  unix://", "libvirt 9.0.0", "hv2: kvm: processors are emulated", "hv3: storage default is writable", "network default:  active", "small.qcow2 (qcow2, 65 MiB)"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("Check does not say %q:\n%s", want, text.String())
		}
	}
	// What is missing is named.
	poor := open(t, hosts[0])
	poor.config.Storages, poor.config.Networks, poor.config.ImageStorage = []string{"fast"}, []string{"lan"}, "none"
	text.Reset()
	for _, finding := range poor.Check(ctx) {
		fmt.Fprintln(&text, finding.Problem)
	}
	for _, want := range []string{`no storage pool "fast"`, `no network "lan"`, `no storage pool "none"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("Check does not say %s:\n%s", want, text.String())
		}
	}
	spec := unwaited(hosts[0])
	spec.Image = "windows-95"
	if _, err := d.Create(ctx, spec, &recorder{t: t}); err == nil || !strings.Contains(err.Error(), `no image "windows-95"`) {
		t.Errorf("Create from an image that is not there: %v", err)
	}
	if rest := left(ctx, t, hosts[0], spec.ID); len(rest) > 0 {
		t.Errorf("it left %v", rest)
	}
}

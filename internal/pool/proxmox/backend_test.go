package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/provisioner"
)

// noted is a backend that notes its calls. qemu_vm_test.go has a real one.
type noted struct {
	mu    sync.Mutex
	done  []string
	runs  bool
	last  pvesim.VM // that was started
	fails error     // what Start answers
}

func (n *noted) note(text string, runs bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.done, n.runs = append(n.done, text), runs
	return nil
}

// end is a guest that ends itself.
func (n *noted) end() { _ = n.note("end", false) }

func (n *noted) Clone(_ context.Context, to, from pvesim.VM, full bool) error {
	return n.note(fmt.Sprintf("clone %d %s %t", to.ID, from.Name, full), false)
}

func (n *noted) Start(_ context.Context, vm pvesim.VM) error {
	if n.fails != nil {
		return n.fails
	}
	n.last = vm // Start is called by one task at a time, and read after its end
	return n.note("start", true)
}
func (n *noted) Shutdown(context.Context, pvesim.VM) error { return n.note("shutdown", false) }
func (n *noted) Stop(context.Context, pvesim.VM) error     { return n.note("stop", false) }
func (n *noted) Delete(context.Context, pvesim.VM) error   { return n.note("delete", false) }

func (n *noted) Running(context.Context, pvesim.VM) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runs, nil
}

func (n *noted) Agent(_ context.Context, vm pvesim.VM, command string, _ map[string]any) (json.RawMessage, error) {
	answer := map[string]string{
		"guest-ping": `{}`, "guest-exec": `{"pid":7}`, "guest-exec-status": `{"exited":true,"exitcode":3,"out-data":"c2FpZA=="}`,
		"guest-network-get-interfaces": `[{"name":"eth0","hardware-address":"` + vm.MAC + `","ip-addresses":[{"ip-address":"10.1.2.3","ip-address-type":"ipv4","prefix":24}]}]`,
	}[command]
	if answer == "" {
		return nil, errors.New(command + " is unknown")
	}
	return json.RawMessage(answer), nil
}

// With a backend, all that the cluster says of a machine comes from the backend.
func TestBackendIsAsked(t *testing.T) {
	t.Parallel()
	n := &noted{}
	l := newLab(t, func(o *pvesim.Options) { o.Backend = n })
	d, ctx, h := l.driver(), l.context(), &heard{}
	found, err := d.Create(ctx, spec(), h)
	if err != nil || fmt.Sprint(found.Addresses) != "[10.1.2.3]" || found.Status != provisioner.StatusRunning {
		t.Fatalf("Create = %+v, %v", found, err)
	}
	vm := n.last
	if vm.ID != 500 || vm.Name != "web-1" || vm.Node != "pve1" || vm.Cores != 2 || vm.Memory != 2048 || vm.Disk != 8<<30 || !strings.Contains(l.pve.Config(500)["smbios1"], vm.UUID) || vm.UUID == "" {
		t.Errorf("what was started is %+v", vm)
	}
	for file, want := range map[string]string{
		"user-data":      `{"chpasswd":{"expire":false},"hostname":"web-1","manage_etc_hosts":true,"ssh_authorized_keys":["` + spec().Init.SSHKeys[0] + `"],"user":"student","users":["default"]}`,
		"network-config": `{"config":[{"mac_address":"` + vm.MAC + `","name":"eth0","subnets":[{"type":"dhcp4"}],"type":"physical"}],"version":1}`,
		"meta-data":      `{"instance-id":"` + vm.UUID + `"}`,
	} {
		if got := strings.TrimPrefix(string(vm.Seed[file]), "#cloud-config\n"); got != want {
			t.Errorf("%s is\n%s, want\n%s", file, got, want)
		}
	}
	if err := d.Exec(ctx, l.ref(), "x", h); !exitedWith(err, 3) || !h.said("said") {
		t.Errorf("Exec = %v, and prints %v", err, h.lines)
	}
	n.end()
	if found, err = d.Look(ctx, l.ref()); err != nil || found.Status != provisioner.StatusStopped || len(found.Addresses) > 0 {
		t.Errorf("a machine whose guest has ended = %+v, %v", found, err)
	}
	n.fails = errors.New("no memory is left on that host")
	if _, err := d.Power(ctx, l.ref(), provisioner.PowerStart, h); err == nil || !strings.Contains(err.Error(), n.fails.Error()) {
		t.Errorf("a start that fails = %v", err)
	}
	n.fails = nil
	for _, action := range []provisioner.PowerAction{provisioner.PowerStart, provisioner.PowerStop, provisioner.PowerStart} {
		if _, err := d.Power(ctx, l.ref(), action, h); err != nil {
			t.Errorf("%s: %v", action, err)
		}
	}
	if _, err := d.Change(ctx, l.ref(), spec(with(`{"snapshot":true}`), func(s *pool.Spec) { s.Memory = 4096 }), h); err == nil || !strings.Contains(err.Error(), "not implemented for machines that really run") {
		t.Errorf("a snapshot of a machine that really runs = %v", err)
	}
	if err := d.Destroy(ctx, l.ref(), h); err != nil {
		t.Error(err)
	}
	want := []string{"clone 500 debian-12 false", "start", "end", "start", "shutdown", "start", "stop", "delete"}
	if !slices.Equal(n.done, want) {
		t.Errorf("the backend has done %v, want %v", n.done, want)
	}
}

// A machine with a static address gets it by its cloud-init seed.
func TestBackendSeedOfAStaticAddress(t *testing.T) {
	t.Parallel()
	n := &noted{}
	l := newLab(t, func(o *pvesim.Options) { o.Backend = n })
	s := spec(at("10.99.0.50/24"), with(`{"search_domain":"lab.example"}`))
	if found, err := l.driver().Create(l.context(), s, &heard{}); err != nil || fmt.Sprint(found.Addresses) != "[10.99.0.50]" {
		t.Fatalf("Create = %+v, %v", found, err)
	}
	want := `"subnets":[{"address":"10.99.0.50/24","gateway":"10.99.0.1","type":"static"}],"type":"physical"},{"address":["10.99.0.1","1.1.1.1"],"search":["lab.example"],"type":"nameserver"}]`
	if got := string(n.last.Seed["network-config"]); !strings.Contains(got, want) {
		t.Errorf("network-config is %s, want %s", got, want)
	}
}

func exitedWith(err error, status int) bool {
	var exit *pool.ExitError
	return errors.As(err, &exit) && exit.Status == status
}

//go:build vm

package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tendril-run/tendril/internal/pool/libvirt"
	"github.com/tendril-run/tendril/internal/pvesim"
	"github.com/tendril-run/tendril/internal/testkit/hypervisors"
)

// qemu really runs the simulator's machines: each is a domain of a libvirt daemon, which has the
// machine's UUID and MAC address, and the name vm- and its VMID.
type qemu struct {
	hosts  map[string]*hypervisors.Host // by the node that each is
	images map[string]string            // files, by the names of the templates made by hand
}

var _ pvesim.Backend = (*qemu)(nil)

// files are a machine's disk and seed.
func (q *qemu) files(vm pvesim.VM) (disk, seed string) {
	base := filepath.Join(q.hosts[vm.Node].Dir, "vm-"+vm.UUID)
	return base + ".qcow2", base + "-seed.iso"
}

// virsh has libvirt do something, mostly to the domain of that UUID. Its errors are one line.
func (q *qemu) virsh(ctx context.Context, vm pvesim.VM, args ...string) (string, error) {
	out, err := q.hosts[vm.Node].Virsh(ctx, args...)
	switch {
	case err != nil && strings.Contains(out, "failed to get domain"):
		err = errNoDomain
	case err != nil:
		err = errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return out, err
}

var errNoDomain = errors.New("there is no such domain")

func qemuImg(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "qemu-img", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("qemu-img %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (q *qemu) Clone(ctx context.Context, to, from pvesim.VM, full bool) (err error) {
	source, _ := q.files(from)
	if _, err := os.Stat(source); err != nil {
		if source = q.images[from.Name]; source == "" {
			return fmt.Errorf("VM %d has no disk, and no image is called %s", from.ID, from.Name)
		}
	}
	disk, _ := q.files(to)
	defer func() {
		if err != nil {
			_ = os.Remove(disk)
		}
	}()
	if full {
		err = qemuImg(ctx, "convert", "-f", "qcow2", "-O", "qcow2", source, disk)
	} else {
		err = qemuImg(ctx, "create", "-q", "-f", "qcow2", "-b", source, "-F", "qcow2", disk)
	}
	if err != nil {
		return err
	}
	return q.define(ctx, to)
}

// define makes a domain, or changes what it is from its next start on.
func (q *qemu) define(ctx context.Context, vm pvesim.VM) error {
	disk, seed := q.files(vm)
	// Both are virtio disks, whatever the configuration calls them: the small guest has no other
	// drivers, and cloud-init takes any disk with the label.
	disks := "<disk type='file'><driver name='qemu' type='qcow2'/><source file='" + disk + "'/><target dev='vda' bus='virtio'/><boot order='1'/></disk>"
	if vm.Seed != nil {
		disks += "<disk type='file'><driver name='qemu' type='raw'/><source file='" + seed + "'/><target dev='vdb' bus='virtio'/><readonly/></disk>"
	}
	document := fmt.Sprintf("<domain type='qemu'><name>vm-%d</name><uuid>%s</uuid><memory unit='MiB'>%d</memory><vcpu>%d</vcpu>"+
		"<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><apic/></features><devices>%s"+
		"<interface type='network'><source network='default'/><mac address='%s'/><model type='virtio'/></interface>"+
		"<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"+
		"<serial type='pty'><log file='/var/log/libvirt/qemu/vm-%[1]d.log' append='on'/></serial><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng></devices></domain>",
		vm.ID, vm.UUID, vm.Memory, vm.Cores, disks, vm.MAC)
	file := strings.TrimSuffix(disk, ".qcow2") + ".xml"
	defer func() { _ = os.Remove(file) }()
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		return err
	}
	_, err := q.virsh(ctx, vm, "define", file)
	return err
}

func (q *qemu) Start(ctx context.Context, vm pvesim.VM) error {
	disk, seed := q.files(vm)
	if vm.Seed != nil {
		content, err := libvirt.SeedImage(vm.Seed)
		if err == nil {
			err = os.WriteFile(seed, content, 0o600)
		}
		if err != nil {
			return err
		}
	}
	if err := qemuImg(ctx, "resize", "-q", "-f", "qcow2", disk, fmt.Sprint(vm.Disk)); err != nil {
		return err
	}
	if err := q.define(ctx, vm); err != nil {
		return err
	}
	_, err := q.virsh(ctx, vm, "start", vm.UUID)
	return err
}

func (q *qemu) Shutdown(ctx context.Context, vm pvesim.VM) error {
	_, err := q.virsh(ctx, vm, "shutdown", vm.UUID)
	return err
}

func (q *qemu) Stop(ctx context.Context, vm pvesim.VM) error {
	out, err := q.virsh(ctx, vm, "destroy", vm.UUID)
	if err != nil && strings.Contains(out, "domain is not running") {
		return nil
	}
	return err
}

func (q *qemu) Delete(ctx context.Context, vm pvesim.VM) error {
	if _, err := q.virsh(ctx, vm, "undefine", vm.UUID); err != nil && !errors.Is(err, errNoDomain) {
		return err
	}
	disk, seed := q.files(vm)
	for _, file := range []string{disk, seed} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (q *qemu) Running(ctx context.Context, vm pvesim.VM) (bool, error) {
	state, err := q.virsh(ctx, vm, "domstate", vm.UUID)
	switch {
	case errors.Is(err, errNoDomain):
		return false, nil
	case err != nil:
		return false, err
	}
	state = strings.TrimSpace(state)
	return state != "shut off" && state != "crashed", nil
}

func (q *qemu) Agent(ctx context.Context, vm pvesim.VM, command string, arguments map[string]any) (json.RawMessage, error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	out, err := q.virsh(ctx, vm, "qemu-agent-command", vm.UUID, "--timeout", "10", string(text))
	if err != nil {
		return nil, err
	}
	var answer struct{ Return json.RawMessage }
	err = json.Unmarshal([]byte(out), &answer)
	return answer.Return, err
}

package hypervisors

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// blank is a machine as a server is when it is delivered: an empty disk of 5 GiB, an empty CD
// drive, USB, and a network card. It starts from its disk, which has nothing to start.
const blank = `<domain type='qemu'><name>%[1]s</name><memory unit='MiB'>1024</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os><features><acpi/></features>
<devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%[2]s'/><target dev='vda' bus='virtio'/></disk>
<disk type='file' device='cdrom'><driver name='qemu' type='raw'/><target dev='sda' bus='sata'/><readonly/></disk>
<controller type='usb' model='qemu-xhci'/>
<interface type='network'><source network='default'/><model type='virtio'/></interface>
<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
<serial type='file'><source path='%[3]s' append='on'/><target port='0'/></serial>
</devices></domain>`

// Blank defines a machine that has no system, and answers its UUID. It is off. [Host.Console]
// answers what it prints, by name + ".log".
func (h *Host) Blank(ctx context.Context, name string) (id string, err error) {
	disk, console := filepath.Join(h.Dir, name+".qcow2"), filepath.Join(h.Dir, "log/qemu", name+".log")
	if out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", disk, "5G").CombinedOutput(); err != nil {
		return "", fmt.Errorf("the disk of %s: %w: %s", name, err, out)
	}
	document := filepath.Join(h.Dir, name+".xml")
	if err := os.WriteFile(document, fmt.Appendf(nil, blank, name, disk, console), 0o600); err != nil {
		return "", err
	}
	if _, err := h.Virsh(ctx, "define", document); err != nil {
		return "", err
	}
	id, err = h.Virsh(ctx, "domuuid", name)
	return strings.TrimSpace(id), err
}

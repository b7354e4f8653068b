package libvirt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// settings is the template's block libvirt { … }.
type settings struct {
	// Network is a network of libvirt's, or bridge:NAME for a bridge of the host.
	Network string `json:"network"`
	// VLAN is a tag from 1 to 4094; the network or bridge must be able to have them.
	VLAN int `json:"vlan"`
	// Storage is the storage pool of the disk.
	Storage string `json:"storage"`
	// FullClone copies the image instead of referring to it.
	FullClone bool `json:"full_clone"`
	// Firmware is bios or efi.
	Firmware string `json:"firmware"`
	// VirtType is kvm or qemu.
	VirtType string `json:"virt_type"`
	// CPU is the processor that the guest sees: host-passthrough, host-model, maximum or a
	// model's name.
	CPU string `json:"cpu"`
}

// resourceName is what storage pools, networks, bridges and CPU models may be called here.
// They stand in XML and errors, so this is only about what people can mean.
var resourceName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}$`)

// bridgePrefix marks a network that is a bridge of the host and none of libvirt's.
const bridgePrefix = "bridge:"

// parseSettings checks a template's block; the first error names the setting.
func (d *driver) parseSettings(raw json.RawMessage) (settings, error) {
	var s settings
	if err := pool.ReadSettings("libvirt", raw, &s); err != nil {
		return s, err
	}
	bridge := strings.TrimPrefix(s.Network, bridgePrefix)
	switch {
	case s.Network != "" && !resourceName.MatchString(bridge):
		return s, fmt.Errorf("libvirt: network %q is no name of a network; write bridge:NAME for a bridge of the host", cut(s.Network, 100))
	case s.Storage != "" && !resourceName.MatchString(s.Storage):
		return s, fmt.Errorf("libvirt: storage %q is no name of a storage pool", cut(s.Storage, 100))
	case s.CPU != "" && !resourceName.MatchString(s.CPU):
		return s, fmt.Errorf("libvirt: cpu %q is neither host-passthrough, host-model, maximum nor a model's name", cut(s.CPU, 100))
	case s.VLAN < 0 || s.VLAN > 4094:
		return s, fmt.Errorf("libvirt: vlan must be 1 to 4094, and is %d", s.VLAN)
	case !slices.Contains([]string{"", "bios", "efi"}, s.Firmware):
		return s, fmt.Errorf("libvirt: firmware must be bios or efi, and is %q", cut(s.Firmware, 100))
	case !slices.Contains([]string{"", "kvm", "qemu"}, s.VirtType):
		return s, fmt.Errorf("libvirt: virt_type must be kvm or qemu, and is %q", cut(s.VirtType, 100))
	}
	var err error
	if s.Network, err = allowed("network", s.Network, d.config.Networks, "default"); err != nil {
		return s, err
	}
	s.Storage, err = allowed("storage", s.Storage, d.config.Storages, "default")
	return s, err
}

// allowed answers the name that a template means, of those that the pool's operator allows.
func allowed(setting, name string, names []string, usual string) (string, error) {
	switch {
	case name == "" && len(names) > 0:
		return names[0], nil
	case name == "":
		return usual, nil
	case len(names) > 0 && !slices.Contains(names, name):
		return "", fmt.Errorf("libvirt: the pool's operator allows no %s %q%s", setting, name, provision.DidYouMean(name, names))
	}
	return name, nil
}

package libvirt

import (
	"bytes"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/pool"
)

// namespace is that of the mark. It is a name and leads to no page.
const namespace = "https://tendril.run/xmlns/libvirt/machine/1"

// stage says how far a machine's making has come. It is written after what it says was done.
type stage string

const (
	stageDefined stage = "defined" // the domain exists
	stageMade    stage = "made"    // its volumes are whole
	stageReady   stage = "ready"   // it was started, and was ready
	// stageRestarting is ready, and says that it ran and is restarted for a change.
	stageRestarting stage = "restarting"
)

// ready says whether a machine of this stage was made to its end.
func (s stage) ready() bool { return s == stageReady || s == stageRestarting }

// mark is the element of a domain's metadata that says whose it is.
type mark struct {
	XMLName   xml.Name `xml:"https://tendril.run/xmlns/libvirt/machine/1 machine"`
	ID        string   `xml:"id,attr"`
	Workspace string   `xml:"workspace,attr,omitempty"`
	Stage     stage    `xml:"stage,attr"`
	Storage   string   `xml:"storage,attr"`           // of its volumes
	Disk      string   `xml:"disk,attr"`              // the volume's name
	Address   string   `xml:"address,attr,omitempty"` // a static one
}

func (m mark) xml() (string, error) {
	text, err := xml.Marshal(m)
	return string(text), err
}

// markOf finds the mark in a domain's metadata. Two marks are none: somebody wrote there.
func markOf(metadata *libvirtxml.DomainMetadata) (mark, bool) {
	if metadata == nil {
		return mark{}, false
	}
	var found []mark
	decoder := xml.NewDecoder(strings.NewReader(metadata.XML))
	for {
		token, err := decoder.Token()
		if err != nil {
			break
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Space != namespace || start.Name.Local != "machine" {
			if decoder.Skip() != nil {
				break
			}
			continue
		}
		var m mark
		if decoder.DecodeElement(&m, &start) != nil {
			return mark{}, false
		}
		found = append(found, m)
	}
	if len(found) != 1 {
		return mark{}, false
	}
	return found[0], true
}

// macOf answers a machine's MAC address: always the same for one id, locally administered. libvirt's own
// have 24 random bits, too few for a large network.
func macOf(id string) string {
	sum := sha256.Sum256([]byte("tendril/mac/" + id))
	mac := net.HardwareAddr{0x52, sum[0], sum[1], sum[2], sum[3], sum[4]}
	return mac.String()
}

// diskName and seedName are the volumes of a machine: the id in the name is their mark.
func diskName(id, format string) string { return "tendril-" + id + "." + format }
func seedName(id string) string         { return "tendril-" + id + "-seed.iso" }

// volumePrefix begins the names of all volumes that are made here.
const volumePrefix = "tendril-"

// consoleLog is where the hypervisor keeps what a machine prints: libvirt's own directory of
// logs, whose rotation it has already. Not the storage pool's: a file there that libvirt does
// not know makes destroying and refreshing the pool fail.
func consoleLog(id string) string { return "/var/log/libvirt/qemu/tendril-" + id + "-console.log" }

// plan is what is decided about a machine before its domain is defined.
type plan struct {
	settings
	format   string // of the disk: qcow2 or raw
	virtType string
}

// define makes the domain's document. All that comes from elsewhere goes through the encoder.
func define(spec pool.Spec, plan plan) (string, error) {
	m := mark{ID: spec.ID, Workspace: spec.Workspace, Stage: stageDefined, Storage: plan.Storage, Disk: diskName(spec.ID, plan.format)}
	if spec.Address.IsValid() {
		m.Address = spec.Address.String()
	}
	metadata, err := m.xml()
	if err != nil {
		return "", err
	}
	zero := uint(0)
	disk := func(dev, format, volume string) libvirtxml.DomainDisk {
		return libvirtxml.DomainDisk{
			Device: "disk",
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: format},
			Source: &libvirtxml.DomainDiskSource{Volume: &libvirtxml.DomainDiskSourceVolume{Pool: plan.Storage, Volume: volume}},
			Target: &libvirtxml.DomainDiskTarget{Dev: dev, Bus: "virtio"},
		}
	}
	root := disk("vda", plan.format, m.Disk)
	root.Driver.Discard = "unmap"
	root.Boot = &libvirtxml.DomainDeviceBoot{Order: 1}
	// A virtio disk and not a CD-ROM: the kernels of cloud images often lack drivers for IDE
	// and SATA, and cloud-init takes any disk with the label.
	seed := disk("vdb", "raw", seedName(spec.ID))
	seed.ReadOnly = &libvirtxml.DomainDiskReadOnly{}

	network := libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: macOf(spec.ID)},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		Source: &libvirtxml.DomainInterfaceSource{},
	}
	if bridge, ok := strings.CutPrefix(plan.Network, bridgePrefix); ok {
		network.Source.Bridge = &libvirtxml.DomainInterfaceSourceBridge{Bridge: bridge}
	} else {
		network.Source.Network = &libvirtxml.DomainInterfaceSourceNetwork{Network: plan.Network}
	}
	if plan.VLAN != 0 {
		network.VLan = &libvirtxml.DomainInterfaceVLan{Tags: []libvirtxml.DomainInterfaceVLanTag{{ID: uint(plan.VLAN)}}}
	}

	domain := libvirtxml.Domain{
		Type:        plan.virtType,
		Name:        spec.Name,
		UUID:        spec.ID,
		Title:       title(spec),
		Description: describe(spec),
		Metadata:    &libvirtxml.DomainMetadata{XML: metadata},
		Memory:      &libvirtxml.DomainMemory{Value: uint(spec.Memory), Unit: "MiB"},
		VCPU:        &libvirtxml.DomainVCPU{Value: uint(spec.Cores)},
		OS:          &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: "q35", Type: "hvm"}},
		Features:    &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		Clock:       &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff:  "destroy", OnReboot: "restart", OnCrash: "destroy",
		Devices: &libvirtxml.DomainDeviceList{
			Disks:      []libvirtxml.DomainDisk{root, seed},
			Interfaces: []libvirtxml.DomainInterface{network},
			Serials: []libvirtxml.DomainSerial{{
				Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
				Target: &libvirtxml.DomainSerialTarget{Port: &zero},
				Log:    &libvirtxml.DomainChardevLog{File: consoleLog(spec.ID), Append: "on"},
			}},
			Channels: []libvirtxml.DomainChannel{{
				Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{}},
				Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: "org.qemu.guest_agent.0"}},
			}},
			RNGs: []libvirtxml.DomainRNG{{
				Model:   "virtio",
				Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			}},
			MemBalloon: &libvirtxml.DomainMemBalloon{Model: "virtio"},
		},
	}
	if plan.Firmware == "efi" {
		domain.OS.Firmware = "efi"
	}
	switch {
	case plan.CPU == "host-passthrough", plan.CPU == "host-model", plan.CPU == "maximum":
		domain.CPU = &libvirtxml.DomainCPU{Mode: plan.CPU}
	case plan.CPU != "":
		domain.CPU = &libvirtxml.DomainCPU{Mode: "custom", Match: "exact", Model: &libvirtxml.DomainCPUModel{Value: plan.CPU}}
	case plan.virtType == "kvm":
		domain.CPU = &libvirtxml.DomainCPU{Mode: "host-model"}
	}
	text, err := xml.MarshalIndent(domain, "", "  ")
	if err != nil {
		return "", fmt.Errorf("the domain's document: %w", err)
	}
	return string(text), nil
}

// title and describe are for people who see the hypervisor. A title may have no line break.
func title(spec pool.Spec) string {
	return cut(strings.Map(printable, "Tendril: "+spec.Name+" ("+spec.Workspace+")"), 200)
}

func describe(spec pool.Spec) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Made by Tendril for workspace %s. Don't change or remove it here: deploy or destroy it there.", spec.Workspace)
	for _, key := range slices.Sorted(maps.Keys(spec.Labels)) {
		if b.Len() > 4000 {
			break
		}
		fmt.Fprintf(&b, "\n%s: %s", key, spec.Labels[key])
	}
	return cut(strings.Map(printableOrBreak, b.String()), 4096)
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f || r == 0xfffe || r == 0xffff {
		return ' '
	}
	return r
}

func printableOrBreak(r rune) rune {
	if r == '\n' {
		return r
	}
	return printable(r)
}

// parseDomain reads a domain's document as the hypervisor gives it.
func parseDomain(text string) (*libvirtxml.Domain, error) {
	if len(text) > maxDocument {
		return nil, fmt.Errorf("its document has %d bytes, and at most %d are read", len(text), maxDocument)
	}
	var domain libvirtxml.Domain
	if err := xml.Unmarshal([]byte(text), &domain); err != nil {
		return nil, fmt.Errorf("its document can't be read: %w", err)
	}
	return &domain, nil
}

// maxDocument bounds an XML document of a hypervisor, in bytes.
const maxDocument = 1 << 20

// static answers the address that the machine was given, if it was.
func (m mark) static() (netip.Addr, bool) {
	prefix, err := netip.ParsePrefix(m.Address)
	return prefix.Addr(), err == nil
}

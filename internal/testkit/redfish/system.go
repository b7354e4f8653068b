package redfish

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"libvirt.org/go/libvirtxml"
)

const manufacturer = "Tendril"

// What a client may ask for.
var (
	resets  = []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "GracefulRestart", "Nmi"}
	targets = []string{"None", "Cd", "Hdd", "Pxe"}
	enables = []string{"Disabled", "Once", "Continuous"}
	modes   = []string{"Legacy", "UEFI"}
)

// system is what the firmware of a server remembers; the rest is the domain's.
type system struct {
	mu              sync.Mutex
	target, enabled string // of the boot override
	asset, light    string
	attributes      map[string]any // of the BIOS
	pending         map[string]any // those of the next start
	drives          map[string]*drive
	sensors         Sensors
	stuck           bool
	restarting      bool // its guest is asked to shut down, and it starts then
}

// system answers what is remembered of a server.
func (s *Server) system(id string) *system {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.systems[id] == nil {
		s.systems[id] = &system{
			target: "None", enabled: "Disabled", light: "Off", sensors: Healthy(),
			attributes: defaultBIOS(), pending: map[string]any{},
			drives: map[string]*drive{"Cd": {}, "UsbStick": {}},
		}
	}
	return s.systems[id]
}

// mode is how a domain's firmware starts.
func mode(document *libvirtxml.Domain) string {
	if os := document.OS; os != nil && (os.Firmware == "efi" || os.Loader != nil && os.Loader.Type == "pflash") {
		return "UEFI"
	}
	return "Legacy"
}

func processors(document *libvirtxml.Domain) int {
	if document.VCPU == nil || document.VCPU.Value == 0 {
		return 1
	}
	return int(document.VCPU.Value)
}

// mebibytes is a domain's memory.
func mebibytes(document *libvirtxml.Domain) int {
	if document.Memory == nil {
		return 0
	}
	switch document.Memory.Unit {
	case "b", "bytes":
		return int(document.Memory.Value >> 20)
	case "", "k", "KiB":
		return int(document.Memory.Value >> 10)
	case "G", "GiB":
		return int(document.Memory.Value << 10)
	}
	return int(document.Memory.Value)
}

// resource is the computer system. Its state must not change meanwhile.
func (each *system) resource(d Domain) resource {
	path := SystemPath(d.ID)
	health := each.sensors.health(d.Power)
	cpus, memory := processors(d.Document), mebibytes(d.Document)
	state := status(health)
	if d.Power == Off {
		state["State"] = "StandbyOffline"
	}
	return resource{
		"@odata.id": path, "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": d.ID, "Name": d.Name, "HostName": d.Name,
		"UUID": d.ID, "SystemType": "Virtual", "Manufacturer": manufacturer, "Model": "Domain", "SerialNumber": d.ID[:8], "SKU": "",
		"AssetTag": each.asset, "IndicatorLED": each.light, "PowerState": d.Power, "BiosVersion": "1.0", "Status": state,
		"Boot": resource{
			"BootSourceOverrideEnabled": each.enabled, "BootSourceOverrideTarget": each.target, "BootSourceOverrideMode": mode(d.Document),
			"BootSourceOverrideTarget@Redfish.AllowableValues": targets, "BootSourceOverrideEnabled@Redfish.AllowableValues": enables,
			"BootSourceOverrideMode@Redfish.AllowableValues": modes,
		},
		"ProcessorSummary": resource{"Count": 1, "CoreCount": cpus, "LogicalProcessorCount": cpus, "Model": "QEMU", "Status": status("OK")},
		"MemorySummary":    resource{"TotalSystemMemoryGiB": float64(memory) / 1024, "Status": status("OK")},
		"Processors":       link(path + "/Processors"), "Memory": link(path + "/Memory"), "Bios": link(path + "/Bios"),
		"EthernetInterfaces": link(path + "/EthernetInterfaces"), "Storage": link(path + "/Storage"),
		"Links": resource{"ManagedBy": links(serviceRoot + "/Managers/" + d.ID), "Chassis": links(serviceRoot + "/Chassis/" + d.ID)},
		"Actions": resource{"#ComputerSystem.Reset": resource{
			"target": path + "/Actions/ComputerSystem.Reset", "ResetType@Redfish.AllowableValues": resets,
		}},
	}
}

func (s *Server) showSystem(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Allow", "GET, HEAD, PATCH")
	return show(w, each.resource(d))
}

// changeSystem takes the boot override, the asset tag and the indicator's light. Where one of them
// can't be, nothing is changed.
func (s *Server) changeSystem(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	if err := unchanged(r, each.resource(d)); err != nil {
		return err
	}
	var asked struct {
		Boot struct {
			Target  string `json:"BootSourceOverrideTarget"`
			Enabled string `json:"BootSourceOverrideEnabled"`
			Mode    string `json:"BootSourceOverrideMode"`
		}
		AssetTag     *string
		IndicatorLED string
	}
	if err := read(r, &asked); err != nil {
		return err
	}
	for _, check := range []struct {
		property, value string
		allowed         []string
	}{
		{"Boot/BootSourceOverrideTarget", asked.Boot.Target, targets},
		{"Boot/BootSourceOverrideEnabled", asked.Boot.Enabled, enables},
		{"Boot/BootSourceOverrideMode", asked.Boot.Mode, modes},
		{"IndicatorLED", asked.IndicatorLED, []string{"Off", "Lit", "Blinking"}},
	} {
		if check.value != "" && !slices.Contains(check.allowed, check.value) {
			return wrongValue(check.property, check.value, check.allowed...)
		}
	}
	if asked.Boot.Mode != "" && asked.Boot.Mode != mode(d.Document) {
		setMode(d.Document, asked.Boot.Mode)
		if err := s.hypervisor.Define(r.Context(), d.Document); err != nil {
			// Without OVMF libvirt finds no firmware.
			return &problem{http.StatusBadRequest, "PropertyValueConflict", "The firmware can't start in mode " + asked.Boot.Mode + ": " + err.Error(), []string{"BootSourceOverrideMode", asked.Boot.Mode}}
		}
	}
	each.target, each.enabled = or(asked.Boot.Target, each.target), or(asked.Boot.Enabled, each.enabled)
	each.light = or(asked.IndicatorLED, each.light)
	if asked.AssetTag != nil {
		each.asset = *asked.AssetTag
	}
	return done(w)
}

// setMode gives a document other firmware.
func setMode(document *libvirtxml.Domain, mode string) {
	if document.OS == nil {
		document.OS = &libvirtxml.DomainOS{}
	}
	document.OS.Loader, document.OS.NVRam, document.OS.FirmwareInfo, document.OS.Firmware = nil, nil, nil, ""
	if mode == "UEFI" {
		document.OS.Firmware = "efi"
	}
}

func (s *Server) reset(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	var asked struct{ ResetType string }
	if err := read(r, &asked); err != nil {
		return err
	}
	switch {
	case asked.ResetType == "":
		return missing("ComputerSystem.Reset", "ResetType")
	case !slices.Contains(resets, asked.ResetType):
		return wrongValue("ResetType", asked.ResetType, resets...)
	case each.stuck:
		return done(w)
	}
	var err error
	switch running := d.Power != Off; asked.ResetType {
	case "On":
		if !running {
			err = s.start(r.Context(), each, d)
		}
	case "ForceOff":
		if running {
			err = s.hypervisor.Stop(r.Context(), d.ID)
		}
	case "GracefulShutdown":
		if running {
			err = s.hypervisor.Shutdown(r.Context(), d.ID)
		}
	case "ForceRestart":
		if running {
			err = s.hypervisor.Stop(r.Context(), d.ID)
		}
		if err == nil {
			err = s.start(r.Context(), each, d)
		}
	case "GracefulRestart":
		if !running {
			err = s.start(r.Context(), each, d)
			break
		}
		if err = s.hypervisor.Shutdown(r.Context(), d.ID); err == nil && !each.restarting {
			each.restarting = true
			s.work.Go(func() { s.startWhenOff(each, d.ID) })
		}
	case "Nmi":
		if !running {
			return &problem{http.StatusConflict, "ResourceInStandby", "The request could not be performed because the resource is in standby.", nil}
		}
		err = s.hypervisor.Interrupt(r.Context(), d.ID)
	}
	if err != nil {
		return err
	}
	return done(w)
}

// start starts a server as its firmware does: it takes the pending attributes, and the boot override.
func (s *Server) start(ctx context.Context, each *system, d Domain) error {
	var once *libvirtxml.Domain
	if each.enabled != "Disabled" && each.target != "None" {
		once = d.Document
		bootFrom(once, each.target)
	}
	if err := s.hypervisor.Start(ctx, d.ID, once); err != nil {
		return err
	}
	for name, value := range each.pending {
		each.attributes[name] = value
	}
	clear(each.pending)
	if each.enabled == "Once" {
		each.enabled, each.target = "Disabled", "None"
	}
	return nil
}

// startWhenOff is the second half of a graceful restart: a guest that doesn't shut down runs on.
func (s *Server) startWhenOff(each *system, id string) {
	ctx, cancel := context.WithTimeout(s.ctx, restartTimeout)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	try := func() (over bool) {
		each.mu.Lock()
		defer each.mu.Unlock()
		d, err := s.hypervisor.Domain(ctx, id)
		if err == nil && d.Power != Off {
			return false
		}
		each.restarting = false
		if err == nil {
			_ = s.start(ctx, each, d) // a server that doesn't start stays off
		}
		return true
	}
	for !try() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			each.mu.Lock()
			defer each.mu.Unlock()
			each.restarting = false
			return
		}
	}
}

// bootFrom puts a kind of device first in a document, and keeps the order of the others.
func bootFrom(document *libvirtxml.Domain, target string) {
	type device struct {
		kind string
		boot **libvirtxml.DomainDeviceBoot
	}
	var all []device
	if document.Devices == nil {
		return
	}
	for i := range document.Devices.Disks {
		disk := &document.Devices.Disks[i]
		if isStick(disk) { // it has data, and nothing to start
			disk.Boot = nil
			continue
		}
		kind := "Hdd"
		if disk.Device == "cdrom" {
			kind = "Cd"
		}
		all = append(all, device{kind, &disk.Boot})
	}
	for i := range document.Devices.Interfaces {
		all = append(all, device{"Pxe", &document.Devices.Interfaces[i].Boot})
	}
	rank := map[string]int{}
	if document.OS != nil {
		for i, each := range document.OS.BootDevices {
			rank[map[string]string{"hd": "Hdd", "cdrom": "Cd", "network": "Pxe"}[each.Dev]] = i + 1
		}
		document.OS.BootDevices = nil // libvirt takes the order of the one kind or of the other
	}
	place := func(d device) int {
		switch {
		case d.kind == target:
			return 0
		case *d.boot != nil:
			return int((*d.boot).Order)
		case rank[d.kind] > 0:
			return rank[d.kind]
		}
		return 1000
	}
	slices.SortStableFunc(all, func(a, b device) int { return place(a) - place(b) })
	order := uint(0)
	for _, each := range all {
		if place(each) == 1000 { // nor did the domain start from it before
			continue
		}
		order++
		*each.boot = &libvirtxml.DomainDeviceBoot{Order: order}
	}
}

func (s *Server) processors(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := SystemPath(d.ID) + "/Processors"
	return show(w, collection(path, "ProcessorCollection", "Processors Collection", path+"/CPU0"))
}

func (s *Server) processor(_ *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	if r.PathValue("id") != "CPU0" {
		return unknown("Processor", r.PathValue("id"))
	}
	cpus := processors(d.Document)
	return show(w, resource{
		"@odata.id": SystemPath(d.ID) + "/Processors/CPU0", "@odata.type": "#Processor.v1_16_0.Processor", "Id": "CPU0", "Name": "Processor",
		"Socket": "CPU 0", "ProcessorType": "CPU", "ProcessorArchitecture": "x86", "InstructionSet": "x86-64", "Manufacturer": "QEMU",
		"Model": "QEMU", "MaxSpeedMHz": 2000, "TotalCores": cpus, "TotalThreads": cpus, "Status": status("OK"),
	})
}

func (s *Server) memories(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := SystemPath(d.ID) + "/Memory"
	return show(w, collection(path, "MemoryCollection", "Memory Collection", path+"/DIMM0"))
}

func (s *Server) memory(_ *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	if r.PathValue("id") != "DIMM0" {
		return unknown("Memory", r.PathValue("id"))
	}
	return show(w, resource{
		"@odata.id": SystemPath(d.ID) + "/Memory/DIMM0", "@odata.type": "#Memory.v1_17_0.Memory", "Id": "DIMM0", "Name": "DIMM 0",
		"MemoryType": "DRAM", "MemoryDeviceType": "DDR4", "CapacityMiB": mebibytes(d.Document), "Status": status("OK"),
	})
}

// macs are the addresses of a domain's network cards, without their colons.
func macs(document *libvirtxml.Domain) (all []string) {
	if document.Devices != nil {
		for _, each := range document.Devices.Interfaces {
			if each.MAC != nil {
				all = append(all, strings.ReplaceAll(each.MAC.Address, ":", ""))
			}
		}
	}
	return all
}

func (s *Server) interfaces(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := SystemPath(d.ID) + "/EthernetInterfaces"
	all := macs(d.Document)
	for i, each := range all {
		all[i] = path + "/" + each
	}
	return show(w, collection(path, "EthernetInterfaceCollection", "Ethernet Interface Collection", all...))
}

func (s *Server) ethernet(_ *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	at := slices.Index(macs(d.Document), id)
	if at < 0 {
		return unknown("EthernetInterface", id)
	}
	var address []string
	for i := 0; i+2 <= len(id); i += 2 {
		address = append(address, id[i:i+2])
	}
	mac, up := strings.Join(address, ":"), "LinkDown"
	if d.Power != Off {
		up = "LinkUp"
	}
	return show(w, resource{
		"@odata.id": SystemPath(d.ID) + "/EthernetInterfaces/" + id, "@odata.type": "#EthernetInterface.v1_9_0.EthernetInterface",
		"Id": id, "Name": "NIC " + strconv.Itoa(at+1), "MACAddress": mac, "PermanentMACAddress": mac, "InterfaceEnabled": true,
		"SpeedMbps": 1000, "FullDuplex": true, "LinkStatus": up, "Status": status("OK"),
	})
}

// disks are the targets of a domain's disks that no virtual medium is.
func disks(document *libvirtxml.Domain) (all []string) {
	if document.Devices != nil {
		for i := range document.Devices.Disks {
			if disk := &document.Devices.Disks[i]; (disk.Device == "" || disk.Device == "disk") && disk.Target != nil && !isStick(disk) {
				all = append(all, disk.Target.Dev)
			}
		}
	}
	return all
}

func (s *Server) storages(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := SystemPath(d.ID) + "/Storage"
	return show(w, collection(path, "StorageCollection", "Storage Collection", path+"/1"))
}

func (s *Server) storage(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := SystemPath(d.ID) + "/Storage/1"
	all := disks(d.Document)
	for i, each := range all {
		all[i] = path + "/Drives/" + each
	}
	return show(w, resource{
		"@odata.id": path, "@odata.type": "#Storage.v1_14_0.Storage", "Id": "1", "Name": "Local storage", "Status": status("OK"),
		"Drives": links(all...), "Drives@odata.count": len(all),
	})
}

func (s *Server) disk(_ *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if !slices.Contains(disks(d.Document), id) {
		return unknown("Drive", id)
	}
	size, err := s.hypervisor.Capacity(r.Context(), d.ID, id)
	if err != nil {
		return err
	}
	return show(w, resource{
		"@odata.id": SystemPath(d.ID) + "/Storage/1/Drives/" + id, "@odata.type": "#Drive.v1_16_0.Drive", "Id": id, "Name": "Drive " + id,
		"CapacityBytes": size, "BlockSizeBytes": 512, "MediaType": "HDD", "Protocol": "SATA", "Manufacturer": "QEMU", "Model": "QEMU HARDDISK",
		"SerialNumber": fmt.Sprintf("%s-%s", d.ID[:8], id), "Status": status("OK"),
	})
}

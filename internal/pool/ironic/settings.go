package ironic

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// settings are a template's block ironic { … }.
type settings struct {
	// ResourceClass and Traits are those that an allocation asks for. Without a class it is that of
	// the server on which the database has placed the machine.
	ResourceClass string   `json:"resource_class"`
	Traits        []string `json:"traits"`
	// RootDevice are hints for the disk to write to: names such as serial or size, and values.
	RootDevice map[string]string `json:"root_device"`
	// RootGB is the size of the root partition, of images of a partition.
	RootGB int `json:"root_gb"`
	// Capabilities are told to the deployment, with what BootMode and SecureBoot come to.
	Capabilities map[string]string `json:"capabilities"`
	BootMode     string            `json:"boot_mode"`
	SecureBoot   *bool             `json:"secure_boot"`
	// KernelParams are appended to the kernel's, where the deployment allows that.
	KernelParams string `json:"kernel_params"`
	// BIOS are settings of the firmware, by name. RAID has logical_disks as Ironic has them.
	BIOS map[string]string `json:"bios"`
	RAID *raid             `json:"raid"`
	// Steps are further steps of the deployment.
	Steps []step `json:"deploy_steps"`
	// MetaData and NetworkData are parts of the config drive; what Tendril itself says goes first.
	MetaData    map[string]any `json:"meta_data"`
	NetworkData map[string]any `json:"network_data"`
	// Clean is what becomes of the disks when the machine is destroyed: "metadata", "full", "none";
	// "" leaves it to Ironic's configuration.
	Clean string `json:"clean"`
	// Limits of how long a server may be in one state, such as "90m".
	DeployTimeout string `json:"deploy_timeout"`
	CleanTimeout  string `json:"clean_timeout"`
	PowerTimeout  string `json:"power_timeout"`
	// Enroll says that the machine is a server which is made known to Ironic. It goes alone.
	Enroll *enrolment `json:"enroll"`
}

type raid struct {
	Disks []map[string]any `json:"logical_disks"`
	// DeleteExisting removes what there is first; unset: yes.
	DeleteExisting *bool `json:"delete_existing"`
}

type step struct {
	Interface string         `json:"interface"`
	Step      string         `json:"step"`
	Args      map[string]any `json:"args"`
	Priority  int            `json:"priority"`
}

// mostSteps bounds the block's deploy steps.
const mostSteps = 20

// The priorities of BIOS and RAID steps: after Ironic's preparation (none is above 100), before
// the image is written.
const biosPriority, raidPriority = 90, 85

var (
	classNames = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$`)
	traitNames = lazyregexp.New(`^[A-Z][A-Z0-9_]{0,254}$`)
	hints      = []string{"model", "vendor", "serial", "size", "wwn", "wwn_with_extension", "wwn_vendor_extension", "rotational", "name", "by_path", "hctl"}
	interfaces = []string{"bios", "deploy", "firmware", "management", "power", "raid"}
)

// parse reads and checks a template's block; the first error names the setting.
func parse(raw json.RawMessage) (settings, error) {
	var s settings
	if err := pool.ReadSettings("ironic", raw, &s); err != nil {
		return s, err
	}
	return s, s.check()
}

func (s *settings) check() error {
	if s.Enroll != nil {
		if !reflect.DeepEqual(*s, settings{Enroll: s.Enroll}) {
			return errors.New("ironic: enroll goes alone: the other settings are of a machine that is made on a server")
		}
		return s.Enroll.check()
	}
	if s.ResourceClass != "" && !classNames.MatchString(s.ResourceClass) {
		return fmt.Errorf("ironic: resource_class %q: write a class as Ironic has it, such as baremetal", clean(s.ResourceClass))
	}
	for _, t := range s.Traits {
		if !traitNames.MatchString(t) {
			return fmt.Errorf("ironic: trait %q: write capital letters, digits and _, such as CUSTOM_GPU", clean(t))
		}
	}
	for name := range s.RootDevice {
		if !slices.Contains(hints, name) {
			return fmt.Errorf("ironic: root_device: unknown hint %q%s", clean(name), provision.DidYouMean(name, hints))
		}
	}
	if s.RootGB < 0 || s.RootGB > 1<<20 {
		return fmt.Errorf("ironic: root_gb must be a size in GiB, not %d", s.RootGB)
	}
	for what, one := range map[string]struct {
		value  string
		values []string
	}{"boot_mode": {s.BootMode, []string{"", "uefi", "bios"}}, "clean": {s.Clean, []string{"", "metadata", "full", "none"}}} {
		if !slices.Contains(one.values, one.value) {
			return fmt.Errorf("ironic: %s %q: write %s", what, clean(one.value), strings.Join(one.values[1:], ", "))
		}
	}
	if s.SecureBoot != nil && *s.SecureBoot && s.BootMode == "bios" {
		return errors.New("ironic: secure_boot needs boot_mode = \"uefi\"")
	}
	if s.RAID != nil && len(s.RAID.Disks) == 0 {
		return errors.New("ironic: raid: logical_disks is missing, such as [{ size_gb = 100, raid_level = \"1\", is_root_volume = true }]")
	}
	if len(s.Steps) > mostSteps {
		return fmt.Errorf("ironic: deploy_steps: %d are more than the %d that are possible", len(s.Steps), mostSteps)
	}
	for _, one := range s.Steps {
		switch {
		case !slices.Contains(interfaces, one.Interface):
			return fmt.Errorf("ironic: deploy_steps: interface %q%s: write one of %s", clean(one.Interface), provision.DidYouMean(one.Interface, interfaces), strings.Join(interfaces, ", "))
		case one.Step == "":
			return errors.New("ironic: deploy_steps: step is missing: the name of the step")
		case one.Priority < 0 || one.Priority > 10000:
			return fmt.Errorf("ironic: deploy_steps: priority must be 0 (the step is left out) to 10000, not %d", one.Priority)
		}
	}
	for _, name := range []string{"uuid", "name", "hostname", "public_keys", "tendril_machine"} {
		if _, says := s.MetaData[name]; says {
			return fmt.Errorf("ironic: meta_data: %s is Tendril's to say", name)
		}
	}
	for name, text := range map[string]string{"deploy_timeout": s.DeployTimeout, "clean_timeout": s.CleanTimeout, "power_timeout": s.PowerTimeout} {
		if d, err := time.ParseDuration(text); text != "" && (err != nil || d < time.Second || d > cleanLimit) {
			return fmt.Errorf("ironic: %s %q: write a duration from 1s to %s, such as 90m", name, clean(text), cleanLimit)
		}
	}
	return nil
}

// limit is how long a server may be in a state.
func (s *settings) limit(of stage) time.Duration {
	text := s.DeployTimeout
	switch of.limit {
	case cleanLimit:
		text = s.CleanTimeout
	case powerLimit:
		text = s.PowerTimeout
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return of.limit
}

// steps are those that the deployment runs besides Ironic's own.
func (s *settings) steps() (all []map[string]any) {
	add := func(of, name string, priority int, args map[string]any) {
		if args == nil {
			args = map[string]any{}
		}
		all = append(all, map[string]any{"interface": of, "step": name, "priority": priority, "args": args})
	}
	if len(s.BIOS) > 0 {
		var list []map[string]string
		for _, name := range sortedTexts(s.BIOS) {
			list = append(list, map[string]string{"name": name, "value": s.BIOS[name]})
		}
		add("bios", "apply_configuration", biosPriority, map[string]any{"settings": list})
	}
	if s.RAID != nil {
		add("raid", "apply_configuration", raidPriority, map[string]any{
			"raid_config": map[string]any{"logical_disks": s.RAID.Disks}, "delete_existing": s.RAID.DeleteExisting == nil || *s.RAID.DeleteExisting,
		})
	}
	for _, one := range s.Steps {
		add(one.Interface, one.Step, one.Priority, one.Args)
	}
	return all
}

func sortedTexts(m map[string]string) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// capabilities tell the deployment how the server boots.
func (s *settings) capabilities() map[string]string {
	all := map[string]string{}
	for name, value := range s.Capabilities {
		all[name] = value
	}
	if s.BootMode != "" {
		all["boot_mode"] = s.BootMode
	}
	if s.SecureBoot != nil {
		all["secure_boot"] = fmt.Sprint(*s.SecureBoot)
	}
	return all
}

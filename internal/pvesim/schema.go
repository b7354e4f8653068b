package pvesim

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// field is one parameter of a method.
type field struct {
	check    func(string) string // "": right
	required bool
	list     bool
}

var (
	integers  = regexp.MustCompile(`^[+-]?\d+$`)
	dnsNames  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)
	configIDs = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_-]+$`)
	tagNames  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*$`)
	encoded   = regexp.MustCompile(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	sizes     = regexp.MustCompile(`^\+?\d+(\.\d+)?[KMGT]?$`)
	numbered  = regexp.MustCompile(`^(net|ipconfig|scsi|virtio|sata|ide|unused|serial|hostpci|usb|numa|parallel)\d+$`)
	separator = regexp.MustCompile(`[,;\s]+`)
)

func anything(string) string { return "" }

func integer(least, most int) func(string) string {
	return func(v string) string {
		n, err := strconv.Atoi(v)
		switch {
		case !integers.MatchString(v) || err != nil:
			return fmt.Sprintf("type check ('integer') failed - got '%s'", v)
		case n < least:
			return fmt.Sprintf("value must have a minimum value of %d", least)
		case n > most:
			return fmt.Sprintf("value must have a maximum value of %d", most)
		}
		return ""
	}
}

const most = 1 << 40

func vmidCheck(v string) string {
	switch {
	case !integers.MatchString(v):
		return fmt.Sprintf("type check ('integer') failed - got '%s'", v)
	case v[0] == '0' || len(v) < 3 || len(v) > 9:
		return "invalid format - value does not look like a valid VM ID\n"
	}
	return ""
}

func boolean(v string) string {
	if v != "0" && v != "1" {
		return fmt.Sprintf("type check ('boolean') failed - got '%s'", v)
	}
	return ""
}

func dnsName(v string) string {
	if !dnsNames.MatchString(v) {
		return "invalid format - value does not look like a valid DNS name\n"
	}
	return ""
}

func oneOf(all ...string) func(string) string {
	return func(v string) string {
		if !slices.Contains(all, v) {
			return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(all, ", "))
		}
		return ""
	}
}

func atMost(n int) func(string) string {
	return func(v string) string {
		if len([]rune(v)) > n {
			return fmt.Sprintf("value may only be %d characters long", n)
		}
		return ""
	}
}

func configID(v string) string {
	if !configIDs.MatchString(v) {
		return fmt.Sprintf("invalid format - invalid configuration ID '%s'\n", v)
	}
	return ""
}

func sizeCheck(v string) string {
	if !sizes.MatchString(v) {
		return "value does not match the regex pattern"
	}
	return ""
}

func memoryCheck(v string) string {
	v = strings.TrimPrefix(v, "current=")
	if text := integer(16, most)(v); text != "" {
		return "invalid format - format error\nmemory.current: " + text + "\n"
	}
	return ""
}

func tagsCheck(v string) string {
	for _, tag := range separator.Split(strings.TrimSpace(v), -1) {
		if tag != "" && !tagNames.MatchString(tag) {
			return "invalid format - invalid characters in tag\n"
		}
	}
	return ""
}

func sshkeysCheck(v string) string {
	if _, err := url.PathUnescape(v); err != nil || !encoded.MatchString(v) {
		return fmt.Sprintf("invalid format - invalid urlencoded string: %s\n", v)
	}
	return ""
}

func nameserverCheck(v string) string {
	for _, one := range separator.Split(strings.TrimSpace(v), -1) {
		if _, err := netip.ParseAddr(one); one != "" && err != nil {
			return fmt.Sprintf("invalid format - value does not look like a valid address: %s\n", one)
		}
	}
	return ""
}

func ipconfigCheck(name string) func(string) string {
	return func(v string) string {
		parts := pairs(v)
		if ip := parts["ip"]; ip != "" && ip != "dhcp" {
			if p, err := netip.ParsePrefix(ip); err != nil || !p.Addr().Is4() {
				return "invalid format - format error\n" + name + ".ip: invalid format - value does not look like a valid ipv4 network configuration\n\n"
			}
		}
		if parts["gw"] != "" && parts["ip"] == "" {
			return "invalid format - format error\n" + name + ".ip: missing property required by '" + name + ".gw'\n"
		}
		return ""
	}
}

var models = []string{"e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er", "ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "virtio", "vmxnet3"}

func netCheck(name string) func(string) string {
	return func(v string) string {
		first, _, _ := strings.Cut(v, ",")
		model, _, _ := strings.Cut(first, "=")
		if model == "model" {
			model = pairs(v)["model"]
		}
		if !slices.Contains(models, model) {
			return "invalid format - format error\n" + name + ".model: " + oneOf(models...)(model) + "\n"
		}
		return ""
	}
}

// pairs takes a=b,c=d apart; what has no = is under "".
func pairs(v string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split(v, ",") {
		k, value, ok := strings.Cut(part, "=")
		if !ok {
			k, value = "", part
		}
		out[k] = value
	}
	return out
}

// whole are configuration keys whose values are integers in answers.
var whole = map[string]func(string) string{
	"cores": integer(1, most), "sockets": integer(1, most), "vcpus": integer(1, most), "onboot": boolean, "kvm": boolean, "template": boolean,
	"acpi": boolean, "tablet": boolean, "protection": boolean, "numa": boolean, "autostart": boolean, "freeze": boolean, "reboot": boolean,
	"balloon": integer(0, most), "shares": integer(0, 50000), "cpulimit": anything, "cpuunits": integer(1, 262144), "ciupgrade": boolean,
}

var textual = map[string]func(string) string{
	"name": dnsName, "memory": memoryCheck, "description": atMost(8192), "tags": tagsCheck, "scsihw": anything, "boot": anything, "agent": anything,
	"ostype": oneOf("other", "wxp", "w2k", "w2k3", "w2k8", "wvista", "win7", "win8", "win10", "win11", "l24", "l26", "solaris"),
	"cpu":    anything, "bios": oneOf("seabios", "ovmf"), "machine": anything, "args": anything, "lock": oneOf("backup", "clone", "create", "migrate", "rollback", "snapshot", "snapshot-delete", "suspending", "suspended"),
	"ciuser": anything, "cipassword": anything, "citype": oneOf("configdrive2", "nocloud", "opennebula"), "cicustom": anything, "sshkeys": sshkeysCheck, "searchdomain": anything,
	"nameserver": nameserverCheck, "vga": anything, "hotplug": anything, "startup": anything, "smbios1": anything, "vmgenid": anything, "hookscript": anything, "efidisk0": anything, "tpmstate0": anything, "rng0": anything, "audio0": anything,
}

// configField is what a machine's configuration may have under name.
func configField(name string) (field, bool) {
	if check, ok := whole[name]; ok && name != "template" {
		return field{check: check}, true
	}
	if check, ok := textual[name]; ok {
		return field{check: check}, true
	}
	switch kind := numbered.FindStringSubmatch(name); {
	case kind == nil:
		return field{}, false
	case kind[1] == "net":
		return field{check: netCheck(name)}, true
	case kind[1] == "ipconfig":
		return field{check: ipconfigCheck(name)}, true
	}
	return field{check: anything}, true
}

func drives() []string {
	var all []string
	for _, bus := range []struct {
		name string
		n    int
	}{{"ide", 4}, {"scsi", 31}, {"virtio", 16}, {"sata", 6}} {
		for i := range bus.n {
			all = append(all, bus.name+strconv.Itoa(i))
		}
	}
	return append(all, "efidisk0", "tpmstate0")
}

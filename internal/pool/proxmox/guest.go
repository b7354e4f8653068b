package proxmox

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// fields takes a=b,c=d apart; what has no = is under "".
func fields(value string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(value, ",") {
		k, v, ok := strings.Cut(part, "=")
		if !ok {
			k, v = "", part
		}
		out[k] = v
	}
	return out
}

func (g *guest) count(key string, otherwise int) int {
	if n, err := strconv.Atoi(strings.TrimPrefix(g.config[key], "current=")); err == nil && n > 0 && n < 1<<30 {
		return n
	}
	return otherwise
}

func (g *guest) cores() int  { return g.count("cores", 1) * g.count("sockets", 1) }
func (g *guest) memory() int { return g.count("memory", 512) }

// agent reports whether Proxmox speaks to the guest's agent.
func (g *guest) agent() bool {
	f := fields(g.config["agent"])
	return f[""] == "1" || f["enabled"] == "1"
}

// cloudInit reports whether there is a drive for it.
func (g *guest) cloudInit() bool {
	for k, v := range g.config {
		if bus(k) && strings.Contains(fields(v)[""], "cloudinit") {
			return true
		}
	}
	return false
}

// bus reports whether a key is a drive.
func bus(key string) bool {
	name := strings.TrimRight(key, "0123456789")
	return name != key && (name == "scsi" || name == "virtio" || name == "sata" || name == "ide")
}

// drive is a disk of a machine.
type drive struct {
	key, volume, storage string
	bytes                int64
}

// drives are a machine's disks, without CD-ROMs.
func (g *guest) drives() []drive {
	var out []drive
	for k, v := range g.config {
		f := fields(v)
		if !bus(k) || f["media"] == "cdrom" || f[""] == "none" {
			continue
		}
		storage, _, _ := strings.Cut(f[""], ":")
		out = append(out, drive{key: k, volume: f[""], storage: storage, bytes: size(f["size"])})
	}
	slices.SortFunc(out, func(a, b drive) int { return strings.Compare(a.key, b.key) })
	return out
}

// disk is the one that it boots from.
func (g *guest) disk() (drive, bool) {
	all := g.drives()
	order := strings.FieldsFunc(strings.TrimPrefix(g.config["boot"], "order="), func(r rune) bool { return r == ';' })
	for _, key := range append(order, g.config["bootdisk"], "scsi0", "virtio0", "sata0", "ide0") {
		if i := slices.IndexFunc(all, func(d drive) bool { return d.key == key }); i >= 0 {
			return all[i], true
		}
	}
	if len(all) > 0 {
		return all[0], true
	}
	return drive{}, false
}

// size reads a size such as 32G, in bytes.
func size(text string) int64 {
	shift := map[string]int{"K": 10, "M": 20, "G": 30, "T": 40}[strings.TrimLeft(text, "0123456789.")]
	f, err := strconv.ParseFloat(strings.TrimRight(text, "KMGT"), 64)
	if err != nil || f < 0 || f > 1<<20 && shift > 30 {
		return 0
	}
	return int64(f * float64(int64(1)<<shift))
}

// static are the addresses that cloud-init gives it.
func (g *guest) static() []netip.Addr {
	var out []netip.Addr
	for k, v := range g.config {
		if !strings.HasPrefix(k, "ipconfig") {
			continue
		}
		f := fields(v)
		for _, key := range []string{"ip", "ip6"} {
			if p, err := netip.ParsePrefix(f[key]); err == nil && reachable(p.Addr()) {
				out = append(out, p.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// mac is that of its first card.
func (g *guest) mac() string {
	first, _, _ := strings.Cut(g.config["net0"], ",")
	_, mac, _ := strings.Cut(first, "=")
	return strings.ToLower(mac)
}

// reachable reports whether an address can be another machine's, seen from here.
func reachable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() && !a.Is4In6() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// mostAddresses is how many of a machine's are kept.
const mostAddresses = 16

// reported are the addresses that the guest's agent says its first card has. A guest can
// claim any address, so a caller that connects there must check what answers.
func (d *Driver) reported(ctx context.Context, g *guest) ([]netip.Addr, error) {
	var answer struct {
		Result []struct {
			MAC       string `json:"hardware-address"`
			Addresses []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		} `json:"result"`
	}
	if _, err := d.client.once(ctx, http.MethodGet, g.path()+"/agent/network-get-interfaces", nil, &answer); err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, card := range answer.Result {
		if mac := g.mac(); mac != "" && strings.ToLower(card.MAC) != mac {
			continue
		}
		for _, one := range card.Addresses {
			if a, err := netip.ParseAddr(one.Address); err == nil && reachable(a) && !slices.Contains(out, a) && len(out) < mostAddresses {
				out = append(out, a)
			}
		}
	}
	// IPv4 first: what has both is mostly reached by that.
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out, nil
}

package proxmox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
)

// settings are a template's block proxmox { … }.
type settings struct {
	Bridge       string   `json:"bridge"`
	VLAN         int      `json:"vlan"`
	Storage      string   `json:"storage"`
	FullClone    bool     `json:"full_clone"`
	Start        *bool    `json:"start"`
	Agent        *bool    `json:"agent"`
	CPU          string   `json:"cpu"`
	Tags         []string `json:"tags"`
	ResourcePool string   `json:"resource_pool"`
	CICustom     string   `json:"cicustom"`
	SearchDomain string   `json:"search_domain"`
	OnBoot       *bool    `json:"on_boot"`
	// Reboot says that Change may restart a machine for what applies only then; unset: yes.
	Reboot *bool `json:"reboot"`
	// Snapshot says that Change makes a snapshot before, and rolls back to it if it fails.
	Snapshot bool `json:"snapshot"`
}

var (
	bridges   = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_.]{0,14}$`)
	storages  = lazyregexp.New(`^[A-Za-z][A-Za-z0-9.\-_]{0,99}$`)
	cpus      = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.\-_=,+;]{0,199}$`)
	tags      = lazyregexp.New(`^[a-z0-9_][a-z0-9_\-+.]{0,63}$`)
	poolNames = lazyregexp.New(`^[A-Za-z0-9.\-_]{1,64}(/[A-Za-z0-9.\-_]{1,64}){0,2}$`)
	snippets  = lazyregexp.New(`^((user|network|meta|vendor)=[A-Za-z][A-Za-z0-9.\-_]*:snippets/[A-Za-z0-9.\-_]+)(,(user|network|meta|vendor)=[A-Za-z][A-Za-z0-9.\-_]*:snippets/[A-Za-z0-9.\-_]+)*$`)
	domains   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$`)
)

// mostTags is what a machine gets at most; each is shown in Proxmox's tree.
const mostTags = 20

// parse reads and checks a template's block.
func parse(raw json.RawMessage) (settings, error) {
	var s settings
	if err := pool.ReadSettings("proxmox", raw, &s); err != nil {
		return s, err
	}
	return s, s.check()
}

func (s settings) check() error {
	for _, c := range []struct {
		name, value, want string
		form              *lazyregexp.Regexp
	}{
		{"bridge", s.Bridge, "the name of a bridge, such as vmbr0", bridges},
		{"storage", s.Storage, "the name of a storage", storages},
		{"cpu", s.CPU, "a CPU type as Proxmox has it, such as host or x86-64-v2-AES", cpus},
		{"resource_pool", s.ResourcePool, "the name of a resource pool", poolNames},
		{"cicustom", s.CICustom, "snippets, such as user=local:snippets/FILE.yml", snippets},
		{"search_domain", s.SearchDomain, "a domain", domains},
	} {
		if c.value != "" && !c.form.MatchString(c.value) {
			return fmt.Errorf("proxmox: %s %q: write %s", c.name, clean(c.value), c.want)
		}
	}
	if s.VLAN < 0 || s.VLAN > 4094 {
		return fmt.Errorf("proxmox: vlan must be 1 to 4094, not %d", s.VLAN)
	}
	if len(s.Tags) > mostTags {
		return fmt.Errorf("proxmox: %d tags are more than the %d that are possible", len(s.Tags), mostTags)
	}
	for _, t := range s.Tags {
		if !tags.MatchString(t) {
			return fmt.Errorf("proxmox: tag %q: write small letters, digits and any of _ - . +", clean(t))
		}
	}
	return nil
}

// allowed checks the block against what the pool's operator lets templates use.
func (d *Driver) allowed(s settings) error {
	for _, c := range []struct {
		what, value string
		list        []string
	}{{"bridge", s.Bridge, d.config.Networks}, {"storage", s.Storage, d.config.Storages}} {
		if c.value != "" && len(c.list) > 0 && !slices.Contains(c.list, c.value) {
			return fmt.Errorf("proxmox: pool %s does not let templates use %s %q; its operator allows %s", d.config.Name, c.what, c.value, strings.Join(c.list, ", "))
		}
	}
	if s.CICustom != "" {
		for part := range strings.SplitSeq(s.CICustom, ",") {
			if _, snippet, _ := strings.Cut(part, "="); !slices.Contains(d.config.Snippets, snippet) {
				return fmt.Errorf("proxmox: pool %s does not let templates use the snippet %s; its operator can allow it with snippets = [%q] in [[pools]]", d.config.Name, snippet, snippet)
			}
		}
	}
	if own := d.config.ResourcePool; own == "" && s.ResourcePool != "" {
		return fmt.Errorf("proxmox: pool %s does not let templates choose a resource pool; its operator can name one with resource_pool in [[pools]], and templates that or one below it", d.config.Name)
	} else if own != "" && s.ResourcePool != "" && s.ResourcePool != own && !strings.HasPrefix(s.ResourcePool, own+"/") {
		return fmt.Errorf("proxmox: pool %s puts machines into resource pool %q; resource_pool can only name it or one below it", d.config.Name, own)
	}
	return nil
}

func yes(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

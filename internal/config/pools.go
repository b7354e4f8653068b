package config

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/trust"
)

// Pools are the tables of [[pools]].
type Pools []Pool

// Pool is where machines are made, and how the agent reaches it. Secrets stand in files only:
// what they hold is read for each run.
type Pool struct {
	Name string `toml:"name"`
	Kind string `toml:"kind"`
	// URL is Proxmox's. Hosts are the hypervisors of a libvirt pool: URLs by the nodes' names.
	URL   string            `toml:"url"`
	Hosts map[string]string `toml:"hosts"`

	TokenFile   string `toml:"token_file"`
	CAFile      string `toml:"ca_file"`
	CertFile    string `toml:"cert_file"`
	KeyFile     string `toml:"key_file"`
	Fingerprint string `toml:"fingerprint"`
	// VerifySSL is nil where nothing is said: true.
	VerifySSL *bool `toml:"verify_ssl"`

	Nodes        []string `toml:"nodes"`
	Storages     []string `toml:"storages"`
	Networks     []string `toml:"networks"`
	ResourcePool string   `toml:"resource_pool"`
	Snippets     []string `toml:"snippets"`
	ImageStorage string   `toml:"image_storage"`
	VirtType     string   `toml:"virt_type"`
	Timeout      Duration `toml:"timeout"`

	// VMIDs is FIRST-LAST, ImportIDs the same: of machines that exist and may be imported. Addresses are ranges FIRST-LAST/BITS.
	VMIDs       string   `toml:"vm_ids"`
	ImportIDs   string   `toml:"import_ids"`
	Addresses   []string `toml:"addresses"`
	Gateway     string   `toml:"gateway"`
	Nameservers []string `toml:"nameservers"`

	OvercommitCores  float64 `toml:"overcommit_cores"`
	OvercommitMemory float64 `toml:"overcommit_memory"`
	// Workspaces are patterns as trust.ParseWorkspaces reads them; none: all.
	Workspaces []string `toml:"workspaces"`
	// Enroll are patterns of the workspaces that may enroll servers; none: no workspace.
	Enroll []string `toml:"enroll"`

	// Images are those of a pool of kind ironic.
	Images []PoolImage `toml:"images"`

	Machines []PoolMachine `toml:"machines"`
	Clean    []string      `toml:"clean"`
	// SSHUser signs in to machines of a static pool with the key in SSHKeyFile, to run commands.
	SSHUser    string `toml:"ssh_user"`
	SSHKeyFile string `toml:"ssh_key_file"`
}

// PoolMachine is a machine of a static pool.
type PoolMachine struct {
	Name    string            `toml:"name"`
	Address string            `toml:"address"`
	SSHPort int               `toml:"ssh_port"`
	HostKey string            `toml:"host_key"`
	Cores   int               `toml:"cores"`
	Memory  int               `toml:"memory"`
	Labels  map[string]string `toml:"labels"`
}

// PoolImage is an image of a pool of kind ironic.
type PoolImage struct {
	Name      string `toml:"name"`
	Source    string `toml:"source"`
	Checksum  string `toml:"checksum"`
	HashAlgo  string `toml:"os_hash_algo"`
	HashValue string `toml:"os_hash_value"`
	Kernel    string `toml:"kernel"`
	Ramdisk   string `toml:"ramdisk"`
	Type      string `toml:"type"`
	Format    string `toml:"format"`
}

// poolKeys says, for the reference, what a table may hold.
const poolKeys = "`name`; `kind`, which is `proxmox`, `libvirt`, `ironic` or `static`; `url` (Proxmox, Ironic) or `hosts`, a table of node names and libvirt URLs; " +
	"`token_file`, `ca_file`, `fingerprint` (SHA-256 of the server's certificate), `verify_ssl` (`false` checks no certificate: anyone on the way can read the token); " +
	"`cert_file` with `key_file` for libvirt over `tls://`; `nodes`, `storages`, `networks`, `resource_pool`: the ones that may be used, the first by default; `snippets` (Proxmox) as `[\"local:snippets/lab.yml\"]`, the ones that a template may name in `cicustom` (none); `image_storage` (libvirt): where images are; `virt_type` (libvirt): `kvm` or `qemu`, by default what a host can; `vm_ids` as `\"200-299\"`; `import_ids` (Proxmox), ids of machines that exist and may be [imported](MACHINES.md#import-a-machine) (none); " +
	"`addresses` as `[\"10.0.0.10-10.0.0.99/24\"]` with `gateway` and `nameservers`; `overcommit_cores` (without it no limit) and `overcommit_memory` (1), multiples of what a node has; " +
	"`workspaces`, patterns of the workspaces that may use it (all); `enroll` (Ironic), patterns of the workspaces that may [enroll servers](MACHINES.md#enroll-servers) (none); `timeout` of one request (30s). " +
	"A static pool has `[[pools.machines]]` with `name`, `address`, `ssh_port` (22), `cores`, `memory` (MiB) and `labels`, and `clean`, a command that makes a machine as new. " +
	"A pool of kind `ironic` has `[[pools.images]]` with `name`, `source` (an address that Ironic's conductor reads, or Glance's id), `os_hash_algo` with `os_hash_value` or `checksum`, and where needed `kernel`, `ramdisk`, `type` and `format`; its `token_file` is one line `USER:PASSWORD`, or a Keystone application credential as `clouds.yaml` has it. " +
	"For commands in a static pool's machines (`after`) it needs `ssh_user`, `ssh_key_file` (a private key, which templates of these workspaces act with) and each machine's `host_key`, such as `ssh-ed25519 AAAA…`"

const (
	maxPoolIDs   = 100_000
	maxPoolRange = 65_536 // addresses of one range
	// defaultPoolTimeout bounds one request where a pool says nothing.
	defaultPoolTimeout = 30 * time.Second
)

// UnmarshalText reads the tables as a TOML list, as they stand in the environment.
func (all *Pools) UnmarshalText(text []byte) error {
	var read struct {
		Pools []Pool `toml:"pools"`
	}
	decoder := toml.NewDecoder(bytes.NewReader(append([]byte("pools = "), text...))).DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return fmt.Errorf("no list of tables such as [{name = \"lab\", kind = \"static\"}]: %w", err)
	}
	*all = read.Pools
	return nil
}

// absolute makes the relative paths start at directory.
func (all Pools) absolute(directory string) {
	for i := range all {
		for _, path := range []*string{&all[i].TokenFile, &all[i].CAFile, &all[i].CertFile, &all[i].KeyFile, &all[i].SSHKeyFile} {
			*path = below(directory, *path)
		}
	}
}

// unknownPoolKey is unknownKey for a table of Pools.
func unknownPoolKey(name, key string) string {
	if slices.Contains([]string{"token", "password", "api_token"}, key) {
		return name + ": a secret does not belong in this file; put it in a file of its own, named by token_file"
	}
	of := reflect.TypeFor[Pool]()
	switch {
	case strings.HasPrefix(name, "pools.machines."):
		of = reflect.TypeFor[PoolMachine]()
	case strings.HasPrefix(name, "pools.images."):
		of = reflect.TypeFor[PoolImage]()
	}
	var known []string
	for _, f := range reflect.VisibleFields(of) {
		known = append(known, f.Tag.Get("toml"))
	}
	return name + ": unknown key" + provision.DidYouMean(key, known)
}

var (
	poolName    = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString
	fingerprint = lazyregexp.New(`^[0-9a-f]{64}$`).MatchString
)

// plainFingerprint is a fingerprint without colons, in small letters.
func plainFingerprint(text string) string { return strings.ToLower(strings.ReplaceAll(text, ":", "")) }

// vmIDs are the first and the last id; nil for none.
func (p Pool) vmIDs() ([]int, error) { return idRange(p.VMIDs) }

func idRange(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	first, last, _ := strings.Cut(text, "-")
	from, err := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	if err != nil || err2 != nil || from < 100 || to < from || to > 999_999_999 || to-from >= maxPoolIDs {
		return nil, fmt.Errorf("must be FIRST-LAST, such as 200-299, from 100 and at most %d ids", maxPoolIDs)
	}
	return []int{from, to}, nil
}

// addressRange is a range of addresses in a network.
type addressRange struct {
	from, to netip.Addr
	bits     int
}

// ranges are the addresses that machines may get.
func (p Pool) ranges() (all []addressRange, err error) {
	for _, text := range p.Addresses {
		ends, bits, _ := strings.Cut(text, "/")
		first, last, is := strings.Cut(ends, "-")
		from, err1 := netip.ParseAddr(strings.TrimSpace(first))
		to, err2 := netip.ParseAddr(strings.TrimSpace(last))
		n, err3 := strconv.Atoi(bits)
		if !is || err1 != nil || err2 != nil || err3 != nil || from.Zone() != "" || from.BitLen() != to.BitLen() || to.Less(from) || n < 1 || n > from.BitLen() {
			return nil, fmt.Errorf("%q: must be FIRST-LAST/BITS, such as 10.0.0.10-10.0.0.99/24", text)
		}
		if network := netip.PrefixFrom(from, n).Masked(); !network.Contains(to) {
			return nil, fmt.Errorf("%q: both ends must be in one network of %d bits", text, n)
		}
		if tooFar(from, to) {
			return nil, fmt.Errorf("%q: has more than %d addresses", text, maxPoolRange)
		}
		all = append(all, addressRange{from, to, n})
	}
	return all, nil
}

// tooFar reports whether a range has more than maxPoolRange addresses.
func tooFar(from, to netip.Addr) bool {
	a, b := from.As16(), to.As16()
	if !bytes.Equal(a[:12], b[:12]) {
		return true
	}
	first := uint64(a[12])<<24 | uint64(a[13])<<16 | uint64(a[14])<<8 | uint64(a[15])
	last := uint64(b[12])<<24 | uint64(b[13])<<16 | uint64(b[14])<<8 | uint64(b[15])
	return last-first >= maxPoolRange
}

// checkPools finds what is wrong with the tables.
func (l *loader) checkPools() {
	named := map[string]bool{}
	if len(l.config.Pools) > queue.MaxPools {
		l.problem("pools: %d pools; at most %d are allowed", len(l.config.Pools), queue.MaxPools)
	}
	for i, p := range l.config.Pools {
		wrong := func(key, format string, args ...any) {
			if key != "" {
				key = "." + key
			}
			l.problem("pools[%d] (%q)%s: %s", i+1, p.Name, key, fmt.Sprintf(format, args...))
		}
		if !poolName(p.Name) {
			wrong("name", "must be lowercase letters, digits and dashes, 63 characters at most")
		}
		if named[p.Name] {
			wrong("name", "another pool has it")
		}
		named[p.Name] = true
		address, err := url.Parse(p.URL)
		switch {
		case !slices.Contains([]string{"proxmox", "libvirt", "ironic", "static"}, p.Kind):
			wrong("kind", "must be proxmox, libvirt, ironic or static")
		case p.Kind == "ironic" && p.URL == "" && p.TokenFile == "":
			wrong("url", "missing: write https://HOST:6385, or name a token_file with a Keystone application credential, whose catalogue has it")
		case p.Kind == "ironic" && p.URL != "" && (err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" || address.User != nil || address.RawQuery != ""):
			wrong("url", "must be https://HOST:6385, without user, password or query")
		case p.Kind == "proxmox" && (err != nil || address.Scheme != "https" || address.Host == "" || address.User != nil || strings.Trim(address.Path, "/") != ""):
			wrong("url", "must be https://HOST:8006")
		case p.Kind == "proxmox" && p.TokenFile == "":
			wrong("token_file", "missing: name a file with USER@REALM!TOKENID=SECRET")
		case p.Kind == "libvirt" && len(p.Hosts) == 0:
			wrong("hosts", "missing: a table of nodes and their URLs, such as {vm1 = \"unix:///run/libvirt/libvirt-sock\"}")
		case p.Kind == "static" && len(p.Machines) == 0:
			wrong("machines", "missing: a static pool has at least one [[pools.machines]]")
		}
		for key, set := range map[string]bool{"url": p.URL != "" && p.Kind != "proxmox" && p.Kind != "ironic", "images": len(p.Images) > 0 && p.Kind != "ironic", "hosts": len(p.Hosts) > 0 && p.Kind != "libvirt", "image_storage": p.ImageStorage != "" && p.Kind != "libvirt", "virt_type": p.VirtType != "" && p.Kind != "libvirt", "machines": len(p.Machines) > 0 && p.Kind != "static", "clean": len(p.Clean) > 0 && p.Kind != "static", "import_ids": p.ImportIDs != "" && p.Kind != "proxmox", "enroll": len(p.Enroll) > 0 && p.Kind != "ironic", "ssh_user": p.SSHUser != "" && p.Kind != "static", "ssh_key_file": p.SSHKeyFile != "" && p.Kind != "static"} {
			if set {
				wrong(key, "does not belong to a pool of kind %s", p.Kind)
			}
		}
		if len(p.Clean) > 0 && !filepath.IsAbs(p.Clean[0]) {
			wrong("clean", "must begin with the absolute path of a program")
		}
		if p.Fingerprint != "" && !fingerprint(plainFingerprint(p.Fingerprint)) {
			wrong("fingerprint", "must be the SHA-256 of a certificate: 64 hexadecimal digits, with or without colons")
		}
		for key, path := range map[string]string{"ca_file": p.CAFile, "cert_file": p.CertFile} {
			switch {
			case path == "":
			case !regularFile(path):
				wrong(key, "%q is no file that can be read", path)
			case !pemFile(path):
				wrong(key, "%q has no certificate in PEM form", path)
			}
		}
		if (p.CertFile == "") != (p.KeyFile == "") {
			wrong("cert_file", "cert_file and key_file go together")
		}
		if p.VirtType != "" && p.VirtType != "kvm" && p.VirtType != "qemu" {
			wrong("virt_type", "must be kvm or qemu")
		}
		if p.VerifySSL != nil && !*p.VerifySSL && (p.CAFile != "" || p.Fingerprint != "") {
			wrong("verify_ssl", "false would ignore ca_file and fingerprint; keep one of them")
		}
		for key, path := range map[string]string{"token_file": p.TokenFile, "key_file": p.KeyFile, "ssh_key_file": p.SSHKeyFile} {
			if path == "" {
				continue
			}
			if text, err := secretfile.Read(path); err != nil {
				wrong(key, "%q %v", path, err)
			} else if _, err := ssh.ParsePrivateKey([]byte(text)); err != nil && key == "ssh_key_file" {
				wrong(key, "%q has no private key that OpenSSH writes (ssh-keygen -t ed25519), or one with a passphrase", path)
			}
		}
		if (p.SSHKeyFile == "") != (p.SSHUser == "") {
			wrong("ssh_user", "ssh_user and ssh_key_file go together")
		}
		if _, err := p.vmIDs(); err != nil {
			wrong("vm_ids", "%v", err)
		}
		if _, err := idRange(p.ImportIDs); err != nil {
			wrong("import_ids", "%v", err)
		}
		ranges, err := p.ranges()
		if err != nil {
			wrong("addresses", "%v", err)
		}
		if p.Gateway != "" {
			if gateway, err := netip.ParseAddr(p.Gateway); err != nil {
				wrong("gateway", "must be an IP address")
			} else if slices.ContainsFunc(ranges, func(r addressRange) bool {
				return gateway.BitLen() == r.from.BitLen() && !gateway.Less(r.from) && !r.to.Less(gateway)
			}) {
				wrong("gateway", "lies in one of the ranges of addresses, so a machine could get it")
			}
		}
		for _, server := range p.Nameservers {
			if _, err := netip.ParseAddr(server); err != nil {
				wrong("nameservers", "must be IP addresses")
			}
		}
		if p.OvercommitCores < 0 || p.OvercommitCores > 100 || p.OvercommitMemory < 0 || p.OvercommitMemory > 100 {
			wrong("overcommit", "overcommit_cores and overcommit_memory must be numbers from 0 to 100")
		}
		if p.Timeout.Duration != 0 && !p.Timeout.within(time.Second, time.Hour) {
			wrong("timeout", "must be a duration from 1s to 1h")
		}
		for key, patterns := range map[string][]string{"workspaces": p.Workspaces, "enroll": p.Enroll} {
			for _, pattern := range patterns {
				if _, err := trust.ParseWorkspaces(pattern); err != nil {
					wrong(key, "%q is no pattern of workspace names such as acme/prod, acme/* or acme/**", pattern)
				}
			}
		}
		p.checkImages(func(format string, args ...any) { wrong("images", format, args...) })
		machines := map[string]bool{}
		for _, m := range p.Machines {
			address, err := netip.ParseAddr(m.Address)
			switch {
			case !poolName(m.Name) || machines[m.Name]:
				wrong("machines", "%q: each machine needs a name of its own, of lowercase letters, digits and dashes", m.Name)
			case err != nil || address.Zone() != "":
				wrong("machines", "%s: address must be an IP address", m.Name)
			case m.SSHPort < 0 || m.SSHPort > 65535 || m.Cores < 0 || m.Cores > 1024 || m.Memory < 0 || m.Memory > 16<<20:
				wrong("machines", "%s: ssh_port, cores or memory is out of range", m.Name)
			case m.HostKey == "" && p.SSHKeyFile != "":
				wrong("machines", "%s: host_key is missing, by which the machine is known when ssh_key_file signs in; print it by ssh-keyscan -t ed25519 on a way that you trust", m.Name)
			case m.HostKey != "" && !hostKey(m.HostKey):
				wrong("machines", "%s: host_key must be a public key such as \"ssh-ed25519 AAAA…\"", m.Name)
			}
			machines[m.Name] = true
		}
	}
}

// checkImages finds what is wrong with the images of a pool of kind ironic.
func (p Pool) checkImages(wrong func(format string, args ...any)) {
	named := map[string]bool{}
	for _, i := range p.Images {
		switch {
		case i.Name == "" || named[i.Name] || len(i.Name) > 200:
			wrong("%q: each image needs a name of its own, of at most 200 characters", i.Name)
		case i.Source == "":
			wrong("%s: source is missing: an address such as https://images.example/debian.raw, or Glance's id", i.Name)
		case (i.HashAlgo == "") != (i.HashValue == ""):
			wrong("%s: os_hash_algo and os_hash_value go together", i.Name)
		case i.HashAlgo != "" && !slices.Contains([]string{"sha256", "sha512", "md5"}, i.HashAlgo):
			wrong("%s: os_hash_algo must be sha256, sha512 or md5", i.Name)
		case (i.Kernel == "") != (i.Ramdisk == ""):
			wrong("%s: kernel and ramdisk go together", i.Name)
		case !slices.Contains([]string{"", "whole-disk", "partition"}, i.Type):
			wrong("%s: type must be whole-disk or partition", i.Name)
		case !slices.Contains([]string{"", "raw", "qcow2"}, i.Format):
			wrong("%s: format must be raw or qcow2", i.Name)
		}
		named[i.Name] = true
	}
}

// hostKey reports whether a text is a public key of SSH's.
func hostKey(text string) bool {
	_, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	return err == nil && len(options) == 0 && len(rest) == 0
}

// Driver is the pool as its driver gets it, without its secret.
func (p Pool) Driver() pool.Config {
	c := pool.Config{
		Name: p.Name, Kind: p.Kind, URL: p.URL, TokenFile: p.TokenFile, CAFile: p.CAFile, Fingerprint: plainFingerprint(p.Fingerprint),
		Insecure: p.VerifySSL != nil && !*p.VerifySSL, Storages: p.Storages, Networks: p.Networks, Nodes: p.Nodes, ResourcePool: p.ResourcePool, Snippets: p.Snippets,
		ImageStorage: p.ImageStorage, VirtType: p.VirtType, CertFile: p.CertFile, KeyFile: p.KeyFile, Timeout: p.Timeout.Duration, Clean: p.Clean,
		SSHUser: p.SSHUser, SSHKeyFile: p.SSHKeyFile,
	}
	c.ImportIDs, _ = idRange(p.ImportIDs) // the configuration was checked
	for _, name := range slices.Sorted(maps.Keys(p.Hosts)) {
		c.Hosts = append(c.Hosts, pool.Host{Name: name, URL: p.Hosts[name]})
	}
	if c.Timeout == 0 {
		c.Timeout = defaultPoolTimeout
	}
	c.Gateway, _ = netip.ParseAddr(p.Gateway) // the configuration was checked
	for _, text := range p.Nameservers {
		if server, err := netip.ParseAddr(text); err == nil {
			c.Nameservers = append(c.Nameservers, server)
		}
	}
	ranges, _ := p.ranges()
	for _, r := range ranges {
		c.Ranges = append(c.Ranges, pool.Range{From: r.from, To: r.to, Bits: r.bits})
	}
	for _, i := range p.Images {
		c.Images = append(c.Images, pool.ImageSource(i))
	}
	for _, m := range p.Machines {
		address, _ := netip.ParseAddr(m.Address)
		c.Machines = append(c.Machines, pool.StaticMachine{Name: m.Name, Address: address, SSHPort: m.SSHPort, HostKey: m.HostKey, Cores: m.Cores, Memory: m.Memory, Labels: m.Labels})
	}
	return c
}

// Limits are those of the pool that the database keeps.
func (p Pool) Limits() queue.PoolLimits {
	limits := queue.PoolLimits{OvercommitCores: p.OvercommitCores, OvercommitMemory: p.OvercommitMemory}
	limits.IDs, _ = p.vmIDs() // the configuration was checked
	ranges, _ := p.ranges()
	for _, r := range ranges {
		limits.Addresses = append(limits.Addresses, queue.PoolAddress{From: r.from.String(), To: r.to.String()})
	}
	return limits
}

// For returns the pools that the runs of a workspace may use, with their secrets as they are
// now. The error, a Failure, names what cannot be read and nothing that is in it.
func (all Pools) For(workspace string, id uuid.UUID) ([]pool.Config, error) {
	var allowed []pool.Config
	match := func(pattern string) bool {
		where, err := trust.ParseWorkspaces(pattern)
		return err == nil && where.Match(workspace, id)
	}
	for _, p := range all {
		if len(p.Workspaces) > 0 && !slices.ContainsFunc(p.Workspaces, match) {
			continue
		}
		c := p.Driver()
		c.Enroll = slices.ContainsFunc(p.Enroll, match)
		for _, secret := range []struct {
			key, path string
			text      *string
		}{{"token_file", p.TokenFile, &c.Token}, {"key_file", p.KeyFile, &c.Key}, {"ssh_key_file", p.SSHKeyFile, &c.SSHKey}} {
			if secret.path == "" {
				continue
			}
			text, err := secretfile.Read(secret.path)
			if err != nil {
				return nil, provision.Fail(provision.CodeCredentials, fmt.Sprintf("pool %s of the agent's configuration: %s: %q %v", p.Name, secret.key, secret.path, err), err)
			}
			*secret.text = text
		}
		for _, certificates := range []struct {
			key, path string
			text      *string
		}{{"ca_file", p.CAFile, &c.CA}, {"cert_file", p.CertFile, &c.Cert}} {
			if certificates.path == "" {
				continue
			}
			text, err := os.ReadFile(certificates.path)
			if err != nil {
				return nil, provision.Fail(provision.CodeCredentials, fmt.Sprintf("pool %s of the agent's configuration: %s: %v", p.Name, certificates.key, err), err)
			}
			*certificates.text = string(text)
		}
		allowed = append(allowed, c)
	}
	return allowed, nil
}

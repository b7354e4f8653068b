package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func TestPools(t *testing.T) {
	t.Parallel()
	token := secretFile(t, "token", "tendril@pve!agent=secret", 0o600)
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	login, host := secretFile(t, "key", keys.Login, 0o600), keys.Public(keys.Host)
	load := func(pools string) (Config, error) {
		return Load(secretFile(t, "tendril.toml", "[queue]\nurl = \""+testURL+"\"\n"+pools, 0o600), []string{"TENDRIL_API_TOKEN=" + testToken})
	}
	c, err := load(fmt.Sprintf(`
[[pools]]
name = "lab"
kind = "proxmox"
url = "https://pve.example:8006"
token_file = %q
fingerprint = "%s"
storages = ["local-lvm"]
networks = ["vmbr1"]
vm_ids = "200-299"
import_ids = "100-149"
addresses = ["10.0.0.10-10.0.0.99/24"]
gateway = "10.0.0.1"
nameservers = ["10.0.0.2"]
overcommit_cores = 4
workspaces = ["class/**"]
[[pools]]
name = "metal"
kind = "ironic"
url = "https://ironic.example:6385"
workspaces = ["metal/**", "pools/**"]
enroll = ["pools/*"]
[[pools.images]]
name = "debian"
source = "https://images.example/debian.raw"
os_hash_algo = "sha256"
os_hash_value = "abc"
[[pools]]
name = "desks"
kind = "static"
clean = ["/opt/clean", "--all"]
timeout = "5s"
ssh_user = "setup"
ssh_key_file = %q
[[pools.machines]]
name = "desk1"
address = "10.0.9.1"
host_key = %q
cores = 8
labels = { room = "a" }
`, token, strings.TrimSuffix(strings.Repeat("AB:", 32), ":"), login, host))
	if err != nil {
		t.Fatal(err)
	}
	want := pool.Config{
		Name: "lab", Kind: "proxmox", URL: "https://pve.example:8006", Token: "tendril@pve!agent=secret", TokenFile: token, Fingerprint: strings.Repeat("ab", 32),
		ImportIDs: []int{100, 149}, Storages: []string{"local-lvm"}, Networks: []string{"vmbr1"}, Timeout: 30 * time.Second, Gateway: netip.MustParseAddr("10.0.0.1"), Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		Ranges: []pool.Range{{From: netip.MustParseAddr("10.0.0.10"), To: netip.MustParseAddr("10.0.0.99"), Bits: 24}},
	}
	desks := pool.Config{
		Name: "desks", Kind: "static", Timeout: 5 * time.Second, Clean: []string{"/opt/clean", "--all"},
		SSHUser: "setup", SSHKeyFile: login, SSHKey: keys.Login,
		Machines: []pool.StaticMachine{{Name: "desk1", Address: netip.MustParseAddr("10.0.9.1"), HostKey: host, Cores: 8, Labels: map[string]string{"room": "a"}}},
	}
	if got, err := c.Pools.For("class/2026", uuid.New()); err != nil || !reflect.DeepEqual(got, []pool.Config{want, desks}) {
		t.Errorf("For(class/2026) = %+v, %v, want %+v", got, err, []pool.Config{want, desks})
	}
	if got, err := c.Pools.For("acme/prod", uuid.New()); err != nil || !reflect.DeepEqual(got, []pool.Config{desks}) {
		t.Errorf("For(acme/prod) = %+v, %v, want the pool for all", got, err)
	}
	metal := pool.Config{
		Name: "metal", Kind: "ironic", URL: "https://ironic.example:6385", Timeout: 30 * time.Second,
		Images: []pool.ImageSource{{Name: "debian", Source: "https://images.example/debian.raw", HashAlgo: "sha256", HashValue: "abc"}},
	}
	if got, err := c.Pools.For("metal/db", uuid.New()); err != nil || !reflect.DeepEqual(got, []pool.Config{metal, desks}) {
		t.Errorf("For(metal/db) = %+v, %v, want %+v", got, err, []pool.Config{metal, desks})
	}
	metal.Enroll = true
	if got, err := c.Pools.For("pools/metal", uuid.New()); err != nil || !reflect.DeepEqual(got, []pool.Config{metal, desks}) {
		t.Errorf("For(pools/metal) = %+v, %v, want %+v", got, err, []pool.Config{metal, desks})
	}
	limits := queue.PoolLimits{OvercommitCores: 4, IDs: []int{200, 299}, Addresses: []queue.PoolAddress{{From: "10.0.0.10", To: "10.0.0.99"}}}
	if got := c.Pools[0].Limits(); !reflect.DeepEqual(got, limits) {
		t.Errorf("Limits() = %+v, want %+v", got, limits)
	}

	c.Pools[0].TokenFile = filepath.Join(t.TempDir(), "gone")
	if _, err := c.Pools.For("class/2026", uuid.New()); err == nil || provision.AsFailure(err).Code != provision.CodeCredentials || strings.Contains(err.Error(), "secret") {
		t.Errorf("For() without the token's file = %v", err)
	}
}

func TestPoolsThatAreRefused(t *testing.T) {
	t.Parallel()
	token := fmt.Sprintf("token_file = %q\n", secretFile(t, "token", "a", 0o600))
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	login, rubbish := secretFile(t, "key", keys.Login, 0o600), secretFile(t, "rubbish", "hunter2", 0o600)
	proxmox := "kind = \"proxmox\"\nurl = \"https://pve:8006\"\n" + token
	static := "kind = \"static\"\n[[pools.machines]]\nname = \"a\"\naddress = \"10.0.0.1\"\n"
	for table, want := range map[string]string{
		`name = "a"` + "\n" + `kind = "vmware"`:                                                                               "must be proxmox, libvirt, ironic or static",
		`name = "A b"` + "\n" + static:                                                                                        "must be lowercase letters",
		"name = \"a\"\n" + proxmox + "tokn_file = \"x\"":                                                                      `did you mean "token_file"?`,
		"name = \"a\"\n" + proxmox + "token = \"hunter2\"":                                                                    "a secret does not belong in this file",
		"name = \"a\"\nkind = \"proxmox\"\nurl = \"http://pve:8006\"\n" + token:                                               "must be https://HOST:8006",
		"name = \"a\"\nkind = \"proxmox\"\nurl = \"https://u:hunter2@pve:8006\"\n" + token:                                    "must be https://HOST:8006",
		"name = \"a\"\nkind = \"proxmox\"\nurl = \"https://pve:8006\"":                                                        "name a file with USER@REALM!TOKENID=SECRET",
		"name = \"a\"\nkind = \"ironic\"":                                                                                     "url: missing",
		"name = \"a\"\nkind = \"ironic\"\nurl = \"https://u:hunter2@ironic\"":                                                 "must be https://HOST:6385",
		"name = \"a\"\nkind = \"ironic\"\nurl = \"http://ironic:6385\"\nhosts = {a = \"b\"}":                                  "does not belong to a pool of kind ironic",
		"name = \"a\"\nkind = \"ironic\"\nurl = \"http://ironic:6385\"\n[[pools.images]]\nname = \"d\"":                       "d: source is missing",
		"name = \"a\"\nkind = \"ironic\"\nurl = \"http://ironic:6385\"\n[[pools.images]]\nname = \"d\"\nsourc = \"x\"":        `did you mean "source"?`,
		"name = \"a\"\nkind = \"ironic\"\nurl = \"http://i\"\n[[pools.images]]\nname = \"d\"\nsource = \"x\"\nkernel = \"k\"": "kernel and ramdisk go together",
		"name = \"a\"\n" + static + "[[pools.images]]\nname = \"d\"\nsource = \"x\"":                                          "does not belong to a pool of kind static",
		"name = \"a\"\nkind = \"libvirt\"":                                                                                    "a table of nodes and their URLs",
		"name = \"a\"\nkind = \"static\"":                                                                                     "has at least one [[pools.machines]]",
		"name = \"a\"\nclean = [\"./clean\"]\n" + static:                                                                      "must begin with the absolute path",
		"name = \"a\"\n" + proxmox + "fingerprint = \"ab:cd\"":                                                                "must be the SHA-256",
		"name = \"a\"\n" + proxmox + "verify_ssl = false\nfingerprint = \"" + strings.Repeat("ab", 32) + "\"":                 "keep one of them",
		"name = \"a\"\n" + proxmox + "vm_ids = \"50-60\"":                                                                     "must be FIRST-LAST, such as 200-299",
		"name = \"a\"\n" + proxmox + "vm_ids = \"200-9999999\"":                                                               "at most 100000 ids",
		"name = \"a\"\n" + proxmox + "addresses = [\"10.0.0.9-10.0.0.2/24\"]":                                                 "must be FIRST-LAST/BITS",
		"name = \"a\"\n" + proxmox + "addresses = [\"10.0.0.9-10.0.1.2/24\"]":                                                 "in one network of 24 bits",
		"name = \"a\"\n" + proxmox + "addresses = [\"10.0.0.0-10.3.0.0/8\"]":                                                  "has more than 65536 addresses",
		"name = \"a\"\n" + proxmox + "addresses = [\"fd00::1-fd00::2:0:0/32\"]":                                               "has more than 65536 addresses",
		"name = \"a\"\n" + proxmox + "addresses = [\"10.0.0.1-10.0.0.9/24\"]\ngateway = \"10.0.0.1\"":                         "lies in one of the ranges",
		"name = \"a\"\n" + proxmox + "overcommit_cores = -1":                                                                  "must be numbers from 0 to 100",
		"name = \"a\"\n" + proxmox + "workspaces = [\"acme/**x\"]":                                                            "no pattern of workspace names",
		"name = \"a\"\nkind = \"static\"\nurl = \"https://x\"\n[[pools.machines]]\nname = \"a\"\naddress = \"10.0.0.1\"":      "does not belong to a pool of kind static",
		"name = \"a\"\n" + static + "[[pools.machines]]\nname = \"a\"\naddress = \"10.0.0.2\"":                                "needs a name of its own",
		"name = \"a\"\nssh_user = \"setup\"\n" + static:                                                                       "ssh_user and ssh_key_file go together",
		"name = \"a\"\nssh_user = \"setup\"\nssh_key_file = \"" + rubbish + "\"\n" + static:                                   "has no private key that OpenSSH writes",
		"name = \"a\"\nssh_user = \"setup\"\nssh_key_file = \"" + login + "\"\n" + static:                                     "a: host_key is missing",
		"name = \"a\"\n" + static + "host_key = \"command=x ssh-ed25519 hunter2\"":                                            "host_key must be a public key",
		"name = \"a\"\n" + proxmox + "import_ids = \"all\"":                                                                   "import_ids: must be FIRST-LAST",
		"name = \"a\"\nimport_ids = \"100-200\"\n" + static:                                                                   "does not belong to a pool of kind static",
		"name = \"a\"\nssh_user = \"setup\"\n" + proxmox:                                                                      "does not belong to a pool of kind proxmox",
		"name = \"a\"\nenroll = [\"a\"]\n" + proxmox:                                                                          "does not belong to a pool of kind proxmox",
		"name = \"a\"\nkind = \"ironic\"\nurl = \"https://x\"\nenroll = [\"acme/**x\"]":                                       "enroll: \"acme/**x\" is no pattern",
		"name = \"a\"\n" + static + "cpus = 3":                                                                                "unknown key",
		"name = \"a\"\n" + static + "[[pools]]\nname = \"a\"\n" + static:                                                      "another pool has it",
	} {
		path := secretFile(t, "tendril.toml", "[queue]\nurl = \""+testURL+"\"\n[[pools]]\n"+table+"\n", 0o600)
		_, err := Load(path, []string{"TENDRIL_API_TOKEN=" + testToken})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load(%s) = %v, want %q", table, err, want)
		}
	}
}

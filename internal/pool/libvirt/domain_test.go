package libvirt

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"
	"go.yaml.in/yaml/v3"
	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/pool/cloudconfig"
)

func aSpec() pool.Spec {
	return pool.Spec{ID: anID, Name: "web-1", Workspace: "acme/prod", Image: "debian.qcow2", Cores: 2, Memory: 512}
}

func TestDefineInjectsNothing(t *testing.T) {
	t.Parallel()
	hostile := `x"/></metadata><devices><filesystem type='mount'/></devices>]]><!--` + "\x00\x1b\u202e&lt;\nnext"
	spec := aSpec()
	spec.Workspace, spec.Labels = hostile, map[string]string{hostile: hostile}
	text, err := define(spec, plan{settings: settings{Network: "bridge:br0", Storage: "default", VLAN: 7}, format: "qcow2", virtType: "qemu"})
	if err != nil {
		t.Fatal(err)
	}
	domain, err := parseDomain(text)
	if err != nil {
		t.Fatal(err)
	}
	m, marked := markOf(domain.Metadata)
	if !marked || m.ID != anID || m.Stage != stageDefined {
		t.Errorf("the mark is %+v, %t", m, marked)
	}
	if len(domain.Devices.Filesystems) != 0 || len(domain.Devices.Disks) != 2 || len(domain.Devices.Interfaces) != 1 {
		t.Errorf("something was injected:\n%s", text)
	}
	if port := domain.Devices.Interfaces[0]; port.Source.Bridge.Bridge != "br0" || port.VLan.Tags[0].ID != 7 {
		t.Errorf("the interface is %+v", port)
	}
	if strings.ContainsAny(domain.Title, "\n\x00\x1b") || !strings.Contains(domain.Description, "Made by Tendril") {
		t.Errorf("title %q, description %q", domain.Title, domain.Description)
	}
}

func TestMarkOf(t *testing.T) {
	t.Parallel()
	const ours = `<t:machine xmlns:t="` + namespace + `" id="1" stage="ready"/>`
	for text, want := range map[string]string{
		ours: "1",
		`<o:x xmlns:o="https://example.com">text</o:x>` + ours: "1",
		ours + ours: "",
		`<o:x xmlns:o="https://example.com">` + ours + `</o:x>`: "", // inside of somebody else's
		`<machine id="1"/>`: "",
		`<t:machine xmlns:t="https://tendril.run/other" id="1"/>`: "",
		"": "",
		`<t:machine xmlns:t="` + namespace + `" id="1"`: "",
	} {
		m, marked := markOf(&libvirtxml.DomainMetadata{XML: text})
		if marked != (want != "") || m.ID != want {
			t.Errorf("markOf(%s) = %q, %t; want %q", text, m.ID, marked, want)
		}
	}
}

func TestSeed(t *testing.T) {
	t.Parallel()
	spec := aSpec()
	spec.Address, spec.Gateway = netip.MustParsePrefix("10.1.2.3/24"), netip.MustParseAddr("10.1.2.1")
	spec.Nameservers = []netip.Addr{netip.MustParseAddr("10.1.2.53")}
	spec.Init = pool.Init{
		User: `ops"\n- evil: [`, Password: "p: #'\"\n", SSHKeys: []string{"ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b\nroot: x"},
		UserData: "#cloud-config\nruncmd: [[touch, /x]]\nssh_authorized_keys: [third]\nchpasswd: {list: [a]}\nhostname: other\n",
	}
	image, err := seed(spec)
	if err != nil {
		t.Fatal(err)
	}
	files := readISO(t, image)
	user := map[string]any{}
	if !strings.HasPrefix(files["user-data"], "#cloud-config\n") || yaml.Unmarshal([]byte(files["user-data"]), &user) != nil {
		t.Fatalf("user-data is %q", files["user-data"])
	}
	if user["user"] != spec.Init.User || user["password"] != spec.Init.Password || user["hostname"] != "other" {
		t.Errorf("user-data is %v", user)
	}
	if keys := user["ssh_authorized_keys"].([]any); len(keys) != 3 || keys[1] != spec.Init.SSHKeys[1] || keys[2] != "third" {
		t.Errorf("keys are %q", keys)
	}
	if passwords := user["chpasswd"].(map[string]any); len(passwords) != 2 {
		t.Errorf("chpasswd is %v: the template's mapping does not add to ours", passwords)
	}
	var meta map[string]string
	if json.Unmarshal([]byte(files["meta-data"]), &meta) != nil || meta["instance-id"] != anID || meta["local-hostname"] != "web-1" {
		t.Errorf("meta-data is %q", files["meta-data"])
	}
	const network = `{"ethernets":{"primary":{"addresses":["10.1.2.3/24"],"gateway4":"10.1.2.1","match":{"macaddress":"52:`
	if got := files["network-config"]; !strings.HasPrefix(got, network) || !strings.Contains(got, `"nameservers":{"addresses":["10.1.2.53"]}`) {
		t.Errorf("network-config is %s", got)
	}
	for _, bad := range []string{"#!/bin/sh\nsecret", "- a\n- secret", "{secret", "a: {1: 2}", strings.Repeat("a", 256<<10+1)} {
		spec.Init.UserData = bad
		if _, err := seed(spec); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("seed with user data %.20q: %v; want an error that does not quote it", bad, err)
		}
	}
}

// readISO answers the files of an image with the label cidata.
func readISO(t *testing.T, image []byte) map[string]string {
	t.Helper()
	if got := string(image[32808:32814]); got != "cidata" {
		t.Fatalf("the label is %q", got)
	}
	read, err := iso9660.OpenImage(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	root, err := read.RootDir()
	if err != nil {
		t.Fatal(err)
	}
	children, err := root.GetChildren()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, child := range children {
		content, err := io.ReadAll(child.Reader())
		if err != nil {
			t.Fatal(err)
		}
		files[child.Name()] = string(content)
	}
	return files
}

// For commands over SSH a machine is given its host key, so that it is known from the first moment.
func TestSeedGivesAHostKey(t *testing.T) {
	t.Parallel()
	keys, err := pool.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	spec := aSpec()
	spec.Init = pool.Init{User: "ops", SSHKeys: []string{"ssh-ed25519 AAAA ann"}, Keys: &keys, UserData: "#cloud-config\nssh_authorized_keys: [bob]\n"}
	text, err := cloudconfig.Document(spec)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Keys   []string          `yaml:"ssh_authorized_keys"`
		Host   map[string]string `yaml:"ssh_keys"`
		Delete bool              `yaml:"ssh_deletekeys"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	host := keys.Public(keys.Host)
	if want := []string{"ssh-ed25519 AAAA ann", keys.Public(keys.Login), "bob"}; !slices.Equal(config.Keys, want) || config.Host["ed25519_private"] != keys.Host || config.Host["ed25519_public"] != host || !config.Delete {
		t.Errorf("the seed has %+v, want our keys", config)
	}
	if strings.Contains(string(text), strings.Split(keys.Login, "\n")[2]) {
		t.Error("the private key that signs in is in the seed")
	}
	login, err := (&driver{}).Login(t.Context(), pool.Ref{}, spec.Init)
	if err != nil || login.User != "ops" || login.Key != keys.Login || !slices.Equal(login.HostKeys, []string{host}) || login.Settles {
		t.Errorf("Login() = %+v, %v", login, err)
	}
	spec.Init.UserData = "ssh_keys: {rsa_private: secret}\n"
	if _, err := cloudconfig.Document(spec); err == nil || !strings.Contains(err.Error(), "user_data has ssh_keys") || strings.Contains(err.Error(), "secret") {
		t.Errorf("with a host key of the template's: %v", err)
	}
	spec.Init.Keys = nil
	if _, err := cloudconfig.Document(spec); err != nil {
		t.Errorf("where no command runs over SSH: %v", err)
	}
	if _, err := (&driver{}).Login(t.Context(), pool.Ref{}, spec.Init); !errors.Is(err, pool.ErrNoSSH) {
		t.Errorf("Login() without keys = %v", err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	open := func(config pool.Config) pool.Driver {
		config.Name, config.URL = "lab", "unix:///run/libvirt/libvirt-sock"
		d, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	free, strict := open(pool.Config{}), open(pool.Config{Storages: []string{"fast", "slow"}, Networks: []string{"bridge:br0", "lan"}})
	for raw, want := range map[string]string{
		``:     "",
		`null`: "",
		`{}`:   "",
		`{"network": "lan", "vlan": 12, "storage": "slow", "full_clone": true, "firmware": "efi", "virt_type": "qemu", "cpu": "host-model"}`: "",
		`{"network": "bridge:br0"}`: "",
		`{"netwrk": "lan"}`:         `unknown setting "netwrk"; did you mean "network"?`,
		`{"network": "a'/><x"}`:     "is no name of a network",
		`{"network": "bridge:"}`:    "is no name of a network",
		`{"storage": "../x"}`:       "is no name of a storage pool",
		`{"vlan": 4095}`:            "vlan must be 1 to 4094",
		`{"vlan": "12"}`:            "vlan",
		`{"firmware": "uefi"}`:      "firmware must be bios or efi",
		`{"virt_type": "xen"}`:      "virt_type must be kvm or qemu",
		`{"cpu": "<x>"}`:            "cpu",
		`[]`:                        "write a block",
		strings.Repeat(" ", 65<<10): "at most",
	} {
		err := free.Settings([]byte(raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Settings(%.60s): %v; want %q", raw, err, want)
		}
	}
	if err := strict.Settings([]byte(`{"storage": "fats"}`)); err == nil || !strings.Contains(err.Error(), `allows no storage "fats"; known: fast, slow`) {
		t.Errorf("Settings with a storage that is not allowed: %v", err)
	}
	if s, err := strict.(*driver).parseSettings(nil); err != nil || s.Storage != "fast" || s.Network != "bridge:br0" {
		t.Errorf("without a block the settings are %+v, %v; want the first allowed ones", s, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	one := pool.Host{Name: "a", URL: "unix:///x"}
	for want, config := range map[string]pool.Config{
		"no host":           {},
		"none of unix":      {URL: "qemu+ssh://host/system"},
		"has a user":        {URL: "tls://me:pw@host"},
		"two hosts":         {Hosts: []pool.Host{one, one}},
		"go together":       {URL: "tls://host", CertFile: "/c"},
		"virt_type":         {URL: "tls://host", VirtType: "xen"},
		"none of its hosts": {Hosts: []pool.Host{one}, Nodes: []string{"b"}},
	} {
		if _, err := Open(config); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pw") {
			t.Errorf("Open(%+v): %v; want %q", config, err, want)
		}
	}
}

func TestCheckOfASpec(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*pool.Spec){
		"is no UUID":           func(s *pool.Spec) { s.ID = "../../x" },
		"is no DNS label":      func(s *pool.Spec) { s.Name = "a_b" },
		"is no volume's name":  func(s *pool.Spec) { s.Image = "../x" },
		"0 cores":              func(s *pool.Spec) { s.Cores = 0 },
		"wait must be address": func(s *pool.Spec) { s.Init.Wait = "ever" },
	} {
		spec := aSpec()
		change(&spec)
		if err := check(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check: %v; want %q", err, want)
		}
	}
	if err := check(aSpec()); err != nil {
		t.Error(err)
	}
}

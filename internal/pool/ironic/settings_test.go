package ironic

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pool"
)

// A template's block is read strictly, and an error names the setting and what to write.
func TestSettings(t *testing.T) {
	t.Parallel()
	for block, says := range map[string]string{
		`null`: "",
		`{}`:   "",
		`{"resource_class": "baremetal", "traits": ["CUSTOM_GPU"], "boot_mode": "uefi", "secure_boot": true, "clean": "full", "deploy_timeout": "90m"}`: "",
		`{"raid": {"logical_disks": [{"size_gb": 100, "raid_level": "1"}], "delete_existing": false}, "bios": {"BootMode": "Uefi"}}`:                    "",
		`{"deploy_steps": [{"interface": "bios", "step": "factory_reset", "priority": 95, "args": {}}]}`:                                                "",
		`[]`:                                         "write a block",
		`{"resource-class": "x"}`:                    `unknown setting "resource-class"; did you mean "resource_class"?`,
		`{"traits": "CUSTOM_GPU"}`:                   "traits: write a list of texts",
		`{"traits": ["gpu"]}`:                        "capital letters",
		`{"resource_class": "a b"}`:                  "such as baremetal",
		`{"root_gb": "10"}`:                          "root_gb: write a whole number",
		`{"root_gb": -1}`:                            "root_gb must be a size",
		`{"secure_boot": "yes"}`:                     "secure_boot: write true or false",
		`{"secure_boot": true, "boot_mode": "bios"}`: `needs boot_mode = "uefi"`,
		`{"boot_mode": "efi"}`:                       "write uefi, bios",
		`{"clean": "all"}`:                           "write metadata, full, none",
		`{"root_device": {"serail": "S1"}}`:          `unknown hint "serail"; did you mean "serial"?`,
		`{"bios": ["x"]}`:                            "an object of texts",
		`{"raid": {}}`:                               "logical_disks is missing",
		`{"raid": {"disks": []}}`:                    `raid: unknown setting "disks"`,
		`{"raid": 1}`:                                "raid: write a block",
		`{"deploy_steps": [{"interface": "boot", "step": "x"}]}`:                 "interface \"boot\"",
		`{"deploy_steps": [{"interface": "bios"}]}`:                              "step is missing",
		`{"deploy_steps": [{"interface": "bios", "step": "x", "prio": 1}]}`:      `unknown setting "prio"`,
		`{"deploy_steps": [{"interface": "bios", "step": "x", "priority": -1}]}`: "priority must be",
		`{"deploy_steps": {}}`:         "write a list of objects",
		`{"meta_data": {"uuid": "x"}}`: "uuid is Tendril's to say",
		`{"deploy_timeout": "soon"}`:   "write a duration",
		`{"clean_timeout": "100h"}`:    "write a duration",
		`{"user_data": "x"}`:           `unknown setting "user_data"`,
	} {
		_, err := parse(json.RawMessage(block))
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("parse(%s) = %v, want %q", block, err, says)
		}
	}
}

// What the block comes to is what Ironic's API wants.
func TestSettingsOfADeployment(t *testing.T) {
	t.Parallel()
	s, err := parse(json.RawMessage(`{
		"bios": {"BootMode": "Uefi", "AAA": "1"}, "raid": {"logical_disks": [{"size_gb": 100, "raid_level": "1"}]},
		"deploy_steps": [{"interface": "management", "step": "clear_job_queue", "priority": 99}],
		"boot_mode": "uefi", "secure_boot": true, "capabilities": {"disk_label": "gpt"},
		"deploy_timeout": "2h", "power_timeout": "1m"}`))
	if err != nil {
		t.Fatal(err)
	}
	steps, _ := json.Marshal(s.steps())
	if want := `[{"args":{"settings":[{"name":"AAA","value":"1"},{"name":"BootMode","value":"Uefi"}]},"interface":"bios","priority":90,"step":"apply_configuration"},` +
		`{"args":{"delete_existing":true,"raid_config":{"logical_disks":[{"raid_level":"1","size_gb":100}]}},"interface":"raid","priority":85,"step":"apply_configuration"},` +
		`{"args":{},"interface":"management","priority":99,"step":"clear_job_queue"}]`; string(steps) != want {
		t.Errorf("steps = %s\nwant %s", steps, want)
	}
	capabilities, _ := json.Marshal(s.capabilities())
	if want := `{"boot_mode":"uefi","disk_label":"gpt","secure_boot":"true"}`; string(capabilities) != want {
		t.Errorf("capabilities = %s, want %s", capabilities, want)
	}
	for state, want := range map[string]time.Duration{"deploying": 2 * time.Hour, "wait call-back": 2 * time.Hour, "cleaning": cleanLimit, "verifying": time.Minute, "active": 0} {
		if got := s.limit(stageOf(state)); got != want && state != "active" {
			t.Errorf("the limit of %s is %s, want %s", state, got, want)
		}
	}
}

// The config drive is an object of what the machine is told, with its address for the server's port.
func TestConfigDrive(t *testing.T) {
	t.Parallel()
	s, err := parse(json.RawMessage(`{"meta_data": {"rack": "r7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	spec := pool.Spec{
		ID: fakeID, Name: "db1", Address: netip.MustParsePrefix("10.0.9.7/22"), Gateway: netip.MustParseAddr("10.0.8.1"), Nameservers: []netip.Addr{netip.MustParseAddr("10.0.8.2")},
		Init: pool.Init{User: "ann", Password: "hunter2", SSHKeys: []string{"ssh-ed25519 AAAA ann"}, UserData: "packages: [vim]"},
	}
	object, err := drive(spec, s, "52:54:00:AA:BB:CC")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(object["network_data"])
	if want := `{"links":[{"ethernet_mac_address":"52:54:00:aa:bb:cc","id":"port0","type":"phy"}],"networks":[{"id":"network0","ip_address":"10.0.9.7","link":"port0","netmask":"255.255.252.0",` +
		`"routes":[{"gateway":"10.0.8.1","netmask":"0.0.0.0","network":"0.0.0.0"}],"type":"ipv4"}],"services":[{"address":"10.0.8.2","type":"dns"}]}`; string(text) != want {
		t.Errorf("network_data = %s\nwant %s", text, want)
	}
	text, _ = json.Marshal(object["meta_data"])
	if want := `{"hostname":"db1","name":"db1","public_keys":{"key-1":"ssh-ed25519 AAAA ann"},"rack":"r7","tendril_machine":"` + fakeID + `","uuid":"` + fakeID + `"}`; string(text) != want {
		t.Errorf("meta_data = %s\nwant %s", text, want)
	}
	user, _ := object["user_data"].(string)
	for _, part := range []string{"#cloud-config\n", `"user":"ann"`, `"password":"hunter2"`, `"packages":["vim"]`, `"hostname":"db1"`} {
		if !strings.Contains(user, part) {
			t.Errorf("user_data %q lacks %q", user, part)
		}
	}
	if _, err := drive(spec, s, ""); err == nil || !strings.Contains(err.Error(), "no port") {
		t.Errorf("without a port = %v", err)
	}
	spec.Address, spec.Gateway = netip.MustParsePrefix("2001:db8::7/64"), netip.MustParseAddr("2001:db8::1")
	object, err = drive(spec, s, "52:54:00:aa:bb:cc")
	if text, _ = json.Marshal(object["network_data"]); err != nil || !strings.Contains(string(text), `"netmask":"64"`) || !strings.Contains(string(text), `"network":"::"`) {
		t.Errorf("with IPv6 = %s, %v", text, err)
	}
	own := settings{NetworkData: map[string]any{"links": []any{}}}
	if object, err = drive(spec, own, ""); err != nil || len(object["network_data"].(map[string]any)) != 1 {
		t.Errorf("with network_data of the template = %v, %v", object, err)
	}
}

package ironic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool/serverlist"
)

// What a BMC is told stands in driver_info under the names of its driver, and nowhere else.
func TestServersInfo(t *testing.T) {
	t.Parallel()
	s := server{serverlist.Server{Driver: "redfish", Address: "bmc1.example", User: "root", Password: "se,cret", VerifyCA: "false"}}
	if info := s.info(); info["redfish_address"] != "https://bmc1.example" || info["redfish_password"] != "se,cret" || info["redfish_verify_ca"] != false {
		t.Errorf("driver_info = %v", info)
	}
	s = server{serverlist.Server{Driver: "ipmi", Address: "10.0.0.2", User: "admin", Password: "x"}}
	if info := s.info(); info["ipmi_address"] != "10.0.0.2" || info["ipmi_username"] != "admin" || len(info) != 3 {
		t.Errorf("driver_info = %v", info)
	}
	// Another driver's BMC is forgotten.
	n := &node{Driver: "redfish", DriverInfo: map[string]json.RawMessage{"redfish_address": nil, "redfish_password": nil, "of_others": nil}}
	text, err := json.Marshal(s.changes(n))
	if err != nil || !strings.Contains(string(text), `{"op":"remove","path":"/driver_info/redfish_password"}`) || strings.Contains(string(text), "of_others") {
		t.Errorf("changes = %s, %v", text, err)
	}
}

// A server's description is checked as a list's is, and goes alone.
func TestEnrollSettings(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	for block, says := range map[string]string{
		`{"enroll": {"driver": "ipmi", "address": "b", "inspect": null, "macs": null}}`: "",
		`{"enroll": {"drivr": "ipmi"}}`:                                                               `ironic: enroll: unknown setting "drivr"; did you mean "driver"?`,
		`{"enroll": {"driver": "ipmi"}}`:                                                              "ironic: enroll: address is missing",
		`{"enroll": {"driver": "ipmi", "address": "b", "password": 12345678}}`:                        "ironic: enroll: password: write a text",
		`{"enroll": {"driver": "redfish", "address": "https://u:hunter2@b"}}`:                         "without user and password",
		`{"enroll": {"driver": "ipmi", "address": "b", "kernel": "file:///hunter2", "ramdisk": "x"}}`: "kernel: write an address",
		`{"enroll": {"driver": "ipmi", "address": "b"}, "clean": "full"}`:                             "enroll goes alone",
		`{"enroll": "hunter2"}`:                                                                       "ironic: enroll: write a block",
	} {
		err := d.Settings(json.RawMessage(block))
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("Settings(%s) = %v, want %q", block, err, says)
		}
		if !d.Enrolls(json.RawMessage(block)) {
			t.Errorf("Enrolls(%s) = false", block)
		}
	}
	for _, block := range []string{"", "null", `{}`, `{"enroll": null}`, `{"clean": "full"}`} {
		if d.Enrolls(json.RawMessage(block)) {
			t.Errorf("Enrolls(%s) = true", block)
		}
	}
}

// A password that was given once stays, and only for the BMC that it was given for.
func TestRememberedPassword(t *testing.T) {
	t.Parallel()
	d := &Driver{}
	recorded := json.RawMessage(`{"enroll": {"driver": "ipmi", "address": "bmc1", "user": "root", "password": "hunter2hunter2"}}`)
	for block, password := range map[string]string{
		`{"enroll": {"driver": "ipmi", "address": "bmc1", "user": "root", "traits": ["CUSTOM_A"]}}`:                 "hunter2hunter2",
		`{"enroll": {"driver": "ipmi", "address": "bmc1", "user": "root", "password": null}}`:                       "hunter2hunter2",
		`{"enroll": {"driver": "ipmi", "address": "evil", "user": "root", "password": "another-password"}}`:         "another-password",
		`{"enroll": {"driver": "ipmi", "address": "evil", "user": "root"}}`:                                         "",
		`{"enroll": {"driver": "ipmi", "address": "bmc1", "user": "admin"}}`:                                        "",
		`{"enroll": {"driver": "redfish", "address": "bmc1", "user": "root"}}`:                                      "",
		`{"enroll": {"driver": "ipmi", "address": "bmc1", "user": "root", "verify_ca": "false", "password": null}}`: "",
	} {
		got, err := d.Remembered(json.RawMessage(block), recorded)
		if password == "" {
			if err == nil || !strings.Contains(err.Error(), "Give it again") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Remembered(%s) = %s, %v, want that it is given again", block, got, err)
			}
			continue
		}
		if secrets := d.Secrets(got); err != nil || len(secrets) != 1 || secrets[0] != password {
			t.Errorf("Remembered(%s) = %v, %v, want %s", block, secrets, err, password)
		}
	}
}

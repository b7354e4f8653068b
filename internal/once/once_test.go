package once

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/provisioner"
)

// The documents of the product's first design are read and written byte for byte.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for file, value := range map[string]any{
		"provision_request.json": &Request{}, "provision_response.json": &Response{},
		"error_response.json": &Response{}, "terminate_request.json": &Request{},
	} {
		want, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(want))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(value); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		got, err := json.MarshalIndent(value, "", "  ")
		if err != nil || string(got)+"\n" != string(want) {
			t.Errorf("%s is written as\n%s\n%v, want\n%s", file, got, err, want)
		}
	}
}

// ask has a program answer with this text.
func ask(t *testing.T, action Action, text string) (answer Answer, sent string, secrets []string, err error) {
	t.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		all, _ := io.ReadAll(inRead)
		sent = string(all)
		_, _ = io.WriteString(outWrite, text)
		_ = outWrite.Close()
	}()
	answer, err = Ask(t.Context(), protocol.Program{In: inWrite, Out: outRead}, Request{Action: action, ContractID: "abc123"}, func(s []string) { secrets = append(secrets, s...) })
	<-done
	return answer, sent, secrets, err
}

func TestAsk(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/provision_response.json")
	if err != nil {
		t.Fatal(err)
	}
	answer, sent, secrets, err := ask(t, Provision, string(text))
	if err != nil || !answer.Answered || answer.Check(0) != nil || strings.Join(secrets, " ") != "generated_password" {
		t.Errorf("Ask() = %+v, secrets %v, %v", answer, secrets, err)
	}
	if sent != `{"action":"provision","contract_id":"abc123"}`+"\n" {
		t.Errorf("the program got %q", sent)
	}
	m := answer.Response.Instance.Machine("abc123", "web")
	if m.Address != "10.0.0.100" || len(m.Addresses) != 2 || m.Credentials["root_password"] != "generated_password" || m.SSHPort != 22 || m.ExternalID != "vm-12345" {
		t.Errorf("Machine() = %+v", m)
	}
	if err := answer.Check(1); !is(err, protocol.ExitStatus) {
		t.Errorf("Check(1) after a success = %v", err)
	}
	text, err = os.ReadFile("testdata/error_response.json")
	if err != nil {
		t.Fatal(err)
	}
	answer, _, _, err = ask(t, Provision, string(text))
	if err != nil || answer.Response.Success || answer.Response.Error != "Out of storage space" || !answer.Response.RetryPossible || answer.Check(1) != nil {
		t.Errorf("Ask() = %+v, %v, want the program's own error", answer, err)
	}
}

func is(err error, kind protocol.Kind) bool {
	var v *protocol.ViolationError
	return errors.As(err, &v) && v.Kind == kind
}

func TestNonsense(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		kind protocol.Kind
	}{
		"nothing":          {" \n", protocol.NoResult},
		"no JSON":          {"Creating root_password=hunter2\n", protocol.NotJSON},
		"half":             {`{"success": true, "instance": {"external_id": "vm-1", "root_password": "hunter2`, protocol.HalfLine},
		"more":             {`{"success":false,"error":"x"}{}`, protocol.AfterResult},
		"a list":           {`[1]`, protocol.BadValue},
		"no success":       {`{"instance":{"external_id":"vm-1"}}`, protocol.BadValue},
		"a wrong type":     {`{"success":true,"instance":{"external_id":7,"root_password":"hunter2"}}`, protocol.BadValue},
		"no instance":      {`{"success":true}`, protocol.BadValue},
		"no external id":   {`{"success":true,"instance":{"root_password":"hunter2"}}`, protocol.BadValue},
		"an escape":        {`{"success":true,"instance":{"external_id":"\u001b[2J","root_password":"hunter2"}}`, protocol.BadValue},
		"no address":       {`{"success":true,"instance":{"external_id":"a","ip_address":"dhcp","root_password":"hunter2"}}`, protocol.BadValue},
		"no port":          {`{"success":true,"instance":{"external_id":"a","ssh_port":-1}}`, protocol.BadValue},
		"no error":         {`{"success":false}`, protocol.BadValue},
		"no status":        {`{"success":false,"error":"x","status":"half"}`, protocol.BadValue},
		"no health":        {`{"success":true,"health":"fine","instance":{"external_id":"a"}}`, protocol.BadValue},
		"not UTF-8":        {"{\"success\":false,\"error\":\"\xff\"}", protocol.NotUTF8},
		"more than 1 MiB":  {strings.Repeat("x", 2<<20), protocol.LineTooLong},
		"a long JSON text": {`{"success":false,"error":"` + strings.Repeat("x", 1<<20) + `"}`, protocol.LineTooLong},
	} {
		answer, _, secrets, err := ask(t, Provision, c.text)
		if !is(err, c.kind) || answer.Answered || answer.Check(0) == nil {
			t.Errorf("%s: Ask() = %+v, %v, want %s", name, answer, err, c.kind)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has the password: %v", name, err)
		}
		if answer.Response.Instance != nil && answer.Response.Instance.RootPassword != "" && len(secrets) != 1 {
			t.Errorf("%s: the password was not masked", name)
		}
	}
	empty, _, _, _ := ask(t, Terminate, "")
	if err := empty.Check(127); err == nil || !strings.Contains(err.Error(), "exit status 127") {
		t.Errorf("Check(127) = %v, want the status", err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	defer func() { _ = outWrite.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Ask(ctx, protocol.Program{In: inWrite, Out: outRead}, Request{Action: Terminate, ContractID: "a"}, nil)
	_ = inRead.Close()
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no answer to terminate") {
		t.Errorf("Ask() = %v", err)
	}
}

func TestProvisionOf(t *testing.T) {
	t.Parallel()
	got, _ := json.Marshal(ProvisionOf(provisioner.Wanted{
		ID: "abc123", Name: "web", Cores: 2, Memory: 4096, Disk: 50, Labels: map[string]string{"offering": "off-123"},
		SSHKeys: []string{"ssh-ed25519 AAAA..."}, Settings: map[string]json.RawMessage{"bandwidth_mbps": json.RawMessage("100")},
	}))
	want, err := os.ReadFile("testdata/provision_request.json")
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, want); err != nil || !bytes.Equal(got, compact.Bytes()) {
		t.Errorf("ProvisionOf() = %s, want %s, %v", got, &compact, err)
	}
	small, _ := json.Marshal(ProvisionOf(provisioner.Wanted{ID: "a", Image: "debian-13", Memory: 512, Settings: map[string]json.RawMessage{"bridge": json.RawMessage(`"vmbr0"`)}}))
	if want := `{"action":"provision","contract_id":"a","offering":{"id":"debian-13","cpu_cores":0,"memory_gb":0.5,"storage_gb":0,"bandwidth_mbps":0},"instance_config":{"bridge":"vmbr0"}}`; string(small) != want {
		t.Errorf("ProvisionOf() = %s, want %s", small, want)
	}
}

func TestHealthOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]provisioner.HealthStatus{
		`{"success":true}`:                                 provisioner.Healthy,
		`{"success":true,"health":"unhealthy"}`:            provisioner.Unhealthy,
		`{"success":false}`:                                provisioner.Unhealthy,
		`{"success":false,"retry_possible":true}`:          provisioner.HealthUnknown,
		`{"success":false,"error":"x","health":"healthy"}`: provisioner.Healthy,
	} {
		answer, _, _, err := ask(t, HealthCheck, text)
		if err != nil || answer.Response.HealthOf() != want {
			t.Errorf("%s is %s, %v, want %s", text, answer.Response.HealthOf(), err, want)
		}
	}
}

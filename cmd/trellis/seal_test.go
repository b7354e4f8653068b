package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestSeal(t *testing.T) {
	t.Parallel()
	agent, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	other, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(file, []byte("from-a-file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, fingerprint := agent.Public(), seal.Fingerprint(agent.Public())
	for _, tt := range []struct {
		in, args string
		code     int
		want     string // the value as JSON, or a part of what is said
	}{
		{"hunter2-hunter2\n", "", exitOK, `"hunter2-hunter2"`},
		{" two lines \nof-text\n\n", "", exitOK, `" two lines \nof-text\n"`},
		{"1234567890", "", exitOK, `"1234567890"`},
		{"1234567890", "--json", exitOK, `1234567890`},
		{`{"a": ["hunter2-hunter2"]}`, "--json -o json", exitOK, `{"a":["hunter2-hunter2"]}`},
		{"ignored", "--value-file " + file, exitOK, `"from-a-file"`},
		{"hunter2-hunter2", "--value-file - --repo https://GIT.example/acme/app.git", exitOK, `"hunter2-hunter2"`},
		{"hunter2-hunter2", "--fingerprint " + fingerprint, exitOK, `"hunter2-hunter2"`},

		{"hunter2-hunter2", "--fingerprint " + seal.Fingerprint(other.Public()), exitUsage, "not that of --fingerprint"},
		{"hunter2", "", exitFailed, "less than 8 bytes"},
		{"true", "--json", exitFailed, "boolean"},
		{"hunter2-hunter2", "--json", exitUsage, "is not JSON"},
		{strings.Repeat("hunter2", 2000), "", exitFailed, "too long"},
		{strings.Repeat("hunter2", 3000), "", exitUsage, "more than 16384 bytes"},
		{"hunter2-hunter2", "--value-file /nowhere", exitUsage, "--value-file"},
		{"hunter2-hunter2", "hunter2-hunter2", exitUsage, "one argument"},
		{"hunter2-hunter2", "--workspace=", exitUsage, "--workspace is missing"},
		{"hunter2-hunter2", "--workspace acme//prod", exitUsage, "write acme/prod"},
		{"hunter2-hunter2", "--workspace 0195f0de-0000-7000-8000-000000000000", exitUsage, "must be the workspace's name"},
		{"hunter2-hunter2", "--cluster 0195f0de-0000-7000-8000-000000000000", exitUsage, "must be the cluster's name"},
		{"hunter2-hunter2", "--repo=", exitUsage, "--template NAME, or --repo URL"},
		{"hunter2-hunter2", "--template app", exitUsage, "leave --repo out"},
		{"hunter2-hunter2", "--repo https://me:secret@git.example/acme/app", exitUsage, "--repo: the address holds credentials"},
	} {
		var out, said bytes.Buffer
		args := append([]string{"seal", "password", "--key", key, "--cluster", "prod", "--workspace", "acme/prod", "--repo", "https://git.example/acme/app"}, strings.Fields(tt.args)...)
		code := newApp("trellis", func(string) string { return "" }, strings.NewReader(tt.in), terminal{Writer: &out}, terminal{Writer: &said}).run(args)
		if code != tt.code || strings.Contains(said.String(), "hunter2") && tt.args != "hunter2-hunter2" {
			t.Errorf("seal %s of %.20q = %d, %s, want %d", tt.args, tt.in, code, said.String(), tt.code)
			continue
		}
		if code != exitOK {
			if !strings.Contains(said.String(), tt.want) || out.Len() > 0 {
				t.Errorf("seal %s of %.20q says %q and prints %q, want %q and nothing", tt.args, tt.in, said.String(), out.String(), tt.want)
			}
			continue
		}
		message := out.String()
		if strings.Contains(tt.args, "-o json") {
			var sealed map[string]string
			if err := json.Unmarshal(out.Bytes(), &sealed); err != nil || len(sealed) != 1 {
				t.Errorf("seal -o json = %q, %v, want an object fit for sealed_vars", out.String(), err)
			}
			message = sealed["password"]
		}
		use := seal.Use{Cluster: "prod", Workspace: "acme/prod", Repo: "https://git.example/acme/app", Name: "password"}
		got, err := agent.OpenVariable(message, use)
		if err != nil || strings.ReplaceAll(string(got), ": ", ":") != tt.want {
			t.Errorf("seal %s of %.20q = %s, %v, want %s", tt.args, tt.in, got, err, tt.want)
		}
		if !strings.Contains(said.String(), fingerprint) {
			t.Errorf("seal %s says %q, want the fingerprint %s", tt.args, said.String(), fingerprint)
		}
		for _, want := range []string{use.Cluster, use.Workspace, use.Repo, use.Name} {
			if !strings.Contains(said.String(), "  "+want+"\n") {
				t.Errorf("seal %s says %q, want that it is for %s", tt.args, said.String(), want)
			}
		}
	}
}

// A database that puts its own key in the place of the cluster's gets nothing.
func TestSealPinsTheKey(t *testing.T) {
	t.Parallel()
	agent, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	hostile, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, pin := range map[string]sealRequest{
		"--key": {key: agent.Public(), cluster: "prod"}, "--fingerprint": {fingerprint: seal.Fingerprint(agent.Public())},
	} {
		key, whose, err := pin.recipient(&wire.Cluster{Name: "prod", AgePublicKey: agent.Public()})
		if err != nil || key != agent.Public() || whose != "the key of the cluster prod" {
			t.Errorf("recipient(%s) = %s, %s, %v, want the cluster's", name, key, whose, err)
		}
		_, _, err = pin.recipient(&wire.Cluster{Name: "prod", AgePublicKey: hostile.Public()})
		if err == nil || !strings.Contains(err.Error(), seal.Fingerprint(agent.Public())) || !strings.Contains(err.Error(), seal.Fingerprint(hostile.Public())) {
			t.Errorf("recipient(%s) of a key that was swapped = %v, want a refusal that names both", name, err)
		}
	}
	if _, _, err := (sealRequest{}).recipient(&wire.Cluster{Name: "prod"}); err == nil {
		t.Error("recipient() of a cluster without a key = nil, want an error")
	}
}

const agentKey = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"

func recipientOf(t *testing.T) age.Recipient {
	t.Helper()
	to, err := seal.ParseRecipient(agentKey)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestSealedFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"a.age": "message a", "all.json": `{"a": "older", "b": "message b"}`, "bad.json": `["hunter2"]`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	got, err := (&sealedFlags{vars: []string{"a=" + at("a.age")}, files: []string{at("all.json")}}).read()
	if err != nil || len(got) != 2 || got["a"] != "message a" || got["b"] != "message b" {
		t.Errorf("read() = %v, %v, want both, the single one first", got, err)
	}
	message, err := seal.Variable{
		Use:   seal.Use{Cluster: "prod", Workspace: "acme/prod", Repo: "https://git.example/t", Name: "a"},
		Value: json.RawMessage(`"hunter2-hunter2"`),
	}.Seal(recipientOf(t))
	if err != nil {
		t.Fatal(err)
	}
	asked, err := deployRequest{
		repo: "https://git.example/t", version: "v1", workspace: "acme/prod", by: "a test", sealed: map[string]string{"a": message}, requesterKey: agentKey,
	}.snapshot()
	var snapshot provision.Snapshot
	if err != nil || json.Unmarshal(asked, &snapshot) != nil || snapshot.SealedVars["a"] != message || snapshot.RequesterKey != agentKey {
		t.Errorf("snapshot() = %s, %v, want the message and the requester's key in it", asked, err)
	}
	for want, flags := range map[string]sealedFlags{
		"must be NAME=FILE":                    {vars: []string{"hunter2"}},
		"--sealed-var a: names no file":        {vars: []string{"a=hunter2"}},
		"must hold one JSON object":            {files: []string{at("bad.json")}},
		"--sealed-vars: names no file that ca": {files: []string{at("none")}},
	} {
		if _, err := flags.read(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("read(%v) = %v, want %q and nothing of a value", flags, err, want)
		}
	}
}

// On a terminal the value is asked for and not shown.
func TestSealAsksForTheValue(t *testing.T) {
	t.Parallel()
	master, terminal := pseudoTerminal(t)
	cmd := command(t, nil, "seal", "password", "--key", agentKey, "--cluster", "prod", "--workspace", "acme/prod", "--repo", "https://git.example/acme/app")
	cmd.Stdin, cmd.Stderr = terminal, terminal
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close() // so that what is read ends with the process
	said := &outputtest.Buffer{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(said, master) // ends with an error on Linux
	}()
	patience.AwaitShowing(t, "to be asked", said.String, func() bool { return strings.Contains(said.String(), "Value of password (it is not shown): ") })
	patience.AwaitShowing(t, "what is typed not to be shown", said.String, func() bool {
		termios, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
		return err == nil && termios.Lflag&unix.ECHO == 0
	})
	if _, err := master.WriteString("hunter2-hunter2\n"); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	<-read
	if err != nil || strings.Contains(said.String(), "hunter2") || !strings.HasPrefix(out.String(), "-----BEGIN AGE ENCRYPTED FILE-----") {
		t.Errorf("seal on a terminal = %v, shows %q, prints %q, want a message and nothing of the value", err, said, out.String())
	}
}

// pseudoTerminal is one, and the end where the person sits.
func pseudoTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

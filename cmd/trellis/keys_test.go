package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// somebody runs verbs with a configuration, and so a key, of their own.
type somebody struct {
	t   *testing.T
	env []string
	at  []string
}

func newSomebody(t *testing.T, dir string) *somebody {
	t.Helper()
	return &somebody{t, []string{"TRELLIS_CONFIG=" + filepath.Join(t.TempDir(), "trellis", "config.toml")}, []string{"--data-dir", dir}}
}

func (s *somebody) run(args ...string) result {
	s.t.Helper()
	return trellisEnv(s.t, s.env, append(args, s.at...)...)
}

// keys are what "trellis keys" shows.
func (s *somebody) keys() (k map[string]string) {
	s.t.Helper()
	r := trellisEnv(s.t, s.env, "keys", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &k); err != nil || r.code != exitOK {
		s.t.Fatalf("keys = %d, %v: %s%s", r.code, err, r.out, r.stderr)
	}
	return k
}

// A person's key is made and kept by this program: what an agent seals to it is opened,
// and what it wants signed is signed, without anybody pasting keys.
func TestOwnKey(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	ada, bob := newSomebody(t, dir), newSomebody(t, dir)
	s := beginEnv(t, ada.env, "up", "--data-dir", dir, "--listen", "127.0.0.1:0")
	s.await(t, "Ctrl-C ends everything.")
	s.await(t, "Made your key")

	deploy := []string{"deploy", "--template", "hello", "--workspace", "demo/one", "--var", "name=Ada", "--var", "pause_seconds=0", "--follow"}
	ada.run(append(deploy, "--var", "steps=1")...).want(t, "ada's deploy", exitOK, "succeeded", "token = (sensitive)")
	ada.run("outputs", "demo/one").want(t, "outputs", exitOK, "token = (sensitive)", "Sealed outputs: 1. --reveal shows")
	ada.run("outputs", "demo/one", "--reveal").want(t, "outputs --reveal", exitOK, `token = "`)
	var outputs map[string]provision.Output
	if r := ada.run("outputs", "demo/one", "--reveal", "-o", "json"); json.Unmarshal([]byte(r.out), &outputs) != nil || len(outputs["token"].Value) < 3 || outputs["token"].Sealed == "" {
		t.Errorf("outputs --reveal -o json = %s%s, want the token's value and its message", r.out, r.stderr)
	}
	if r := ada.run("state", "pull", "demo/one"); r.code != exitOK || !json.Valid([]byte(r.out)) {
		t.Errorf("state pull = %d, %q, %s", r.code, r.out, r.stderr)
	}
	ada.run(append(deploy, "--var", "steps=2")...).want(t, "ada's second deploy", exitOK, "succeeded")
	var versions []wire.StateVersion
	if r := ada.run("state", "versions", "demo/one", "-o", "json"); json.Unmarshal([]byte(r.out), &versions) != nil || len(versions) != 2 {
		t.Fatalf("state versions = %s%s, want two", r.out, r.stderr)
	}
	older := min(versions[0].Version, versions[1].Version)
	ada.run("state", "rollback", "demo/one", fmt.Sprint(older), "--yes").want(t, "state rollback", exitOK)
	kept := filepath.Join(t.TempDir(), "state")
	ada.run("state", "pull", "demo/one", "--to", kept).want(t, "state pull --to", exitOK)
	raiseSerial(t, kept)
	ada.run(append(typed(pages.Code(t, "docs/OPERATIONS.md", "trellis state push WORKSPACE FILE", "WORKSPACE", "demo/one", "FILE", kept)), "--yes")...).want(t, "state push", exitOK)

	// Somebody whom the agent doesn't know.
	bob.run("outputs", "demo/one", "--reveal").want(t, "bob's outputs", exitOK, "token = (sensitive)", "a key that you don't have here: 1")
	bob.run("state", "rollback", "demo/one", fmt.Sprint(older), "--yes").want(t, "bob's rollback", exitFailed, "operation_refused", "does not name the key")
	bob.run("state", "pull", "demo/one").want(t, "bob's pull", exitFailed, "operation_refused", "policy.requester_keys")
	// Until ada vouches for him, for these workspaces.
	certificate := ada.local("keys", "certify", bob.keys()["recipient"], "--signer", bob.keys()["signer"], "--name", "bob", "--workspaces", "demo/**", "--days", "1")
	certificate.want(t, "keys certify", exitOK, "for bob, until", "Agents must name your key: authority SHA256:")
	file := filepath.Join(t.TempDir(), "certificate")
	if err := os.WriteFile(file, []byte(certificate.out), 0o600); err != nil {
		t.Fatal(err)
	}
	ada.local("keys", "use", file).want(t, "another's certificate", exitUsage, "for another key than yours")
	bob.local("keys", "use", file).want(t, "keys use", exitOK, "certified for [demo/**]")
	bob.local("keys").want(t, "keys", exitOK, "certificate", "demo/**")
	if r := bob.run("state", "pull", "demo/one"); r.code != exitOK || !json.Valid([]byte(r.out)) {
		t.Errorf("bob's pull with a certificate = %d, %q, %s", r.code, r.out, r.stderr)
	}
	// The person who retries a run gets its secrets, and not the one who started it.
	bob.run("retry", "1", "--follow").want(t, "bob's retry of ada's deploy", exitOK, "succeeded")
	bob.run("outputs", "demo/one", "--reveal").want(t, "bob's outputs of his own", exitOK, `token = "`)
	for _, line := range []string{"retry 1 --plan -o json", "destroy demo/one --yes -o json"} {
		var queued wire.QueuedAnswer
		if r := bob.run(strings.Fields(line)...); json.Unmarshal([]byte(r.out), &queued) != nil || queued.Number == 0 {
			t.Fatalf("%s = %d, %s%s", line, r.code, r.out, r.stderr)
		}
		bob.run("status", fmt.Sprint(queued.Number), "-o", "json").want(t, line, exitOK, `"requester_key": "tendril-certificate-1.`)
	}
	for _, args := range []string{"keys certify", "keys certify age1x --name a --workspaces a", "keys certify " + bob.keys()["recipient"] + " --name a", "keys use", "keys use /nowhere"} {
		ada.local(strings.Fields(args)...).want(t, args, exitUsage)
	}
	s.signal(os.Interrupt)
	if code := s.end(t); code != exitOK {
		t.Errorf("up ends with %d", code)
	}
}

// A key that others may read is used for nothing, and keeps nobody from anything else.
func TestOwnKeyThatOthersMayRead(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	config := filepath.Join(t.TempDir(), "trellis", "config.toml")
	a := newApp("trellis", func(name string) string { return map[string]string{"TRELLIS_CONFIG": config}[name] }, nil, terminal{}, terminal{Writer: &said})
	if keys := ownKeys(a); len(keys) != 3 || !strings.HasPrefix(keys[2], "authority SHA256:") {
		t.Errorf("ownKeys() = %q, want both public keys and what they certify", keys)
	}
	if err := os.Chmod(filepath.Join(filepath.Dir(config), "key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if keys := ownKeys(a); keys != nil || !strings.Contains(said.String(), "Warning: sensitive outputs") {
		t.Errorf("ownKeys() with an open key = %q, said %q", keys, said.String())
	}
	if _, err := requester(a, ""); err == nil {
		t.Error("a deploy names an open key")
	}
	if key, err := requester(a, "none"); err != nil || key != "" {
		t.Errorf("requester(none) = %q, %v", key, err)
	}
}

// raiseSerial makes a state a later one, as somebody does who has edited it.
func raiseSerial(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	state := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	serial, _ := state["serial"].(float64)
	state["serial"] = serial + 1
	if err == nil {
		text, err = json.Marshal(state)
	}
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// local runs a verb that needs no server.
func (s *somebody) local(args ...string) result {
	s.t.Helper()
	return trellisEnv(s.t, s.env, args...)
}

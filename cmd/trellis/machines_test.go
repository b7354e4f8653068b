package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func aMachine(name, workspace, address string) wire.Machine {
	return wire.Machine{Name: name, Workspace: workspace, Status: "running", IPAddresses: []string{address}, Labels: map[string]string{"class": "a b"}}
}

// fleet has names that ssh and Ansible can't have as they are.
func fleet() []wire.Machine {
	port, user, pool := 2222, "root", "lab-1"
	ada, two := aMachine("ada", "demo/x", "10.0.0.1"), aMachine("two", "demo/y", "10.0.0.4")
	ada.SSHPort, ada.SSHUser, ada.Pool = &port, &user, &pool
	two.Labels = map[string]string{"class": "{{ lookup('pipe', 'id') }}", "{%": "x", "other": "#jinja2: variable_start_string:'[['"}
	return []wire.Machine{
		ada, aMachine("evil\n  ProxyCommand touch /tmp/x", "demo/x", "10.0.0.2"), aMachine("lost", "demo/x", "nowhere"), aMachine("localhost", "demo/x", "10.0.0.5"),
		aMachine("two", "demo/x", "10.0.0.3"), two,
	}
}

func TestSSHConfig(t *testing.T) {
	t.Parallel()
	text, left := sshConfig(fleet())
	want := "Host ada\n  HostName 10.0.0.1\n  Port 2222\n  User root\nHost two.demo.x\n  HostName 10.0.0.3\n  Port 22\nHost two.demo.y\n  HostName 10.0.0.4\n  Port 22\n"
	if text != want || len(left) != 3 {
		t.Errorf("sshConfig() = %q and %d left out, want %q and 3", text, len(left), want)
	}
	// As ssh itself reads it.
	ssh := pgtest.Tool(t, "ssh")
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), ssh, "-G", "-F", file, "ada").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "hostname 10.0.0.1\n") || !strings.Contains(string(out), "port 2222\n") || !strings.Contains(string(out), "user root\n") {
		t.Errorf("ssh -G = %s, %v, want the machine's address, port and user", out, err)
	}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	document, left := inventory(fleet())
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "{{") || strings.Contains(string(text), "{%") || strings.Contains(string(text), "jinja2") || strings.Contains(string(text), "ProxyCommand") || len(left) != 3 {
		t.Errorf("inventory = %s and %d left out, want nothing that Ansible computes, and three left out", text, len(left))
	}
	var got struct {
		Meta struct {
			HostVars map[string]map[string]any `json:"hostvars"`
		} `json:"_meta"`
		All, Pool, Workspace, Label group
	}
	var groups map[string]json.RawMessage
	if err := json.Unmarshal(text, &groups); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]any{"_meta": &got.Meta, "all": &got.All, "pool_lab_1": &got.Pool, "workspace_demo_x": &got.Workspace, "label_class_a_b": &got.Label} {
		if err := json.Unmarshal(groups[name], to); err != nil {
			t.Errorf("group %s: %v in %s", name, err, text)
		}
	}
	ada := got.Meta.HostVars["ada"]
	if ada["ansible_host"] != "10.0.0.1" || ada["ansible_port"] != 2222.0 || ada["ansible_user"] != "root" {
		t.Errorf("ada = %v, want her address, port and user", ada)
	}
	if len(got.All.Hosts) != 3 || len(got.Workspace.Hosts) != 2 || len(got.Label.Hosts) != 2 || strings.Join(got.Pool.Hosts, " ") != "ada" || len(got.Meta.HostVars) != 3 {
		t.Errorf("inventory = %s, want three hosts, two of demo/x, one in the pool", text)
	}

	text, err = json.Marshal(inventoryFile(document))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		All struct {
			Hosts    map[string]map[string]any
			Children map[string]struct{ Hosts map[string]map[string]any }
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.All.Hosts) != 3 || file.All.Hosts["ada"]["ansible_host"] != "10.0.0.1" || len(file.All.Children) != len(groups)-2 {
		t.Errorf("the file = %s, want the same hosts, and each group but all and _meta", text)
	}
	if _, is := file.All.Children["pool_lab_1"].Hosts["ada"]; !is || len(file.All.Children["workspace_demo_x"].Hosts) != 2 {
		t.Errorf("the file = %s, want ada in the pool and two in demo/x", text)
	}
}

// A list that is watched is shown again when it has changed, and only then.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newApp("trellis", os.Getenv, nil, terminal{Writer: &out}, terminal{Writer: io.Discard})
		ctx, cancel := context.WithCancel(t.Context())
		lists, calls := [][]wire.Machine{{{Status: "creating"}}, {{Status: "creating"}}, {{Status: "running"}}}, 0
		if err := watch(ctx, a, func(context.Context) ([]wire.Machine, error) { calls++; return lists[min(calls, 3)-1], nil }, func(list []wire.Machine) error {
			if list[0].Status == "running" {
				cancel()
			}
			_, err := fmt.Fprintln(&out, list[0].Status)
			return err
		}); err != nil || out.String() != "creating\n\nrunning\n" || calls != 3 {
			t.Errorf("watch() = %v and %q after %d reads", err, out.String(), calls)
		}
		broken := errors.New("broken")
		if err := watch(t.Context(), a, func(context.Context) ([]wire.Machine, error) { return nil, broken }, nil); !errors.Is(err, broken) {
			t.Errorf("watch() = %v, want what is wrong", err)
		}
	})
}

package templatefile

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

var update = flag.Bool("update", false, "write testdata/problems")

// whole has all that a machine template can say.
const whole = `
title       = "Linux machine"
description = <<EOT
A machine for a class.
It has SSH.
EOT
icon        = "server"

provisioner "machine" {
  pre_provision_commands  = ["echo begin"]
  post_provision_commands = ["echo end"]
  skip_post_provision     = true
  machine {
    for_each = toset(concat(["teacher"], var.students))
    name     = "${var.class}-${each.key}"
    pool     = var.pool
    image    = "debian-13"
    cores    = 2
    memory   = 2048
    disk     = 20
    address  = "10.0.0.7"
    labels   = { class = var.class, room = 12 }
    proxmox { bridge = "vmbr0" }
    libvirt { network = "lab" }
    ironic { }
    static { }
  }
  after {
    run = ["cloud-init status --wait"]
    by  = "agent"
  }
}
placement {
  node     = var.node
  avoid    = ["pve9"]
  spread   = true
  together = false
}
step "clone" { label = "Creating VM from template" }
step "wait-net" { label = "Waiting for network" }
health {
  http            = "/healthz"
  port            = 8080
  interval        = 60
  timeout         = 5
  healthy_after   = 2
  unhealthy_after = 4
}
`

const once = `
provisioner "script" {
  speak        = "once"
  provision    = ["./provision.sh", "-v"]
  terminate    = ["/usr/bin/fake-cloud", "rm"]
  health_check = ["./provision.sh", "health"]
  idempotent   = true
}
health { command = ["./provision.sh", "ok"] }
`

const lines = `
provisioner "script" {
  speak   = "lines"
  command = ["./provision.sh"]
  timeout = 86400
  machine { name = "one" }
}
health { ssh = 22 }
`

const manual = `
provisioner "manual" {
  instructions = "./INSTRUCTIONS.md"
  expires      = "24h"
  output "address" { description = "IP address" }
  output "ports" { type = number }
  output "password" {
    type      = string
    sensitive = true
  }
}
health { tcp = 22 }
`

const placed = `
provisioner "terraform" {
  machine {
    for_each = var.nodes
    name     = each.key
    cores    = each.value.cores
  }
}
placement { variable = "places" }
`

func TestParse(t *testing.T) {
	t.Parallel()
	every := &Health{Interval: 5 * time.Minute, Timeout: 10 * time.Second, HealthyAfter: 1, UnhealthyAfter: 3}
	health := func(change func(*Health)) *Health {
		h := *every
		change(&h)
		return &h
	}
	for name, tt := range map[string]struct {
		source string
		want   *File
	}{
		"nothing":  {"", &File{Kind: Terraform}},
		"no block": {`title = "A"`, &File{Kind: Terraform, Title: "A"}},
		"terraform": {"provisioner \"terraform\" {}\nhealth { http = \"/\" }", &File{Kind: Terraform,
			Health: health(func(h *Health) { h.HTTP, h.Port = "/", 80 })}},
		"machine": {whole, &File{
			Title: "Linux machine", Description: "A machine for a class.\nIt has SSH.\n", Icon: "server", Kind: ByMachine,
			Before: []string{"echo begin"}, After: []string{"echo end"}, SkipAfter: true,
			InMachine: &InMachine{Run: []string{"cloud-init status --wait"}, By: "agent"},
			Steps:     []Step{{"clone", "Creating VM from template"}, {"wait-net", "Waiting for network"}},
			Health:    &Health{HTTP: "/healthz", Port: 8080, Interval: time.Minute, Timeout: 5 * time.Second, HealthyAfter: 2, UnhealthyAfter: 4},
		}},
		"once": {once, &File{Kind: ByScript, Script: &Script{
			Provision: []string{"./provision.sh", "-v"}, Terminate: []string{"/usr/bin/fake-cloud", "rm"}, HealthCheck: []string{"./provision.sh", "health"},
			Idempotent: true, Timeout: 5 * time.Minute,
		}, Health: health(func(h *Health) { h.Command = []string{"./provision.sh", "ok"} })}},
		"a script that is asked": {strings.Replace(once, `health { command = ["./provision.sh", "ok"] }`, "", 1), &File{Kind: ByScript, Script: &Script{
			Provision: []string{"./provision.sh", "-v"}, Terminate: []string{"/usr/bin/fake-cloud", "rm"}, HealthCheck: []string{"./provision.sh", "health"},
			Idempotent: true, Timeout: 5 * time.Minute,
		}, Health: every}},
		"a program that is asked": {strings.Replace(lines, "health { ssh = 22 }", "health { interval = 60 }", 1), &File{Kind: ByScript, Script: &Script{Lines: true, Command: []string{"./provision.sh"}, Timeout: 24 * time.Hour},
			Health: health(func(h *Health) { h.Interval = time.Minute })}},
		"lines": {lines, &File{Kind: ByScript, Script: &Script{Lines: true, Command: []string{"./provision.sh"}, Timeout: 24 * time.Hour},
			Health: health(func(h *Health) { h.SSH = 22 })}},
		"manual": {manual, &File{Kind: ByHand, Manual: &Manual{Instructions: "INSTRUCTIONS.md", Expires: 24 * time.Hour, Outputs: []Output{
			{Name: "address", Description: "IP address", Type: "string"}, {Name: "ports", Type: "number"}, {Name: "password", Type: "string", Sensitive: true},
		}}, Health: health(func(h *Health) { h.TCP = 22 })}},
		"placed": {placed, &File{Kind: Terraform, PlacementVariable: "places"}},
		"defaults": {"provisioner \"manual\" {\n instructions = \"a.md\"\n after { run = [\"true\"] }\n}", &File{Kind: ByHand,
			Manual: &Manual{Instructions: "a.md", Expires: 72 * time.Hour}, InMachine: &InMachine{Run: []string{"true"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse([]byte(tt.source))
			if err != nil {
				t.Fatal(err)
			}
			if got.HasMachines() != strings.Contains(tt.source, " machine {") {
				t.Errorf("HasMachines() = %v", got.HasMachines())
			}
			// What is not exported is tried by what it does.
			said := &File{
				Title: got.Title, Description: got.Description, Icon: got.Icon, Kind: got.Kind, Script: got.Script, Manual: got.Manual,
				Before: got.Before, After: got.After, SkipAfter: got.SkipAfter, InMachine: got.InMachine,
				PlacementVariable: got.PlacementVariable, Steps: got.Steps, Health: got.Health,
			}
			if !reflect.DeepEqual(said, tt.want) {
				t.Errorf("Parse() = %+v, want %+v", said, tt.want)
			}
		})
	}
}

// Each file of testdata/problems is a tendril.hcl, and what is said of it follows below
// a line of dashes.
func TestProblems(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/problems/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			const line = "\n----\n"
			source, want, _ := strings.Cut(string(content), line)
			_, err = Parse([]byte(source))
			f, ok := errors.AsType[*provision.Failure](err)
			if !ok || f.Code != provision.CodeTemplateInvalid {
				t.Fatalf("Parse() error = %v, want a Failure with %s", err, provision.CodeTemplateInvalid)
			}
			if *update {
				if err := os.WriteFile(path, []byte(source+line+f.Message+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got := f.Message + "\n"; got != want {
				t.Errorf("Parse() says\n%s\nwant\n%s", got, want)
			}
		})
	}
}

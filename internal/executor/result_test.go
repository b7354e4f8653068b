package executor_test

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"

	"filippo.io/age"
	"filippo.io/age/agessh"
	"filippo.io/age/armor"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// with sets a field of the snapshot.
func (s *site) with(field string, value any) {
	s.t.Helper()
	var snapshot map[string]any
	if err := json.Unmarshal(s.job.Assignment.Snapshot, &snapshot); err != nil {
		s.t.Fatal(err)
	}
	snapshot[field] = value
	encoded, err := json.Marshal(snapshot)
	if err != nil {
		s.t.Fatal(err)
	}
	s.job.Assignment.Snapshot = encoded
}

// resources are those of the last report that had any to say.
func (c *child) resources() (resources []provision.Resource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Resources != nil {
			resources = r.Detail.Resources
		}
	}
	return resources
}

// told writes resources one a word: address=status with its addresses; "-"
// before what has no id.
func told(resources []provision.Resource) string {
	words := []string{}
	for _, r := range resources {
		word := r.Address + "=" + r.Status + strings.Join(append([]string{""}, r.IPAddresses...), "@")
		if r.ExternalID == "" {
			word = "-" + word
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

const typed = `
variable "password" {
  type      = string
  sensitive = true
}
resource "terraform_data" "a" { input = var.password }
output "list" { value = [1, "two", true] }
output "object" { value = { a = { b = null } } }
output "null" { value = null }
output "password" {
  value     = { in = ["a\n${var.password}"] }
  sensitive = true
}
`

func TestSensitiveOutputsAreSealed(t *testing.T) {
	t.Parallel()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sshPublic, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	sshIdentity, err := agessh.NewEd25519Identity(private)
	if err != nil {
		t.Fatal(err)
	}
	bad := identity.Recipient().String()
	bad = bad[:len(bad)-1] + string("qp"[strings.Count(bad[len(bad)-1:], "q")]) // its checksum is wrong
	for name, test := range map[string]struct {
		key      string
		identity age.Identity
		warns    bool
		refused  string
	}{
		"age":     {key: identity.Recipient().String(), identity: identity},
		"ssh":     {key: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshPublic))) + " ada@laptop", identity: sshIdentity},
		"nobody":  {},
		"bad key": {key: bad, warns: true},
		"refused": {refused: "policy.requester_keys does not name the key", warns: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.job.Settings.Policy.PlainSensitive = true
			s.template(map[string]string{"main.tf": typed}, map[string]any{"password": "correct-horse"})
			if test.key != "" {
				s.with("requester_key", test.key)
				s.job.Requester = test.key
			}
			if s.job.RequesterRefused = test.refused; test.refused != "" { // whatever the snapshot says
				s.with("requester_key", identity.Recipient().String())
			}
			for _, run := range []string{"first", "without changes"} {
				c := s.do(provision.OperationApply)
				outputs := c.outputs()
				for output, want := range map[string]string{
					"list": `["tuple",["number","string","bool"]] [1,"two",true]`, "object": `["object",{"a":["object",{"b":"dynamic"}]}] {"a":{"b":null}}`, "null": `"dynamic" null`,
				} {
					if o := outputs[output]; string(o.Type)+" "+string(o.Value) != want {
						t.Errorf("%s: output %s = %s %s, want %s", run, output, o.Type, o.Value, want)
					}
				}
				o := outputs["password"]
				if !o.Sensitive || o.Value != nil || (o.Sealed != "") != (test.identity != nil) {
					t.Errorf("%s: output password = %+v, want the marker, no value, and it sealed: %t", run, o, test.identity != nil)
				}
				if strings.Contains(c.text(), "Warning: sensitive outputs of this run are not recorded") != test.warns {
					t.Errorf("%s: the log warns of the key: %t, want %t", run, !test.warns, test.warns)
				}
				if test.identity == nil {
					continue
				}
				plain, err := age.Decrypt(armor.NewReader(strings.NewReader(o.Sealed)), test.identity)
				if err != nil {
					t.Fatal(err)
				}
				var value map[string][]string
				if err := json.NewDecoder(plain).Decode(&value); err != nil || value["in"][0] != "a\ncorrect-horse" {
					t.Errorf("%s: sealed = %v, %v, want the value as JSON", run, value, err)
				}
			}
		})
	}
}

// fleet is made of several kinds of resources; with fail, one of them fails
// when it exists, and one is never begun.
const fleet = `
variable "fail" { default = "false" }
resource "terraform_data" "machine" {
  for_each = toset(["a.b", "q\"$${x}"])
  input    = { name = each.key, public_ip = "192.0.2.10", source_ip = "192.0.2.99", addresses = ["2001:db8::1", "127.0.0.1", "mail"] }
}
resource "terraform_data" "half" {
  depends_on = [terraform_data.machine]
  count      = var.fail == "gone" ? 0 : 1
  provisioner "local-exec" { command = var.fail }
}
resource "terraform_data" "after" { depends_on = [terraform_data.half] }
module "m" {
  source   = "./m"
  for_each = { k = 1 }
}
`

const machines = `terraform_data.machine["a.b"]=created@2001:db8::1@192.0.2.10 terraform_data.machine["q\"$${x}"]=created@2001:db8::1@192.0.2.10`

func TestResourcesFollowEveryApply(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"local", "managed", "http"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			files := map[string]string{"main.tf": fleet, "m/main.tf": `resource "terraform_data" "in" { count = 1 }`}
			switch where {
			case "managed":
				s.manage()
			case "http":
				files["backend.tf"] = "terraform {\n  backend \"http\" {}\n}\n"
				address := newStateServer(t).url + "/{workspace_id}"
				s.job.Settings.State.Config = map[string]map[string]string{"http": {"address": address, "lock_address": address, "unlock_address": address}}
			}
			repo := s.template(files, nil)
			inside := `module.m["k"].terraform_data.in[0]=created`
			for _, step := range []struct {
				operation provision.Operation
				fail      string
				status    provision.Status
				want      string
			}{
				{provision.OperationApply, "false", provision.Failed, inside + " terraform_data.half[0]=tainted " + machines},
				{provision.OperationApply, "true", provision.Success, inside + " terraform_data.after=created terraform_data.half[0]=created " + machines},
				{provision.OperationApply, "true", provision.Success, inside + " terraform_data.after=created terraform_data.half[0]=created " + machines}, // no changes
				{provision.OperationApply, "gone", provision.Success, inside + " terraform_data.after=created " + machines},
				{provision.OperationDestroy, "gone", provision.Success, ""},
			} {
				s.ask(repo.URL, "v1", "", map[string]any{"fail": step.fail})
				s.job.Assignment.Operation = step.operation
				end, c := s.run()
				if where == "managed" {
					s.store(c)
				}
				if end.Status != step.status {
					t.Fatalf("%s with %s ended %s: %s", step.operation, step.fail, end.Status, end.Detail.ErrorMessage)
				}
				if got := c.resources(); got == nil || told(got) != step.want {
					t.Errorf("%s with %s: resources = %s, want %s", step.operation, step.fail, told(got), step.want)
				}
				var running []provision.Running
				for _, r := range c.reports {
					if r.Detail.Running != nil {
						running = r.Detail.Running
					}
				}
				if len(running) > 0 {
					t.Errorf("%s with %s: running at the end = %+v, want none", step.operation, step.fail, running)
				}
			}
		})
	}
}

// A cancelled apply says what it had made.
func TestResourcesOfACancelledApply(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "first" {}
` + slow("echo begun; exec sleep 600")}, nil)
	c := s.start()
	c.await("terraform_data.first: Creation complete")
	c.await("(local-exec): begun")
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c.end(), provision.Cancelled, provision.CodeCancelled)
	if got := told(c.resources()); !strings.Contains(got, "terraform_data.first=created") || !strings.Contains(got, "=tainted") {
		t.Errorf("resources = %s, want the first created and the other tainted", got)
	}
}

// What is sensitive stays so where the template copies it to.
func TestSecretsStayOutOfPlansAndOutputs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.job.Settings.Policy.PlainSensitive = true
	repo := s.template(map[string]string{"main.tf": `
variable "password" {
  type      = string
  sensitive = true
}
variable "tag" { default = "one" }
resource "terraform_data" "a" {
  input = { copy = nonsensitive("user:${var.password}"), open = var.tag, (nonsensitive(var.password)) = 1 }
}
resource "terraform_data" "b" { input = { pw = var.password, open = var.tag } }
output "url" { value = nonsensitive("https://user:${var.password}@host/") }
output "generated" {
  value     = "made-${terraform_data.a.id}"
  sensitive = true
}
output "copied" { value = ["see made-${terraform_data.a.id}"] }
`}, nil)
	for _, tag := range []string{"one", "two"} {
		s.ask(repo.URL, "v1", "", map[string]any{"password": "correct-horse", "tag": tag})
		c := s.do(provision.OperationApply)
		reports, err := json.Marshal(c.reports)
		if err != nil {
			t.Fatal(err)
		}
		for where, text := range map[string]string{"reports": string(reports), "log": c.text()} {
			if strings.Contains(text, "correct-horse") || strings.Contains(text, "made-") {
				t.Errorf("%s hold a secret: %s", where, text)
			}
		}
		plan := planOf(c)
		attributes := map[string]provision.AttributeChange{}
		for _, r := range plan.Resources {
			for _, a := range r.Attributes {
				attributes[r.Address+" "+a.Path] = a
			}
		}
		if a := attributes["terraform_data.b input.open"]; string(a.After) != `"`+tag+`"` {
			t.Errorf("input.open of b = %s after, want %q", a.After, tag)
		}
		if a, ok := attributes["terraform_data.b input.pw"]; tag == "one" && (!ok || !a.Sensitive) {
			t.Errorf("input.pw of b = %+v, want it sensitive", a)
		}
		if url := c.outputs()["url"]; string(url.Value) != `"https://user:***@host/"` {
			t.Errorf("output url = %s, want it with the password masked", url.Value)
		}
	}
}

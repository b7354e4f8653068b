package terraform

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

const recorded4 = `{"version":4,"terraform_version":"1.11.4","serial":3,"lineage":"l",
	"outputs":{"open":{"value":"shown","type":"string"},"pw":{"value":{"k":["out-secret"]},"type":["object",{"k":["list","string"]}],"sensitive":true}},
	"resources":[
	{"mode":"managed","type":"a","name":"plain","provider":"provider[\"registry.terraform.io/hashicorp/a\"]","instances":[
		{"attributes":{"id":"i-1","private_ip":"10.0.0.1","password":"attr-secret"},"sensitive_attributes":[[{"type":"get_attr","value":"password"}]]},
		{"deposed":"0badcafe","attributes":{"id":"i-0","private_ip":"10.0.0.9"}}]},
	{"module":"module.m[\"k\"].module.n","mode":"managed","type":"a","name":"many","provider":"module.m.provider[\"p/q\"].west","instances":[
		{"index_key":0,"status":"tainted","attributes":{"id":42}},
		{"index_key":"x${y}\n\"é","attributes":{"id":"i-3","nested":[{"nat_ip":"203.0.113.7"}],"typed":{"value":{"ipv6_address":"2001:db8:0::1"},"type":["object",{"ipv6_address":"string"}]}}}]},
	{"mode":"managed","type":"a","name":"shy","provider":"p","instances":[
		{"attributes":{"id":"secret-id","public_ip":"198.51.100.1","hidden":{"address":"198.51.100.2","open":"made-public"},"by_plan":"198.51.100.3","whole":{"value":"whole-secret","type":"string"}},
		 "sensitive_attributes":[[{"type":"get_attr","value":"whole"}],[{"type":"get_attr","value":"hidden"},{"type":"index","value":{"value":"address","type":"string"}}]]}]},
	{"mode":"managed","type":"a","name":"unplanned","provider":"p","instances":[{"attributes":{"id":"i-4","public_ip":"198.51.100.4"}}]},
	{"mode":"data","type":"a","name":"read","provider":"p","instances":[{"attributes":{"id":"d","ip":"10.9.9.9"}}]}]}`

func TestReadState(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `
		"prior_state":{"format_version":"1.0","values":{"root_module":{"resources":[{"address":"a.plain","mode":"managed","type":"a","values":{}}]}}},
		"resource_changes":[
			{"address":"module.m[\"k\"].module.n.a.many[0]","mode":"managed","change":{"actions":["create"],"after":{}}},
			{"address":"module.m[\"k\"].module.n.a.many[\"x$${y}\\n\\\"é\"]","mode":"managed","change":{"actions":["create"],"after":{},"after_sensitive":{"nested":[{}]}}},
			{"address":"a.shy","mode":"managed","change":{"actions":["update"],"after":{},"after_sensitive":{"id":true,"by_plan":true}}}]`)
	state, err := ReadState([]byte(recorded4), plan)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a.plain a registry.terraform.io/hashicorp/a i-1 [10.0.0.1] created",
		"a.plain (deposed object 0badcafe) a registry.terraform.io/hashicorp/a i-0 [10.0.0.9] tainted",
		"a.shy a p  [198.51.100.1] created",
		"a.unplanned a p  [] created", // nobody knows what of it is sensitive
		`module.m["k"].module.n.a.many["x$${y}\n\"é"] a p/q i-3 [203.0.113.7 2001:db8::1] created`,
		`module.m["k"].module.n.a.many[0] a p/q 42 [] tainted`,
	}
	var got []string
	for _, r := range state.Resources {
		got = append(got, fmt.Sprint(r.Address, " ", r.Type, " ", r.Provider, " ", r.ExternalID, " ", r.IPAddresses, " ", r.Status))
	}
	if !slices.Equal(got, want) {
		t.Errorf("ReadState() resources = %s, want %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if want := []string{"198.51.100.2", "198.51.100.3", "attr-secret", "out-secret", "secret-id", "whole-secret"}; !slices.Equal(state.Secrets, want) {
		t.Errorf("ReadState() secrets = %q, want %q", state.Secrets, want)
	}
	if o := state.Outputs["pw"]; !o.Sensitive || string(o.Value) != `{"k":["out-secret"]}` {
		t.Errorf("ReadState() output pw = %+v, want it with its value", o)
	}
}

func TestReadStateOfNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", `{"version":4,"resources":[]}`} {
		if state, err := ReadState([]byte(text), nil); err != nil || state.Resources == nil || len(state.Resources) != 0 {
			t.Errorf("ReadState(%q) = %+v, %v, want no resource, and a list to say so", text, state, err)
		}
	}
	for _, text := range []string{"{", `{"version":3}`, `{"serial":1,"encrypted_data":"x"}`, `[]`} {
		if state, err := ReadState([]byte(text), nil); err == nil {
			t.Errorf("ReadState(%q) = %+v, want an error: it would say that nothing exists", text, state)
		}
	}
}

// What the engine itself says of its state, addresses above all, which are what
// a plan's marks are found by.
func TestReadStateAgreesWithTheEngine(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{Terraform, OpenTofu} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			readStateAgrees(t, kind)
		})
	}
}

func readStateAgrees(t *testing.T, kind string) {
	r := newReal(t, kind, `
variable "pw" {
  default   = "hunter2-default"
  sensitive = true
}
resource "terraform_data" "odd" {
  for_each = toset(["", "a.b", "q\"uote", "d$${o}", "p%%{c}", "back\\slash", "new\nline", "tab\t", "é", "日本", "\u0001", "\u00a0", "😀", "]["])
  input    = { pw = var.pw, private_ip = "10.0.0.1" }
}
resource "terraform_data" "counted" {
  count = 2
  input = { private_ip = "10.0.0.${count.index + 1}" }
}
output "pw" {
  value     = var.pw
  sensitive = true
}
`, Options{})
	planned(t, r, PlanOptions{})
	plan, err := r.ShowPlan(t.Context(), "tendril.tfplan")
	if err != nil {
		t.Fatal(err)
	}
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(r.dir, "terraform.tfstate"))
	if err != nil {
		t.Fatal(err)
	}
	state, err := ReadState(raw, plan)
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Resources) != 16 || len(applied.Changed) != 16 {
		t.Fatalf("%d resources in the state, %d said by the apply, want 16", len(state.Resources), len(applied.Changed))
	}
	for _, resource := range state.Resources {
		if id := applied.Changed[resource.Address]; id == "" || id != resource.ExternalID {
			t.Errorf("%s has the id %q in the state, and the apply said %q", resource.Address, resource.ExternalID, id)
		}
		// Its input has a sensitive part, so nothing of it is told; its output,
		// which says the same, has none for the engine.
		if got := strings.Join(resource.IPAddresses, " "); !strings.HasPrefix(got, "10.0.0.") {
			t.Errorf("%s has the addresses %q, want one", resource.Address, got)
		}
	}
	if !slices.Equal(state.Secrets, []string{"hunter2-default"}) {
		t.Errorf("secrets = %q, want hunter2-default alone", state.Secrets)
	}
	pulled, err := r.StoredState(t.Context(), PushOptions{})
	if err != nil || !sameState(pulled, raw) {
		t.Errorf("StoredState() = %d bytes, %v, want the state", len(pulled), err)
	}
}

func TestResourcesNow(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `"resource_changes":[
		{"address":"a.lost","mode":"managed","type":"a","provider_name":"p","change":{"actions":["create"]}},
		{"address":"a.half","mode":"managed","type":"a","change":{"actions":["create"]}},
		{"address":"a.known","mode":"managed","type":"a","change":{"actions":["create"]}},
		{"address":"a.shy","mode":"managed","type":"a","change":{"actions":["create"],"after_sensitive":{"id":true}}},
		{"address":"a.failed","mode":"managed","type":"a","change":{"actions":["create"]}}]`)
	got := ResourcesNow(plan, Applied{Changed: map[string]string{"a.lost": "i-1", "a.known": "i-9", "a.shy": "secret"}, Tainted: []string{"a.half"}},
		State{Resources: []provision.Resource{{Address: "a.known", ExternalID: "i-2", Status: "tainted"}, {Address: "a.other"}}})
	want := "[{a.half a   [] tainted} {a.known   i-2 [] tainted} {a.lost a p i-1 [] created} {a.other    [] } {a.shy a   [] created}]"
	if fmt.Sprint(got) != want {
		t.Errorf("ResourcesNow() = %v, want %s", got, want)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	for attributes, want := range map[string]string{
		`{"private_ip":"10.0.0.1","public_ip":"","ipv6_addresses":["2001:db8::1","2001:db8::1"],"ip":"::ffff:192.0.2.1"}`:                                    "192.0.2.1 2001:db8::1 10.0.0.1",
		`{"network_interface":[{"network_ip":"10.1.0.2","access_config":[{"nat_ip":"203.0.113.1"}]}]}`:                                                       "203.0.113.1 10.1.0.2",
		`{"access_ip_v4":"192.0.2.7","default_ipv4_address":"192.0.2.8","ipv4-address":"192.0.2.9"}`:                                                         "192.0.2.7 192.0.2.8 192.0.2.9",
		`{"source_ip":"192.0.2.1","dns_servers":["192.0.2.2"],"destination_addresses":["192.0.2.3"],"gateway_ip":"192.0.2.4","peer_ip_address":"192.0.2.5"}`: "",
		`{"description":"192.0.2.1","tags":{"note":"192.0.2.2"},"script":"192.0.2.3","recipient":"192.0.2.4","zip":"192.0.2.5"}`:                             "",
		`{"ip":"0.0.0.0","ip_address":"127.0.0.1","ips":["224.0.0.1","fe80::1","fe80::1%eth0","10.0.0.0/8","192.0.2.1:80","x"],"address":7,"addr":null}`:     "",
	} {
		var decoded map[string]any
		if err := json.Unmarshal([]byte(attributes), &decoded); err != nil {
			t.Fatal(err)
		}
		got := describeResource("a.b", "a", decoded, func(string) bool { return false })
		if strings.Join(got.IPAddresses, " ") != want {
			t.Errorf("addresses of %s = %q, want %q", attributes, got.IPAddresses, want)
		}
	}
	many := map[string]any{"ips": []any{}}
	for i := range 2 * maxAddresses {
		many["ips"] = append(many["ips"].([]any), fmt.Sprintf("192.0.2.%d", i+1))
	}
	if got := describeResource("a.b", "a", many, func(string) bool { return false }); len(got.IPAddresses) != maxAddresses {
		t.Errorf("%d addresses, want at most %d", len(got.IPAddresses), maxAddresses)
	}
}

// FuzzReadState reads any text: what a state says is sensitive is in no resource.
func FuzzReadState(f *testing.F) {
	f.Add(recorded4)
	f.Add(`{"version":4,"resources":[{"mode":"managed","instances":[{"index_key":{},"attributes":{"id":[],"ip":{"type":0,"value":null}},"sensitive_attributes":[[],[{}],[{"value":{}}]]}]}]}`)
	plan := &tfjson.Plan{ResourceChanges: []*tfjson.ResourceChange{nil, {Address: "a.plain"}, {Address: "a.shy", Change: &tfjson.Change{AfterSensitive: true}}}}
	f.Fuzz(func(t *testing.T, text string) {
		state, err := ReadState([]byte(text), plan)
		if err != nil {
			return
		}
		for _, r := range state.Resources {
			// Said twice, it may be open in the other place.
			if r.ExternalID != "" && slices.Contains(state.Secrets, r.ExternalID) && strings.Count(text, r.ExternalID) == 1 {
				t.Errorf("ReadState(%q) shows %q of %s, which is sensitive", text, r.ExternalID, r.Address)
			}
		}
	})
}

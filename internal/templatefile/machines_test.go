package templatefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// machineOf is a tendril.hcl whose machine has these arguments.
func machineOf(arguments string) string {
	return "provisioner \"machine\" {\n  machine {\n    " + strings.ReplaceAll(arguments, "; ", "\n    ") + "\n  }\n}\n"
}

// values are variables as JSON.
func values(t *testing.T, text string) map[string]cty.Value {
	t.Helper()
	if text == "" {
		return nil
	}
	ty, err := ctyjson.ImpliedType([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	value, err := ctyjson.Unmarshal([]byte(text), ty)
	if err != nil {
		t.Fatal(err)
	}
	return value.AsValueMap()
}

func mustParse(t *testing.T, source string) *File {
	t.Helper()
	f, err := Parse([]byte(source))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestMachines(t *testing.T) {
	t.Parallel()
	none := map[string]Options{}
	for name, tt := range map[string]struct {
		source, vars string
		want         []Machine
	}{
		"one": {machineOf(`name = "a"; pool = var.pool; address = "fd00::1"`), `{"pool": "lab"}`, []Machine{{Name: "a", Pool: "lab", Address: "fd00::1", Options: none}}},
		"a set": {machineOf(`for_each = toset(concat(["teacher"], var.students)); name = "${var.class}-${lower(each.key)}"; pool = "lab"; cores = var.cores`),
			`{"students": ["Bo", "Al"], "class": "c1", "cores": "2"}`, []Machine{
				{Key: "Al", Name: "c1-al", Pool: "lab", Cores: 2, Options: none}, {Key: "Bo", Name: "c1-bo", Pool: "lab", Cores: 2, Options: none},
				{Key: "teacher", Name: "c1-teacher", Pool: "lab", Cores: 2, Options: none},
			}},
		"a map": {machineOf(`for_each = var.sizes; name = each.key; pool = "lab"; memory = each.value.memory; labels = { big = each.value.memory > 1000, n = 1 }`),
			`{"sizes": {"a": {"memory": 512}, "b": {"memory": 2048}}}`, []Machine{
				{Key: "a", Name: "a", Pool: "lab", Memory: 512, Labels: map[string]string{"big": "false", "n": "1"}, Options: none},
				{Key: "b", Name: "b", Pool: "lab", Memory: 2048, Labels: map[string]string{"big": "true", "n": "1"}, Options: none},
			}},
		"an empty set":   {machineOf(`for_each = toset([]); name = each.key; pool = "lab"`), "", nil},
		"an empty map":   {machineOf(`for_each = {}; name = each.key; pool = "lab"`), "", nil},
		"null is unsaid": {machineOf(`name = "a"; pool = "lab"; image = var.none; cores = null; labels = null`), `{"none": null}`, []Machine{{Name: "a", Pool: "lab", Options: none}}},
		"no machine":     {`title = "A"`, "", nil},
		"for and splat": {machineOf(`for_each = { for m in var.list : m.name => m if m.on }; name = each.key; pool = join("-", var.list[*].name); image = "%{ for m in var.list }${m.name}%{ endfor }"`),
			`{"list": [{"name": "a", "on": true}, {"name": "b", "on": false}]}`, []Machine{{Key: "a", Name: "a", Pool: "a-b", Image: "ab", Options: none}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := mustParse(t, tt.source).Machines(values(t, tt.vars))
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Machines() = %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestMachineProblems(t *testing.T) {
	t.Parallel()
	const template, variables = provision.CodeTemplateInvalid, provision.CodeVariablesInvalid
	for name, tt := range map[string]struct {
		source, vars string
		code         provision.Code
		want         string // all that is said, without the heading and the lines
	}{
		"a list":       {machineOf(`for_each = var.l; name = "a"; pool = "lab"`), `{"l": ["a"]}`, variables, "3:16: for_each is a list, but machines have names, never numbers: write toset(…) around a list of texts"},
		"a count":      {machineOf(`for_each = 3; name = "a"; pool = "lab"`), "", template, "3:16: for_each is a number, but machines have names, never numbers: write toset(…) around a list of texts"},
		"a text":       {machineOf(`for_each = "a"; name = "a"; pool = "lab"`), "", template, "3:16: for_each must be a set of texts, or a map"},
		"numbers":      {machineOf(`for_each = toset([1]); name = "a"; pool = "lab"`), "", template, "3:16: for_each is a set of number, and must be one of texts"},
		"null":         {machineOf(`for_each = null; name = "a"; pool = "lab"`), "", template, "3:16: for_each is null: give a set of texts, or a map"},
		"a null of it": {machineOf(`for_each = toset(["a", null]); name = "a"; pool = "lab"`), "", template, "3:16: for_each has an element that is null"},
		"too many": {machineOf(`for_each = toset([for i, c in split("", var.s) : "m${i}"]); name = each.key; pool = "lab"`), fmt.Sprintf(`{"s": %q}`, strings.Repeat("x", 1001)), variables,
			"3:16: for_each has 1001 elements: at most 1000 machines are allowed"},
		"the same name": {machineOf(`for_each = toset(["a", "b"]); name = var.n; pool = "lab"`), `{"n": "x"}`, variables,
			`4:12: each.key "b": the machine "x" exists already, for each.key "a": use each.key in the name`},
		"names": {machineOf(`for_each = toset(["A", "-a", "a.b", "aa"]); name = each.key; pool = "lab"`), "", variables, strings.Join([]string{
			`4:12: each.key "-a": "-a" is not a valid machine name: use lowercase letters, digits and dashes, with a letter or digit at both ends, and 63 characters at most`,
			`4:12: each.key "A": "A" is not a valid machine name: use lowercase letters, digits and dashes, with a letter or digit at both ends, and 63 characters at most`,
			`4:12: each.key "a.b": "a.b" is not a valid machine name: use lowercase letters, digits and dashes, with a letter or digit at both ends, and 63 characters at most`}, "\n")},
		"all at once": {machineOf(`name = "a"; pool = " "; cores = 1.5; memory = -1; disk = "big"; address = "10.0.0"; labels = ["a"]; image = var.n`), `{"n": "a\nb"}`, template, strings.Join([]string{
			"4:12: pool must not be empty", "5:13: cores must be a whole number from 1 to 1024", "6:14: memory must be a whole number from 1 to 16777216", "7:12: disk must be a number",
			`8:15: "10.0.0" is not an IP address`, "9:14: labels must be a map of texts", "10:13: image must be one line without control characters"}, "\n")},
		"nothing to name":  {machineOf(`name = null; pool = "lab"`), "", template, "3:12: name is null, and a machine needs one"},
		"nowhere":          {machineOf(`name = "a"; pool = var.n`), `{"n": null}`, variables, "4:12: pool is null, and a machine needs one"},
		"not declared":     {machineOf(`name = var.nme; pool = var.name`), `{"name": "a"}`, template, `3:12: the template declares no variable "nme"; did you mean "name"?`},
		"no function":      {machineOf(`name = fileexists("a"); pool = timestamp()`), "", template, "3:12: Call to unknown function: There is no function named \"fileexists\".\n4:12: Call to unknown function: There is no function named \"timestamp\"."},
		"no attribute":     {machineOf(`for_each = var.m; name = each.value.name; pool = "lab"`), `{"m": {"a": {}}}`, variables, `4:22: each.key "a": Unsupported attribute: This object does not have an attribute named "name".`},
		"labels":           {machineOf(`name = "a"; pool = "lab"; labels = { "" = "a", b = "c\nd" }`), "", template, "5:14: label \"\" must not be empty\n5:14: label \"b\" must be one line without control characters"},
		"a list in labels": {machineOf(`name = "a"; pool = "lab"; labels = { a = ["b"] }`), "", template, "5:14: labels must be a map of texts"},
		"an option":        {machineOf(`name = "a"; pool = "lab"; proxmox {;   a = 1 + "x"; }`), "", template, "6:15: Invalid operand: Unsuitable value for right operand: a number is required."},
		"width":            {machineOf(`name = format("%1000s", "a"); pool = "lab"`), "", template, `3:12: Error in function call: Call to function "format" failed: a width or precision can have 3 digits at most.`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := mustParse(t, tt.source).Machines(values(t, tt.vars))
			f, ok := errors.AsType[*provision.Failure](err)
			if !ok || f.Code != tt.code {
				t.Fatalf("Machines() error = %v, want a Failure with %s", err, tt.code)
			}
			if got := said(f.Message); got != tt.want {
				t.Errorf("Machines() says\n%s\nwant\n%s", got, tt.want)
			}
			if !strings.HasPrefix(f.Message, invalidVariables+"\ntendril.hcl:") || !strings.Contains(f.Message, " | ") || !strings.HasSuffix(f.Message, "^") {
				t.Errorf("Machines() does not show the line:\n%s", f.Message)
			}
		})
	}
}

// said are the problems of a message, each with line and column, without the lines shown.
func said(message string) string {
	var found []string
	for line := range strings.Lines(message) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), Name+":"); ok {
			found = append(found, text)
		}
	}
	return strings.Join(found, "\n")
}

// A sensitive value gets into no argument that people see, and into options with its path.
func TestSensitiveValues(t *testing.T) {
	t.Parallel()
	vars := values(t, `{"secret": "hunter2hunter2", "open": "a", "object": {"key": "hunter2hunter2"}}`)
	for _, name := range []string{"secret", "object"} {
		vars[name] = vars[name].Mark(tfvars.Sensitive)
	}
	for _, argument := range []string{
		`for_each = toset([var.secret]); name = each.key`, `for_each = var.object; name = each.key`, `name = "x-${var.secret}"`, `name = var.secret == "" ? "a" : "b"`,
		`name = "a"; image = var.object.key`, `name = "a"; cores = length(var.secret)`, `name = "a"; labels = { a = var.secret }`, `name = "a"; address = substr(var.secret, 0, 1)`,
		`for_each = { a = var.secret }; name = each.value`, `name = "a"; disk = length([for x in var.object : x])`, `name = "a"; memory = jsonencode([var.open, var.secret])`,
	} {
		_, err := mustParse(t, machineOf(argument+`; pool = "lab"`)).Machines(vars)
		if f, ok := errors.AsType[*provision.Failure](err); !ok || !strings.Contains(f.Message, "uses a sensitive value, but everyone who can see the run sees it") || strings.Contains(f.Message, "hunter2") {
			t.Errorf("%s: %v, want it refused without the value", argument, err)
		}
	}
	for _, argument := range []string{`cores = tonumber(var.secret)`, `cores = 1 + var.secret`, `image = var.object[var.secret]`, `image = lookup(var.object, var.secret)`, `image = zipmap([var.secret], [])`} {
		_, err := mustParse(t, machineOf(`name = "a"; pool = "lab"; `+argument)).Machines(vars)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want an error without the value", argument, err)
		}
	}

	source := machineOf(`name = "a"; pool = "lab"; proxmox {;   bridge = "vmbr0"; user = { name = var.open, password = var.secret }; keys = [var.open, "k-${var.secret}"]; }; ironic {;   a = var.open; }`)
	machines, err := mustParse(t, source).Machines(vars)
	if err != nil {
		t.Fatal(err)
	}
	o := machines[0].Options["proxmox"]
	text, err := ctyjson.Marshal(o.Value, o.Value.Type())
	if want := `{"bridge":"vmbr0","keys":["a","k-hunter2hunter2"],"user":{"name":"a","password":"hunter2hunter2"}}`; string(text) != want || err != nil {
		t.Errorf("options = %s, %v, want %s", text, err, want)
	}
	var paths []string
	for _, path := range o.Sensitive {
		value, err := path.Apply(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, value.AsString())
	}
	if slices.Sort(paths); !slices.Equal(paths, []string{"hunter2hunter2", "k-hunter2hunter2"}) {
		t.Errorf("sensitive are %q", paths)
	}
	if other := machines[0].Options["ironic"]; len(other.Sensitive) > 0 {
		t.Errorf("sensitive of ironic: %v", other.Sensitive)
	}
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	base := machineOf(`name = "a"; pool = "lab"`)
	for block, want := range map[string]string{
		``: "null", `node = var.node`: `{"Node":"pve2","Avoid":null,"Spread":false,"Together":false}`,
		`avoid = [var.node]; spread = true; node = null`: `{"Node":"","Avoid":["pve2"],"Spread":true,"Together":false}`,
		`spread = true; together = "true"`:               "spread and together exclude each other", `node = var.node; avoid = ["pve2"]`: `avoid names "pve2", which is the node to take`,
		`avoid = "a"`: "avoid must be a list of texts", `avoid = [""]`: "each element of avoid must not be empty", `node = var.secret`: "node uses a sensitive value", `spread = 1`: "spread must be true or false",
	} {
		source := base
		if block != "" {
			source += "placement {\n" + strings.ReplaceAll(block, "; ", "\n") + "\n}\n"
		}
		vars := values(t, `{"node": "pve2", "secret": "x"}`)
		vars["secret"] = vars["secret"].Mark(tfvars.Sensitive)
		p, err := mustParse(t, source).Placement(vars)
		got, _ := json.Marshal(p)
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.Contains(string(got), want) {
			t.Errorf("placement { %s } = %s, want %s", block, got, want)
		}
	}
}

func TestCheckVariables(t *testing.T) {
	t.Parallel()
	f := mustParse(t, machineOf(`for_each = var.b; name = var.aa; pool = { for x in var.c : x => x }["x"]`)+"placement {\n node = var.d\n}")
	declared := []provision.Variable{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}
	want := "4:12: the template declares no variable \"aa\"; did you mean \"a\"?"
	if err := f.CheckVariables(declared); err == nil || said(err.Error()) != want {
		t.Errorf("CheckVariables() = %v, want %s", err, want)
	}
	if err := f.CheckVariables(append(declared, provision.Variable{Name: "aa"})); err != nil {
		t.Errorf("CheckVariables() = %v", err)
	}
	if err := mustParse(t, placed).CheckVariables([]provision.Variable{{Name: "nodes"}}); err == nil || !strings.Contains(err.Error(), `no variable "places"`) {
		t.Errorf("CheckVariables() = %v, want places missing", err)
	}
}

// A File is one template's, and several runs may use it at the same time.
func TestMachinesAtTheSameTime(t *testing.T) {
	t.Parallel()
	f := mustParse(t, machineOf(`name = "a"; pool = "lab"; image = "${var.n}-${join(",", [for x in var.l : x])}"`))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			n := strings.Repeat("x", i+1)
			vars := map[string]cty.Value{"n": cty.StringVal(n), "l": cty.ListVal([]cty.Value{cty.StringVal(n)})}
			if machines, err := f.Machines(vars); err != nil || machines[0].Image != n+"-"+n {
				t.Errorf("Machines() = %+v, %v", machines, err)
			}
		})
	}
	all.Wait()
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestReadChecksFiles(t *testing.T) {
	t.Parallel()
	if f, err := Read(t.TempDir()); err != nil || f.Kind != Terraform || f.HasMachines() {
		t.Errorf("Read() without the file = %+v, %v, want Terraform", f, err)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("Read() of no directory: no error")
	}
	outside := writeFiles(t, map[string]string{"run.sh": "", Name: ""})
	script := "provisioner \"script\" {\n speak = \"lines\"\n command = [%q]\n}\n"
	for name, tt := range map[string]struct {
		command string
		links   map[string]string
		want    string // "": it is accepted
	}{
		"a file":            {command: "./run.sh"},
		"a link within":     {command: "./link", links: map[string]string{"link": "run.sh"}},
		"absolute":          {command: "/nowhere/run.sh"},
		"missing":           {command: "./none.sh", want: "./none.sh does not exist"},
		"not executable":    {command: "./plain", want: "./plain is not executable: run git update-index --chmod=+x plain"},
		"a directory":       {command: "./dir", want: "./dir is not a regular file"},
		"a link out":        {command: "./link", links: map[string]string{"link": filepath.Join(outside, "run.sh")}, want: "./link can't be read, or is a link out of the template's directory"},
		"a directory's":     {command: "./up/run.sh", links: map[string]string{"up": outside}, want: "./up/run.sh can't be read, or is a link out of the template's directory"},
		"the file a link":   {links: map[string]string{Name: filepath.Join(outside, Name)}, want: "tendril.hcl can't be read, or is a link out of the template's directory"},
		"the file a device": {links: map[string]string{Name: "/dev/zero"}, want: "tendril.hcl can't be read, or is a link out of the template's directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"run.sh": "", "plain": ""}
			if tt.command != "" {
				files[Name] = fmt.Sprintf(script, tt.command)
			}
			dir := writeFiles(t, files)
			if err := os.Mkdir(filepath.Join(dir, "dir"), 0o755); err != nil {
				t.Fatal(err)
			}
			for link, to := range tt.links {
				if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Read(dir)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Read() error = %v, want %q", err, tt.want)
			}
		})
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, Name), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || err.Error() != "tendril.hcl is not a regular file" {
		t.Errorf("Read() of a directory: %v", err)
	}
	_, err := Read(writeFiles(t, map[string]string{Name: strings.Repeat("#", maxFile+1)}))
	if err == nil || err.Error() != "tendril.hcl is too large: at most 256 KiB are read" {
		t.Errorf("Read() of a large file: %v", err)
	}
}

func TestInstructions(t *testing.T) {
	t.Parallel()
	vars := values(t, `{"name": "srv1", "disks": ["a", "b"], "secret": "hunter2"}`)
	vars["secret"] = vars["secret"].Mark(tfvars.Sensitive)
	for markdown, want := range map[string]string{
		"# Set up ${var.name}\n\n- (a) \"quoted\" {x} `$${HOME}`\n": "# Set up srv1\n\n- (a) \"quoted\" {x} `${HOME}`\n",
		"%{ for d in var.disks ~}\n- ${upper(d)}\n%{ endfor ~}\n":   "- A\n- B\n",
		"${var.name}":                     "srv1",
		"":                                "",
		strings.Repeat("(", 900):          strings.Repeat("(", 900),
		"a\n\n${var.nam}\n":               "steps.md:3:3: the template declares no variable \"nam\"; did you mean \"name\"?\n    3 | ${var.nam}\n      |   ^^^^^^^",
		"${var.secret}":                   "the instructions use a sensitive value",
		"${var.disks}":                    "the instructions must evaluate to a text",
		"x ${var.disks}":                  "Cannot include the given value in a string template",
		"${each.key}":                     "each is only known in a machine block",
		"${":                              "steps.md:1:",
		"${" + strings.Repeat("(", 50000): "nested more than 1000 levels deep",
		"${file(\"/etc/passwd\")}":        "There is no function named \"file\"",
	} {
		dir := writeFiles(t, map[string]string{"steps.md": markdown, Name: "provisioner \"manual\" {\n instructions = \"steps.md\"\n}\n"})
		f, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		text, err := f.Instructions(dir, vars)
		if err != nil {
			text = err.Error()
		}
		if text != want && (err == nil || !strings.Contains(text, want)) || strings.Contains(text, "hunter2") {
			t.Errorf("Instructions(%.60q) = %.300q, want %.300q", markdown, text, want)
		}
	}
	if text, err := mustParse(t, once).Instructions("/nowhere", nil); text != "" || err != nil {
		t.Errorf("Instructions() of a script = %q, %v", text, err)
	}
	f := mustParse(t, manual)
	if _, err := f.Instructions(t.TempDir(), nil); err == nil || err.Error() != "INSTRUCTIONS.md does not exist" {
		t.Errorf("Instructions() of no file: %v", err)
	}
}

// What is kept for previews is the file of a template whose machines get places, and nothing
// of others.
func TestFileForPreviews(t *testing.T) {
	t.Parallel()
	placed := machineOf(`name = "a"; pool = "lab"; cores = var.cores; memory = 1; disk = var.unknown; cloud_init { password = var.unknown }`)
	for source, want := range map[string]bool{
		placed: true, placed + "#" + strings.Repeat("x", provision.MaxTemplateFile): false, "title = \"a\"\n": false,
		"provisioner \"script\" {\n speak = \"lines\"\n command = [\"./a\"]\n machine { name = \"a\" }\n}\n":                                             false,
		"provisioner \"terraform\" {\n machine {\n name = \"a\"\n pool = \"lab\"\n cores = 1\n memory = 1\n }\n}\nplacement { variable = \"places\" }\n": true,
	} {
		file, err := Parse([]byte(source))
		if err != nil {
			t.Fatalf("%.200s: %v", source, err)
		}
		if got := file.About().File; got != map[bool]string{true: source}[want] {
			t.Errorf("the file of %.200s is kept: %t, want %t", source, got != "", want)
		}
	}
	file, err := Parse([]byte(placed))
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]cty.Value{"cores": cty.NumberIntVal(2), "unknown": cty.UnknownVal(cty.String)}
	if wants, err := file.Places(vars, func(string) bool { return false }); err != nil || len(wants) != 1 || !reflect.DeepEqual(wants[0], provision.PlaceWanted{Name: "a", Pool: "lab", Cores: 2, Memory: 1}) {
		t.Errorf("Places() = %+v, %v", wants, err)
	}
	if _, err := file.Machines(vars); err == nil {
		t.Error("Machines() takes what is not known")
	}
	vars["cores"] = cty.UnknownVal(cty.Number)
	if wants, err := file.Places(vars, func(string) bool { return false }); err == nil {
		t.Errorf("Places() = %+v of a size that is not known", wants)
	}
	// A server that is enrolled has no place, also where how is not known yet.
	if file, err = Parse([]byte(machineOf(`name = "a"; pool = "lab"; ironic { enroll = { password = var.unknown } }`))); err != nil {
		t.Fatal(err)
	}
	if wants, err := file.Places(vars, func(string) bool { return true }); err != nil || len(wants) > 0 {
		t.Errorf("Places() = %+v, %v, want none of a server", wants, err)
	}
}

package planned_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/planned"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func machine(name, variables string, cores int) wire.Machine {
	m := wire.Machine{Name: name, Status: wire.Planned, Labels: map[string]string{},
		Plan: json.RawMessage(`{"template_source": {"repo": "https://git.example/a", "version": "v2"}, "workspace": "lab", "terraform_vars": {` + variables + `}}`)}
	if cores > 0 {
		memory, image := cores*1024, "debian"
		m.Cores, m.MemoryMiB, m.Image, m.Labels = &cores, &memory, &image, map[string]string{"class": "a"}
	}
	return m
}

func declared(types ...string) (variables []provision.Variable) {
	for i := 0; i < len(types); i += 2 {
		variables = append(variables, provision.Variable{Name: types[i], TypeJSON: json.RawMessage(types[i+1])})
	}
	return variables
}

// applied is what was last applied, of the same template in another version and spelling.
func applied(variables string) *provision.Snapshot {
	s := provision.Snapshot{TemplateSource: provision.TemplateSource{Repo: "https://GIT.example/a.git", Version: "v1"}, SealedVars: map[string]string{"p": "sealed"}}
	if err := json.Unmarshal([]byte(variables), &s.TerraformVars); err != nil {
		panic(err)
	}
	return &s
}

func withDefault(variables []provision.Variable, value string) []provision.Variable {
	variables[0].Default = json.RawMessage(value)
	return variables
}

func sealedNames() *provision.Snapshot {
	s := applied(`{}`)
	s.SealedVars["names"] = "sealed"
	return s
}

func labelled(name string) wire.Machine {
	m := machine(name, "", 0)
	m.Labels = map[string]string{"aa": "2", "b": "1"}
	return m
}

func TestCompose(t *testing.T) {
	t.Parallel()
	const names, number, text = `["set","string"]`, `"number"`, `"string"`
	elsewhere := applied(`{"names": ["eve"]}`)
	elsewhere.TemplateSource.Path = "other"
	for _, c := range []struct {
		does     string
		last     *provision.Snapshot
		declared []provision.Variable
		machines []wire.Machine
		want     string // the variables
		problems string
	}{
		{"names and sizes", nil, declared("names", names, "cores", number, "memory", number), []wire.Machine{machine("ada", "", 2), machine("bob", "", 2)},
			`cores=2 memory=2048 names=["ada","bob"]`, ""},
		{"beside what is there", applied(`{"names": ["eve"], "cores": 2, "x": 1}`), declared("names", names, "cores", number), []wire.Machine{machine("ada", "", 2)},
			`cores=2 names=["eve","ada"] x=1`, ""},
		{"what another template made does not count", elsewhere, declared("names", names), []wire.Machine{machine("ada", "", 0)}, `names=["ada"]`, ""},
		{"a name that is there", applied(`{"names": ["ada"]}`), declared("names", names), []wire.Machine{machine("ada", "", 0)}, `names=["ada"]`, ""},
		{"a map of objects", applied(`{"machines": {"eve": {"cores": 1}}}`), declared("machines", `["map",["object",{"cores":"number","labels":["map","string"]},["labels"]]]`, "cores", number),
			[]wire.Machine{machine("ada", "", 2), machine("bob", "", 4)}, `machines={"ada":{"cores":2,"labels":{"class":"a"}},"bob":{"cores":4,"labels":{"class":"a"}},"eve":{"cores":1}}`, ""},
		{"a map of anything", nil, declared("machines", `["map","dynamic"]`), []wire.Machine{machine("ada", "", 2)},
			`machines={"ada":{"cores":2,"image":"debian","labels":{"class":"a"},"memory":2048}}`, ""},
		{"one", nil, declared("name", text, "image", text), []wire.Machine{machine("ada", "", 2)}, `image="debian" name="ada"`, ""},
		{"the plan's own variables", nil, declared("names", names, "region", text), []wire.Machine{machine("ada", `"region": "eu"`, 0)}, `names=["ada"] region="eu"`, ""},
		{"two of one", nil, declared("name", text), []wire.Machine{machine("ada", "", 0), machine("bob", "", 0)}, `name="ada"`, `bob wants name as "bob" and ada has it as "ada"`},
		{"sizes that differ", nil, declared("names", names, "cores", number), []wire.Machine{machine("ada", "", 2), machine("bob", "", 4)}, `cores=2 names=["ada","bob"]`, "bob wants cores as 4 and ada has it as 2"},
		{"another size than there is", applied(`{"names": ["eve"], "cores": 1}`), declared("names", names, "cores", number), []wire.Machine{machine("ada", "", 2)}, `cores=1 names=["eve","ada"]`, "ada wants cores as 2 and what is there has it as 1"},
		{"no variable for names", nil, declared("cores", number, "names", number), []wire.Machine{machine("ada", "", 2), machine("bob", "", 2)}, `cores=2`, "has no variable machines, names or name"},
		{"machines that the default made stay", applied(`{"cores": 2}`), withDefault(declared("names", names), `["eve"]`), []wire.Machine{machine("ada", "", 0)}, `cores=2 names=["eve","ada"]`, ""},
		{"the default of a template that made nothing yet", nil, withDefault(declared("names", names), `["eve"]`), []wire.Machine{machine("ada", "", 0)}, `names=["ada"]`, ""},
		{"names that can't be read", applied(`{"names": 7}`), declared("names", names), []wire.Machine{machine("ada", "", 0), machine("bob", "", 0)}, `names=7`, "can't be read here"},
		{"names that are sealed", sealedNames(), declared("names", names), []wire.Machine{machine("ada", "", 0)}, ``, "can't be read here"},
		{"labels in another order", applied(`{"names": ["eve"], "labels": {"b": "1", "aa": "2"}}`), declared("names", names, "labels", `["map","string"]`), []wire.Machine{labelled("ada")}, `labels={"aa":"2","b":"1"} names=["eve","ada"]`, ""},
		{"one that is there already", nil, declared("names", names), []wire.Machine{machine("ada", "", 0), {Name: "bob", Status: "running"}}, `names=["ada"]`, "bob is not planned"},
	} {
		got, problems := planned.Compose(c.last, c.declared, c.machines)
		var variables []string
		for _, name := range slices.Sorted(maps.Keys(got.TerraformVars)) {
			variables = append(variables, fmt.Sprintf("%s=%s", name, got.TerraformVars[name]))
		}
		if is := strings.Join(variables, " "); is != c.want {
			t.Errorf("%s: variables %s, want %s", c.does, is, c.want)
		}
		if is := strings.Join(problems, "\n"); (is == "") != (c.problems == "") || !strings.Contains(is, c.problems) || len(problems) > 1 {
			t.Errorf("%s: problems %q, want %q", c.does, is, c.problems)
		}
		if got.TemplateSource.Version != "v2" || got.Workspace != "lab" {
			t.Errorf("%s: %+v, want the plan's version and workspace", c.does, got)
		}
		if same := c.last != nil && c.last.TemplateSource.Path == ""; (got.SealedVars["p"] == "sealed") != same {
			t.Errorf("%s: sealed variables %v", c.does, got.SealedVars)
		}
	}
	other := machine("bob", "", 0)
	other.Plan = json.RawMessage(strings.Replace(string(other.Plan), "v2", "v3", 1))
	if _, problems := planned.Compose(nil, declared("names", names), []wire.Machine{machine("ada", "", 0), other}); len(problems) != 1 || !strings.Contains(problems[0], "another template, version or workspace") {
		t.Errorf("two versions: %q", problems)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	two := 2
	common := wire.PlannedMachine{Cores: &two}
	for _, c := range []struct{ text, want, wrong string }{
		{"ada\n\n bob \r\n", `[{"name":"ada","cores":2},{"name":"bob","cores":2}]`, ""},
		{"\ufeffname,cores,memory_mib,disk_gib,pool,image,labels\r\nada,4,2048,20,lab,debian,class=a room=\"1\"\r\n", "", "bare"},
		{"\ufeffname,cores,memory_mib,disk_gib,pool,image,labels\r\nada,4,2048,20,lab,debian,class=a room=1\r\nbob,,,,,,\r\n",
			`[{"name":"ada","pool":"lab","image":"debian","cores":4,"memory_mib":2048,"disk_gib":20,"labels":{"class":"a","room":"1"}},{"name":"bob","cores":2}]`, ""},
		{"name\nada\n", `[{"name":"ada","cores":2}]`, ""},
		{"cores, name\n1, \"Ada, the first\"\n", `[{"name":"Ada, the first","cores":1}]`, ""},
		{"", "", "no machine"},
		{"name,cores\n", "", "no machine"},
		{"nme,cores\nada,1\n", "", `line 1: there is no column "nme"; did you mean "name"`},
		{"name,cores,cores\nada,1,2\n", "", "line 1: the column cores is there twice"},
		{"cores,image\n1,debian\n", "", "line 1: the column name is missing"},
		{"name,cores\nada,1\nbob,two\n", "", `line 3: cores: "two" is not a whole number`},
		{"name,cores\nada,0\n", "", "line 2: cores"},
		{"name,cores\nada,99999999999\n", "", "line 2: cores"},
		{"name,cores\n,1\n", "", "line 2: name: is missing"},
		{"name,cores\nada\n", "", "line 2: wrong number of fields"},
		{"name,labels\nada,class\n", "", "NAME=VALUE"},
		{"name,labels\nada,a=1 a=2\n", "", "once"},
		{strings.Repeat("m\n", 501), "", "501 machines; at most 500"},
		{strings.Repeat("m", planned.MaxRead+1), "", "bytes"},
	} {
		got, err := planned.Read(c.text, common)
		text, _ := json.Marshal(got) //nolint:errchkjson // texts and numbers
		if c.wrong == "" && (err != nil || string(text) != c.want) {
			t.Errorf("Read(%.60q) = %s, %v, want %s", c.text, text, err, c.want)
		} else if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("Read(%.60q) error = %v, want something of %q", c.text, err, c.wrong)
		}
	}
}

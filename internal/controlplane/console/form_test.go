package console_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/tfvars"
)

type formCase struct {
	Type  json.RawMessage `json:"-"`
	Text  string          `json:"type"`
	Value string          `json:"value"`
}

type formSecret struct {
	seal.Use
	Value string `json:"value"`
}

type formQuestion struct {
	Directory string       `json:"directory"`
	Cases     []formCase   `json:"cases"`
	Texts     []string     `json:"texts"`
	Secrets   []formSecret `json:"secrets"`
	Key       string       `json:"key"`
}

type formAnswer struct {
	Cases []struct {
		Wrong, Written []string
		Type           string
	}
	Texts   []struct{ Value, Error string }
	Secrets []struct{ Message, Error string }
}

// askForm runs the page's modules in Node.
func askForm(t *testing.T, q formQuestion) (a formAnswer) {
	t.Helper()
	// The page says of its scripts that they are modules; Node wants to read so.
	q.Directory = t.TempDir()
	if err := os.CopyFS(q.Directory, os.DirFS("assets")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(q.Directory, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "testdata/form.mjs")
	cmd.Stdin = bytes.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v; run `make deps`\n%s", err, &stderr)
	}
	if err := json.Unmarshal(out, &a); err != nil || len(a.Cases) != len(q.Cases) || len(a.Texts) != len(q.Texts) || len(a.Secrets) != len(q.Secrets) {
		t.Fatalf("node answers %.300s, %v, want an answer to each question", out, err)
	}
	return a
}

// Random types and values: the form takes what Terraform's own libraries take and
// complains of what they refuse, and writes what it has read, each digit of it.
func TestFormSaysWhatTheAgentWouldSay(t *testing.T) {
	t.Parallel()
	seed := uint64(7) // the same each time, for a failure must not come and go
	g := &generator{rand.New(rand.NewPCG(seed, 1))}
	const n = 400
	var source strings.Builder
	for i := range n {
		fmt.Fprintf(&source, "variable \"v%d\" {\n  type = %s\n  default = null\n}\n", i, g.hclType(3, true))
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	template, err := tfvars.Load(dir, "terraform")
	if err != nil {
		t.Fatal(err)
	}
	declared, err := template.Declared()
	if err != nil {
		t.Fatal(err)
	}
	cases := make([]formCase, n)
	for i, v := range declared {
		var ty any
		if err := json.Unmarshal(v.TypeJSON, &ty); err != nil {
			t.Fatal(err)
		}
		cases[i] = formCase{Type: v.TypeJSON, Text: string(v.TypeJSON), Value: g.value(ty)}
	}
	wrong := 0
	for i, got := range askForm(t, formQuestion{Cases: cases}).Cases {
		c, name := cases[i], declared[i].Name
		_, err := template.Render(tfvars.Given{Plain: map[string]json.RawMessage{name: json.RawMessage(c.Value)}})
		if (err == nil) != (len(got.Wrong) == 0) {
			t.Errorf("seed %d: the form says of %s for %s: %q, and the agent: %v", seed, c.Value, c.Text, got.Wrong, err)
		}
		if err != nil {
			wrong++
		}
		for _, written := range got.Written {
			if !reflect.DeepEqual(decoded(t, written), decoded(t, c.Value)) {
				t.Errorf("seed %d: the form writes %s for %s of type %s", seed, written, c.Value, c.Text)
			}
		}
	}
	if wrong < n/20 || wrong > n*9/10 {
		t.Errorf("%d of %d values are wrong, so this tests little", wrong, n)
	}
}

// decoded is a value whose numbers are what was written.
func decoded(t *testing.T, text string) (value any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		t.Fatalf("Decode(%q) = %v, want a value", text, err)
	}
	return value
}

// What is no JSON is refused, with the place; and nothing else is.
func TestFormReadsJSON(t *testing.T) {
	t.Parallel()
	table := map[string]string{
		"":                          "line 1, column 1: a value is needed, but the text ends here",
		"{\n  \"a\": 1,\n}":         `line 2, column 9: no "," before "}"`,
		"{\"ä\u00f6\": x}":          `line 1, column 8: a value is needed, not "x"`,
		"{\"a\": 1, \"a\": 2}":      `line 1, column 10: the name "a" is given twice`,
		"[1 2]":                     `line 1, column 4: "," or "]" is needed, not "2"`,
		"[\n\n 'x']":                `line 3, column 2: a value is needed, not "'": texts stand in "straight" double quotes`,
		"{a: 1}":                    `line 1, column 2: a name in double quotes is needed, not "a"`,
		`"\u0000"`:                  `line 1, column 2: the character \u0000 cannot be stored`,
		`[007]`:                     "line 1, column 3: a number of JSON has no leading zero and one point at most",
		`["a` + "\n" + `"]`:         `line 1, column 2: this text does not end on its line: a line break in it is written \n`,
		`{"__proto__":{"x":1e999}}`: "",
	}
	var texts []string
	for text := range table {
		texts = append(texts, text)
	}
	g := &generator{rand.New(rand.NewPCG(7, 2))}
	for range 400 {
		texts = append(texts, g.spoiled(g.json(3)))
	}
	answers := askForm(t, formQuestion{Texts: texts}).Texts
	for i, text := range texts {
		got := answers[i]
		if want, fixed := table[text]; fixed {
			if got.Error != want {
				t.Errorf("parse(%q) = %q, want %q", text, got.Error, want)
			}
			continue
		}
		stricter := strings.Contains(got.Error, "given twice")
		if valid := json.Valid([]byte(text)); valid != (got.Error == "") && !stricter {
			t.Errorf("parse(%q) = %+v, and to Go it is JSON: %t", text, got, valid)
		} else if valid && !stricter && !reflect.DeepEqual(decoded(t, got.Value), decoded(t, text)) {
			t.Errorf("write(parse(%q)) = %s, want the same", text, got.Value)
		}
	}
}

// What a browser seals, an agent opens: for that use alone, with the value as it
// was typed.
func TestFormSeals(t *testing.T) {
	t.Parallel()
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	use := seal.Use{Cluster: "prod", Workspace: "acme/prod", Repo: "https://git.example/acme/app", Name: "db_password"}
	without := func(change func(*seal.Use)) formSecret {
		u := use
		change(&u)
		return formSecret{u, `"hunter2-hunter2"`}
	}
	secrets := []formSecret{
		{use, `"hunter2-hunter2 \"ä\n\u2028"`},
		{use, `"-----BEGIN KEY-----\nabc\n-----END KEY-----\n"`},
		{use, `{"key": "0123456789", "more": [12345678901234567890, null]}`},
		{use, `"1234567"`}, {use, `{"x": true}`}, {use, `[]`}, {use, `1234567`},
		{use, `"` + strings.Repeat("x", 16<<10) + `"`},
		without(func(u *seal.Use) { u.Cluster = "" }), without(func(u *seal.Use) { u.Workspace = "" }),
		without(func(u *seal.Use) { u.Repo = "" }), without(func(u *seal.Use) { u.Name = "" }),
	}
	to, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range askForm(t, formQuestion{Secrets: secrets, Key: own.Public()}).Secrets {
		s := secrets[i]
		if _, err := (seal.Variable{Use: s.Use, Value: json.RawMessage(s.Value)}).Seal(to); err != nil {
			if got.Error == "" {
				t.Errorf("seal(%.40s) for %+v = a message, want a refusal as trellis seal has it: %v", s.Value, s.Use, err)
			}
			continue
		}
		value, err := own.OpenVariable(got.Message, use)
		if err != nil || !reflect.DeepEqual(decoded(t, string(value)), decoded(t, s.Value)) {
			t.Errorf("OpenVariable(%s) = %s, %v, want that (the browser said %q)", s.Value, value, err, got.Error)
		}
		for name, change := range map[string]func(*seal.Use){
			"cluster": func(u *seal.Use) { u.Cluster = "dev" }, "workspace": func(u *seal.Use) { u.Workspace = "acme/dev" },
			"template": func(u *seal.Use) { u.Repo += "2" }, "variable": func(u *seal.Use) { u.Name = "motd" },
		} {
			other := use
			change(&other)
			if _, err := own.OpenVariable(got.Message, other); err == nil || !strings.Contains(err.Error(), "sealed for the "+name) {
				t.Errorf("OpenVariable(%s) for another %s = %v, want it refused for that", s.Value, name, err)
			}
		}
	}
}

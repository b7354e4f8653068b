package seal_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/seal"
)

// seals seals a text as somebody with the age program would.
func seals(t *testing.T, to seal.Identities, text string) string {
	t.Helper()
	message, err := seal.Armoured(recipient(t, to.Public()), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// here is where the values of these tests are for.
var here = seal.Use{Cluster: "prod", Workspace: "acme/prod", Repo: "https://git.example/acme/app", Name: "password"}

// inside is a message's plaintext for here, with one member changed or added;
// nil takes it out.
func inside(t *testing.T, name string, value any) string {
	t.Helper()
	members := map[string]any{"v": 2, "cluster": here.Cluster, "workspace": here.Workspace, "repo": here.Repo, "name": here.Name, "value": "hunter2-hunter2"}
	members[name] = value
	if value == nil {
		delete(members, name)
	}
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOpenVariable(t *testing.T) {
	t.Parallel()
	old, current, other := generate(t), generate(t), generate(t)
	rotating := append(current[:1:1], old...)
	for _, value := range []string{`"hunter2-hunter2"`, `1234567890123456789.10`, `["12345678", "87654321"]`, `{"user": "postgres", "none": null}`} {
		for key, to := range map[string]seal.Identities{"current": current, "old": old} {
			message, err := seal.Variable{Use: here, Value: json.RawMessage(value)}.Seal(recipient(t, to.Public()))
			if err != nil {
				t.Fatal(err)
			}
			got, err := rotating.OpenVariable(message, here)
			if err != nil || strings.ReplaceAll(string(got), " ", "") != strings.ReplaceAll(value, " ", "") {
				t.Errorf("OpenVariable(%s, sealed to the %s key) = %s, %v", value, key, got, err)
			}
		}
	}
	message := seals(t, current, inside(t, "v", 2))
	if _, err := rotating.OpenVariable(message, here); err != nil {
		t.Errorf("OpenVariable of what the age program has sealed = %v", err)
	}
	if _, err := other.OpenVariable(message, here); !errors.Is(err, seal.ErrNotForUs) {
		t.Errorf("OpenVariable by a stranger = %v, want ErrNotForUs", err)
	}
	for name, text := range map[string]string{"no message": "hunter2-hunter2", "two messages": message + message} {
		if got, err := rotating.OpenVariable(text, here); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenVariable(%s) = %s, %v, want an error without what is inside", name, got, err)
		}
	}

	whole := inside(t, "v", 2)
	for name, c := range map[string]struct{ inside, want string }{
		"a bare value":       {`"hunter2-hunter2"`, "sealed the old way"},
		"a bare text":        {`hunter2-hunter2`, "sealed the old way"},
		"a bare object":      {`{"password": "hunter2-hunter2"}`, "sealed the old way"},
		"version 1":          {`{"v": 1, "name": "password", "value": "hunter2-hunter2"}`, "Seal the value again: trellis seal password --cluster prod --workspace acme/prod --repo https://git.example/acme/app"},
		"version 1, bound":   {`{"v": 1, "name": "password", "workspace": "acme/prod", "value": "hunter2-hunter2"}`, "sealed the old way"},
		"a later version":    {inside(t, "v", 3), "newer agent"},
		"an odd version":     {inside(t, "v", "2"), "must be one JSON object with v, cluster"},
		"no cluster":         {inside(t, "cluster", nil), "must be one JSON object with v, cluster"},
		"no workspace":       {inside(t, "workspace", nil), "must be one JSON object with v, cluster"},
		"no repository":      {inside(t, "repo", nil), "must be one JSON object with v, cluster"},
		"no name":            {inside(t, "name", nil), "must be one JSON object with v, cluster"},
		"no value":           {inside(t, "value", nil), "must be one JSON object with v, cluster"},
		"a limit not known":  {inside(t, "commit", "abc"), "must be one JSON object with v, cluster"},
		"another case":       {strings.Replace(whole, `"name"`, `"Name"`, 1), "must be one JSON object with v, cluster"},
		"a member twice":     {strings.Replace(whole, `"name"`, `"workspace":"acme/dev","name"`, 1), "must be one JSON object with v, cluster"},
		"an empty workspace": {inside(t, "workspace", ""), "malformed"},
		"another spelling":   {inside(t, "repo", here.Repo+".git"), "malformed"},
		"a strange name":     {inside(t, "name", "hunter2\x1b[8m"), "malformed"},
		"something after it": {whole + " {}", "nothing after it"},
		"half of it":         {whole[:len(whole)-1], "must be one JSON object"},
		"a short value":      {inside(t, "value", "hunter2"), "less than 8 bytes"},
		"too long":           {inside(t, "value", strings.Repeat("hunter2-hunter2", 2000)), "at most 16384"},
	} {
		got, err := rotating.OpenVariable(seals(t, current, c.inside), here)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenVariable(%s) = %s, %v, want an error with %q and without the value", name, got, err, c.want)
		}
	}
}

// A value is for one cluster, workspace, template and variable. The error names
// which of them differs, both sides of it, and how to seal again.
func TestSealedForAnotherUse(t *testing.T) {
	t.Parallel()
	own := generate(t)
	for name, c := range map[string]struct {
		change func(*seal.Use)
		want   string
	}{
		"cluster":   {func(u *seal.Use) { u.Cluster = "dev" }, "sealed for the cluster prod, and this run is for the cluster dev."},
		"workspace": {func(u *seal.Use) { u.Workspace = "acme/dev" }, "sealed for the workspace acme/prod, and this run is for the workspace acme/dev. Seal the value again: trellis seal password --cluster prod --workspace acme/dev --repo https://git.example/acme/app"},
		"template":  {func(u *seal.Use) { u.Repo = "https://git.example/eve/app" }, "sealed for the template repository https://git.example/acme/app, and this run is for the template repository https://git.example/eve/app."},
		"variable":  {func(u *seal.Use) { u.Name = "motd" }, "sealed for the variable password, and this run is for the variable motd."},
		"two":       {func(u *seal.Use) { u.Name, u.Cluster = "motd", "dev" }, "sealed for the cluster prod and the variable password, and this run is for the cluster dev and the variable motd."},
		"no name":   {func(u *seal.Use) { u.Workspace = "" }, "cannot be compared with this run"},
	} {
		message, err := seal.Variable{Use: here, Value: json.RawMessage(`"hunter2-hunter2"`)}.Seal(recipient(t, own.Public()))
		if err != nil {
			t.Fatal(err)
		}
		run := here
		c.change(&run)
		got, err := own.OpenVariable(message, run)
		if got != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenVariable of another %s = %s, %v, want %q", name, got, err, c.want)
		}
	}
}

// Spellings of a repository are one; a use that has no canonical form is not
// sealed for.
func TestSealedForOneSpelling(t *testing.T) {
	t.Parallel()
	own := generate(t)
	for _, spelling := range []string{here.Repo + ".git", "https://GIT.example:443/acme/app/"} {
		use := here
		use.Repo = spelling
		message, err := seal.Variable{Use: use, Value: json.RawMessage(`"hunter2-hunter2"`)}.Seal(recipient(t, own.Public()))
		if err != nil {
			t.Fatalf("Seal for %s = %v", spelling, err)
		}
		for _, run := range []seal.Use{here, use} {
			if _, err := own.OpenVariable(message, run); err != nil {
				t.Errorf("OpenVariable of what is for %s, for %s = %v, want nil", spelling, run.Repo, err)
			}
		}
	}
	for want, change := range map[string]func(*seal.Use){
		"name of a variable": func(u *seal.Use) { u.Name = "pass word" },
		"name of a cluster":  func(u *seal.Use) { u.Cluster = "" },
		"write acme/prod":    func(u *seal.Use) { u.Workspace = "acme//prod" },
		"holds credentials":  func(u *seal.Use) { u.Repo = "https://user:hunter2@git.example/acme/app" },
		"is missing":         func(u *seal.Use) { u.Repo = "" },
	} {
		use := here
		change(&use)
		_, err := seal.Variable{Use: use, Value: json.RawMessage(`"hunter2-hunter2"`)}.Seal(recipient(t, own.Public()))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Seal for %+v = %v, want an error with %q", use, err, want)
		}
	}
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"12345678"`:                      "",
		`12345678`:                        "",
		`["12345678", {"a": "12345678"}]`: "",
		`"1234567"`:                       "the value is a text of less than 8 bytes",
		`"1234567         "`:              "less than 8 bytes", // blanks are printed by nobody
		`1234567`:                         "the value is a number of less than 8 bytes",
		`true`:                            "boolean",
		`null`:                            "empty",
		`[]`:                              "empty",
		`{"a": {"b": null}}`:              "empty",
		`["12345678", "x"]`:               "the value[1] is a text",
		`{"a": "12345678", "b": [5432]}`:  "its member 2 of 2 by name[0] is a number",
		`{"a": false, "b": "12345678"}`:   "boolean",
		`nonsense`:                        "not JSON",
	} {
		err := seal.CheckSecret(json.RawMessage(value))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckSecret(%s) = %v, want %q", value, err, want)
		}
		if _, sealed := (seal.Variable{Use: here, Value: json.RawMessage(value)}).Seal(recipient(t, generate(t).Public())); (sealed == nil) != (err == nil) {
			t.Errorf("Seal(%s) = %v, CheckSecret %v, want the same", value, sealed, err)
		}
	}
}

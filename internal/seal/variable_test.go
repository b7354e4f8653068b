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

func TestOpenVariable(t *testing.T) {
	t.Parallel()
	old, current, other := generate(t), generate(t), generate(t)
	rotating := append(current[:1:1], old...)
	for _, value := range []string{`"hunter2-hunter2"`, `1234567890123456789.10`, `["12345678", "87654321"]`, `{"user": "postgres", "none": null}`} {
		for key, to := range map[string]seal.Identities{"current": current, "old": old} {
			message, err := seal.Variable{Name: "password", Value: json.RawMessage(value)}.Seal(recipient(t, to.Public()))
			if err != nil {
				t.Fatal(err)
			}
			got, err := rotating.OpenVariable(message, "password", "acme/prod")
			if err != nil || strings.ReplaceAll(string(got), " ", "") != strings.ReplaceAll(value, " ", "") {
				t.Errorf("OpenVariable(%s, sealed to the %s key) = %s, %v", value, key, got, err)
			}
		}
	}
	message, err := seal.Variable{Name: "password", Workspace: "acme/prod", Value: json.RawMessage(`"hunter2-hunter2"`)}.Seal(recipient(t, current.Public()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rotating.OpenVariable(message, "password", "acme/prod"); err != nil {
		t.Errorf("OpenVariable in its workspace = %v", err)
	}
	if _, err := other.OpenVariable(message, "password", "acme/prod"); !errors.Is(err, seal.ErrNotForUs) {
		t.Errorf("OpenVariable by a stranger = %v, want ErrNotForUs", err)
	}

	const secret = "hunter2-hunter2"
	for name, c := range map[string]struct{ inside, variable, workspace, want string }{
		"another variable":   {`{"v": 1, "name": "password", "value": "hunter2-hunter2"}`, "motd", "acme/prod", "another name"},
		"another workspace":  {`{"v": 1, "name": "password", "workspace": "acme/prod", "value": "hunter2-hunter2"}`, "password", "acme/dev", "another workspace"},
		"a bare value":       {`"hunter2-hunter2"`, "password", "acme/prod", `must be {"v": 1`},
		"a bare object":      {`{"password": "hunter2-hunter2"}`, "password", "acme/prod", `must be {"v": 1`},
		"no name":            {`{"v": 1, "value": "hunter2-hunter2"}`, "", "acme/prod", `must be {"v": 1`},
		"a limit not known":  {`{"v": 1, "name": "password", "repo": "x", "value": "hunter2-hunter2"}`, "password", "acme/prod", `must be {"v": 1`},
		"a later version":    {`{"v": 2, "name": "password", "value": "hunter2-hunter2"}`, "password", "acme/prod", "newer agent"},
		"something after it": {`{"v": 1, "name": "password", "value": "hunter2-hunter2"} {}`, "password", "acme/prod", "nothing after it"},
		"a short value":      {`{"v": 1, "name": "password", "value": "hunter2"}`, "password", "acme/prod", "less than 8 bytes"},
		"too long":           {`{"v": 1, "name": "password", "value": "` + strings.Repeat(secret, 2000) + `"}`, "password", "acme/prod", "at most 16384"},
	} {
		got, err := rotating.OpenVariable(seals(t, current, c.inside), c.variable, c.workspace)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("OpenVariable(%s) = %s, %v, want an error with %q and without the value", name, got, err, c.want)
		}
	}
	if _, err := rotating.OpenVariable("hunter2-hunter2", "password", "acme/prod"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("OpenVariable(no message) = %v, want an error without it", err)
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
		if _, sealed := (seal.Variable{Name: "x", Value: json.RawMessage(value)}).Seal(recipient(t, generate(t).Public())); (sealed == nil) != (err == nil) {
			t.Errorf("Seal(%s) = %v, CheckSecret %v, want the same", value, sealed, err)
		}
	}
}

package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const fullSnapshot = `{
  "template_source": {"repo": "https://git.example.com/acme/envtempl", "version": "v1.2.0", "path": "stacks/web"},
  "terraform_vars": {"project_name": "acme", "environment": "prod", "big": 12345678901234567890123},
  "workspace": "acme/prod.eu-1",
  "terraform": {"engine": "tofu", "version": "1.11.4-rc1"},
  "meta": {"triggered_by": "ada", "ticket": 7}
}`

func TestParseSnapshotKeepsEverything(t *testing.T) {
	t.Parallel()
	got, err := ParseSnapshot([]byte(fullSnapshot))
	if err != nil {
		t.Fatalf("ParseSnapshot(full) error: %v", err)
	}
	want := Snapshot{
		TemplateSource: TemplateSource{Repo: "https://git.example.com/acme/envtempl", Version: "v1.2.0", Path: "stacks/web"},
		TerraformVars: map[string]json.RawMessage{
			"project_name": json.RawMessage(`"acme"`), "environment": json.RawMessage(`"prod"`),
			"big": json.RawMessage(`12345678901234567890123`),
		},
		Workspace: "acme/prod.eu-1",
		Terraform: EngineChoice{Engine: "tofu", Version: "1.11.4-rc1"},
		Meta:      map[string]json.RawMessage{"triggered_by": json.RawMessage(`"ada"`), "ticket": json.RawMessage(`7`)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ParseSnapshot(full) = %+v, want %+v", got, want)
	}
}

func TestParseSnapshotNamesEveryProblem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, want string }{
		"not JSON":      {`{"a":`, "config_snapshot: not JSON: unexpected end of JSON input"},
		"not an object": {` [1]`, "config_snapshot: must be an object, not a list"},
		"null":          {`null`, "config_snapshot: must be an object, not null"},
		"empty":         {`{}`, "config_snapshot.template_source: missing"},
		"null source":   {`{"template_source":null}`, "config_snapshot.template_source: missing"},
		"text source":   {`{"template_source":"x"}`, "config_snapshot.template_source: must be an object, not a string"},
		"empty source": {`{"template_source":{}}`,
			"config_snapshot.template_source.repo: missing\nconfig_snapshot.template_source.version: missing"},
		"empty values": {`{"template_source":{"repo":"","version":""}}`,
			"config_snapshot.template_source.repo: missing\nconfig_snapshot.template_source.version: missing"},
		"ref for version": {`{"template_source":{"repo":"https://h/r","ref":"v1"}}`,
			"config_snapshot.template_source.version: missing\n" +
				`config_snapshot.template_source.ref: unknown; did you mean "version"?`},
		"a slip": {`{"template_source":{"repo":"https://h/r","version":"v1"},"workspaec":"w"}`,
			`config_snapshot.workspaec: unknown; did you mean "workspace"?`},
		"nothing near": {`{"template_source":{"repo":"https://h/r","version":"v1"},"terraform":{"colour":1}}`,
			"config_snapshot.terraform.colour: unknown; known: engine, version"},
		"case matters": {`{"template_source":{"Repo":"https://h/r","version":"v1"}}`,
			"config_snapshot.template_source.repo: missing\n" +
				`config_snapshot.template_source.Repo: unknown; did you mean "repo"?`},
		"a hostile key": {`{"template_source":{"repo":"https://h/r","version":"v1","a\nb":1}}`,
			`config_snapshot.template_source."a\nb": unknown; known: path, repo, version`},
		"wrong types": {`{"template_source":{"repo":1,"version":true,"path":[]},"terraform_vars":[],"workspace":{},"terraform":"x","meta":1}`,
			"config_snapshot.template_source.repo: must be a string, not a number\n" +
				"config_snapshot.template_source.version: must be a string, not a boolean\n" +
				"config_snapshot.template_source.path: must be a string, not a list\n" +
				"config_snapshot.terraform_vars: must be an object, not a list\n" +
				"config_snapshot.workspace: must be a string, not an object\n" +
				"config_snapshot.terraform: must be an object, not a string\n" +
				"config_snapshot.meta: must be an object, not a number"},
		"variable names": {`{"template_source":{"repo":"https://h/r","version":"v1"},"terraform_vars":{"1a":1,"b c":2,"ok-1":3}}`,
			`config_snapshot.terraform_vars."1a": not a variable name; letters, digits, _ and - are allowed, a letter or _ first` + "\n" +
				`config_snapshot.terraform_vars."b c": not a variable name; letters, digits, _ and - are allowed, a letter or _ first`},
		"engine": {`{"template_source":{"repo":"https://h/r","version":"v1"},"terraform":{"engine":"pulumi","version":">= 1.5"}}`,
			`config_snapshot.terraform.engine: must be "terraform" or "tofu"` + "\n" +
				"config_snapshot.terraform.version: must be one exact version, such as 1.11.4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseSnapshot([]byte(tc.in))
			f, ok := errors.AsType[*Failure](err)
			if !ok || f.Code != CodeBadSnapshot {
				t.Fatalf("ParseSnapshot(%s) error = %#v, want a Failure with %s", tc.in, err, CodeBadSnapshot)
			}
			if f.Message != tc.want {
				t.Errorf("ParseSnapshot(%s) error = %s\nwant %s", tc.in, f.Message, tc.want)
			}
		})
	}
}

func TestParseSnapshotSize(t *testing.T) {
	t.Parallel()
	const frame = `{"template_source":{"repo":"https://h/r","version":"v1"},"meta":{"x":"%s"}}`
	room := MaxSnapshot - len(fmt.Sprintf(frame, ""))
	if _, err := ParseSnapshot(fmt.Appendf(nil, frame, strings.Repeat("x", room))); err != nil {
		t.Errorf("ParseSnapshot(%d bytes) error = %v, want nil", MaxSnapshot, err)
	}
	_, err := ParseSnapshot(fmt.Appendf(nil, frame, strings.Repeat("x", room+1)))
	if want := "config_snapshot: 262145 bytes, at most 262144 are allowed"; err == nil || err.Error() != want {
		t.Errorf("ParseSnapshot(%d bytes) error = %v, want %s", MaxSnapshot+1, err, want)
	}
}

func TestSnapshotRules(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rule  string
		check func(string) string
		good  []string
		bad   []string
	}{
		{"repo", checkRepo,
			[]string{
				"https://github.com/a/b", "https://host:8443/a/b.git", "https://[::1]:8443/r", "https://host/~user/x@y.git",
				"ssh://git@host:22/a", "ssh://host/a", "git@github.com:a/b.git", "file:///srv/git/a.git", "HTTPS://H/r/",
				"https://h/" + strings.Repeat("r", 490),
			},
			[]string{
				"http://h/r", "git://h/r", "ext::sh -c id", "ext::sh%20-c", "-oProxyCommand=x", "--upload-pack=x",
				"https://user@h/r", "https://user:pw@h/r", "https://h/r?token=x", "https://h/r#x", "https:///r", "https://h",
				"ssh://git:pw@h/r", "ssh://-oProxyCommand=x/r", "git@-oProxyCommand=x:r", "-x@h:r", "git@h:-r",
				"file://host/r", "file:r", "/srv/git", "../r", "https://h/a b", "https://h/a\tb", "https://h/a\u2028b",
				"https://-h/r", "https://h/a//b", "https://h/%2e", "git@h:r\n", "https://h/" + strings.Repeat("r", 491),
			}},
		{"version", checkVersion,
			[]string{"v1.2.0", "1", "release/2026-01", "0123456789abcdef0123456789abcdef01234567", "a@b", "über"},
			[]string{"-x", "--upload-pack=x", "a b", "a\x00b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[", `a\b`, "refs/heads/x", "a\n", strings.Repeat("v", 201)}},
		{"path", checkPath,
			[]string{"", ".", "a", "a/b c", "a..b/c", "..a", "./a/"},
			[]string{"/a", "..", "a/..", "../a", "a/../b", `a\b`, "a\x00b", strings.Repeat("p", 501)}},
		{"workspace", checkWorkspace,
			[]string{"a", "A/b.c_d-e", "0", strings.Repeat("w", 128)},
			[]string{"", ".a", "-a", "/a", "_a", "a//b", "a/./b", "a/", "a..b", "a b", "ä", "a\n", strings.Repeat("w", 129)}},
		{"engine version", checkEngineVersion,
			[]string{"1.11.4", "1.12.0-beta1", "0.12.31"},
			[]string{"", "1.11", "v1.11.4", ">=1.0.0", "latest", "1.11.4+x", "1.11.4-", "1.2.3\n", "1.2.3-" + strings.Repeat("a", 60)}},
	} {
		for _, value := range tc.good {
			if got := tc.check(value); got != "" {
				t.Errorf("%s: check(%q) = %q, want no problem", tc.rule, value, got)
			}
		}
		for _, value := range tc.bad {
			if got := tc.check(value); got == "" {
				t.Errorf("%s: check(%q) found no problem, want one", tc.rule, value)
			}
		}
	}
}

func TestRepoProblemDoesNotRepeatCredentials(t *testing.T) {
	t.Parallel()
	for _, repo := range []string{"https://bob:hunter2@h/r", "ssh://bob:hunter2@h/r", "http://bob:hunter2@h/r", "https://h/r?t=hunter2"} {
		_, err := ParseSnapshot(fmt.Appendf(nil, `{"template_source":{"repo":%q,"version":"v1"}}`, repo))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseSnapshot(repo %s) error = %v, want one without the password", repo, err)
		}
	}
}

func TestWorkspaceName(t *testing.T) {
	t.Parallel()
	const missing = "config_snapshot.workspace: missing; give it, or project_name and environment as strings in terraform_vars"
	for _, tc := range []struct{ members, want, wantErr string }{
		{`"workspace":"w","terraform_vars":{"project_name":"p","environment":"e"}`, "w", ""},
		{`"terraform_vars":{"project_name":"p","environment":"e"}`, "p/e", ""},
		{`"workspace":null,"terraform_vars":{"project_name":"p","environment":"e"}`, "p/e", ""},
		{`"terraform_vars":{"project_name":"p"}`, "", missing},
		{`"terraform_vars":{"project_name":1,"environment":"e"}`, "", missing},
		{`"terraform_vars":{"project_name":"","environment":"e"}`, "", missing},
		{`"terraform_vars":{"project_name":null,"environment":"e"}`, "", missing},
		{`"meta":{}`, "", missing},
		{`"terraform_vars":{"project_name":"my project","environment":"e"}`, "",
			`config_snapshot.workspace: missing, and project_name/environment will not do: "my project/e" may hold letters, digits and . _ / - only, must begin with a letter or digit, must not hold "..", and has at most 128 characters`},
	} {
		s, err := ParseSnapshot([]byte(`{"template_source":{"repo":"https://h/r","version":"v1"},` + tc.members + `}`))
		if err != nil {
			t.Fatalf("ParseSnapshot(%s) error: %v", tc.members, err)
		}
		got, err := s.WorkspaceName()
		gotErr := ""
		if err != nil {
			gotErr = err.Error()
			if code := AsFailure(err).Code; code != CodeBadSnapshot {
				t.Errorf("WorkspaceName(%s) error code = %s, want %s", tc.members, code, CodeBadSnapshot)
			}
		}
		if got != tc.want || gotErr != tc.wantErr {
			t.Errorf("WorkspaceName(%s) = %q, %q, want %q, %q", tc.members, got, gotErr, tc.want, tc.wantErr)
		}
	}
}

func FuzzParseSnapshot(f *testing.F) {
	f.Add([]byte(fullSnapshot))
	f.Add([]byte(`{"template_source":{"repo":"git@h:r","version":"v1"},"terraform_vars":{"a":null,"b":1e999}}`))
	f.Add([]byte(`{"template_source":null,"x":[[[[]]]],"meta":{"é":"\u0000"}}`))
	f.Add([]byte("{\"\xff\":1}"))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ParseSnapshot(data)
		if err != nil {
			if AsFailure(err).Code != CodeBadSnapshot {
				t.Fatalf("ParseSnapshot(%q) error code = %s, want %s", data, AsFailure(err).Code, CodeBadSnapshot)
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "config_snapshot") {
					t.Fatalf("ParseSnapshot(%q) error line %q does not begin with a path", data, line)
				}
			}
			return
		}
		written, err := json.Marshal(first)
		if err != nil {
			t.Fatalf("Marshal(%+v) error: %v", first, err)
		}
		if len(written) > MaxSnapshot { // escaping may lengthen it
			return
		}
		second, err := ParseSnapshot(written)
		if err != nil {
			t.Fatalf("ParseSnapshot(%s) error: %v; it was written from an accepted snapshot", written, err)
		}
		again, err := json.Marshal(second)
		if err != nil || string(again) != string(written) {
			t.Fatalf("snapshot written twice = %s, %v, want %s", again, err, written)
		}
	})
}

// Sealed values of an earlier deploy are used again where they were sealed for.
func TestSealedElsewhere(t *testing.T) {
	t.Parallel()
	was := Snapshot{
		TemplateSource: TemplateSource{Repo: "https://git.example/acme/app", Version: "v1"},
		TerraformVars:  map[string]json.RawMessage{"project_name": json.RawMessage(`"acme"`), "environment": json.RawMessage(`"prod"`)},
		SealedVars:     map[string]string{"password": "message a", "token": "message b"},
	}
	for name, c := range map[string]struct {
		change func(*Snapshot)
		want   []string
	}{
		"the same":         {func(s *Snapshot) { s.TemplateSource.Version = "v2" }, nil},
		"named":            {func(s *Snapshot) { s.Workspace = "acme/prod" }, nil},
		"another spelling": {func(s *Snapshot) { s.TemplateSource.Repo += ".git" }, nil},
		"sealed again": {func(s *Snapshot) {
			s.Workspace, s.SealedVars = "acme/new", map[string]string{"password": "message c"}
		}, nil},
		"another workspace": {func(s *Snapshot) { s.Workspace = "acme/new" },
			[]string{"config_snapshot.sealed_vars.password: it was sealed for the workspace acme/prod, and this is for the workspace acme/new", "sealed_vars.token: "}},
		"another template": {func(s *Snapshot) { s.TemplateSource.Repo = "https://git.example/eve/app" },
			[]string{"sealed_vars.password: it was sealed for the template repository https://git.example/acme/app, and this is for https://git.example/eve/app"}},
		"one of both": {func(s *Snapshot) {
			s.Workspace, s.SealedVars = "acme/new", map[string]string{"password": "message c", "token": "message b"}
		}, []string{"sealed_vars.token: it was sealed for the workspace"}},
	} {
		asked := was
		c.change(&asked)
		err := was.SealedElsewhere(asked)
		if (err == nil) != (c.want == nil) {
			t.Errorf("SealedElsewhere(%s) = %v, want %q", name, err, c.want)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("SealedElsewhere(%s) = %v, want %q in it", name, err, want)
			}
		}
		if name == "one of both" && strings.Contains(err.Error(), "password") {
			t.Errorf("SealedElsewhere(%s) = %v, want nothing of what was sealed again", name, err)
		}
	}
}

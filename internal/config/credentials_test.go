package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// secretFile writes a file that only this user reads.
func secretFile(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadCredentials(t *testing.T) {
	t.Parallel()
	path := secretFile(t, "tendril.toml", `
credentials_default = true
[queue]
url = "`+testURL+`"
[[credentials]]
workspace = "acme/prod/**"
env_file = "prod.env"
[credentials.files]
GOOGLE_APPLICATION_CREDENTIALS = "prod.json"
[[credentials]]
workspace = "acme/*"
aws_role_arn = "arn:aws:iam::123456789012:role/deploy/dev"
web_identity_token_file = "/var/run/token"
`, 0o600)
	for _, name := range []string{"prod.env", "prod.json"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte("A=b"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := Credentials{
		{Workspace: "acme/prod/**", EnvFile: filepath.Join(filepath.Dir(path), "prod.env"),
			Files: map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": filepath.Join(filepath.Dir(path), "prod.json")}},
		{Workspace: "acme/*", AWSRoleARN: "arn:aws:iam::123456789012:role/deploy/dev", WebIdentityTokenFile: "/var/run/token"},
	}
	_, err := Load(path, []string{"TENDRIL_API_TOKEN=" + testToken})
	wantProblems(t, "Load()", err, `credentials[2] ("acme/*").web_identity_token_file: "/var/run/token" cannot be read: stat /var/run/token: no such file or directory`)

	token := secretFile(t, "token", "x", 0o600)
	text := "acme/prod/**:env_file=" + want[0].EnvFile + ", acme/prod/**:files.GOOGLE_APPLICATION_CREDENTIALS=" + want[0].Files["GOOGLE_APPLICATION_CREDENTIALS"] +
		",acme/*:aws_role_arn=" + want[1].AWSRoleARN + ",acme/*:web_identity_token_file=" + token
	want[1].WebIdentityTokenFile = token
	got, err := Load(path, []string{"TENDRIL_API_TOKEN=" + testToken, "TENDRIL_CREDENTIALS=" + text})
	if err != nil || !reflect.DeepEqual(got.Credentials, want) || !got.CredentialsDefault {
		t.Errorf("Load() = %+v, %v, want %+v", got.Credentials, err, want)
	}
}

func TestLoadRefusesCredentials(t *testing.T) {
	t.Parallel()
	good := secretFile(t, "good", "A=b", 0o600)
	for table, want := range map[string]string{
		`workspace = "acme/prod"`:                                                                                                   "names no credential",
		fmt.Sprintf("env_file = %q", good):                                                                                          "must be a pattern of workspace names",
		fmt.Sprintf("workspace = \"acme/**x\"\nenv_file = %q", good):                                                                "must be a pattern of workspace names",
		fmt.Sprintf("workspace = \"a\"\nenv_file = %q", secretFile(t, "open", "A=b", 0o644)):                                        "others may read it",
		fmt.Sprintf("workspace = \"a\"\nenv_file = %q", secretFile(t, "group", "A=b", 0o660)):                                       "others may write it",
		fmt.Sprintf("workspace = \"a\"\nenv_file = %q\naws_role_arn = \"arn:aws:iam::123456789012:role/x\"", good):                  "go together",
		fmt.Sprintf("workspace = \"a\"\naws_role_arn = \"admin\"\nweb_identity_token_file = %q", good):                              "must be the ARN of a role",
		fmt.Sprintf("workspace = \"a\"\n[credentials.files]\nLD_PRELOAD = %q", good):                                                "is no name that may be set",
		fmt.Sprintf("workspace = \"a\"\nenv_fiel = %q", good):                                                                       `did you mean "env_file"?`,
		"workspace = \"a\"\ntoken = \"hunter2\"":                                                                                    "a secret does not belong in this file",
		fmt.Sprintf("workspace = \"a\"\nservice_account_token_file = %q", secretFile(t, "long", strings.Repeat("x", 70000), 0o600)): "is larger than",
	} {
		path := secretFile(t, "tendril.toml", "[queue]\nurl = \""+testURL+"\"\n[[credentials]]\n"+table+"\n", 0o600)
		_, err := Load(path, []string{"TENDRIL_API_TOKEN=" + testToken})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load(%s) = %v, want %q", table, err, want)
		}
	}
}

func TestCloudCredentialsByWorkspace(t *testing.T) {
	t.Parallel()
	environ := []string{"PATH=/bin", "AWS_SECRET_ACCESS_KEY=x", "VAULT_TOKEN=y", "ACME=z", "https_proxy=p"}
	c := Config{Run: Run{PassEnv: []string{"ACME"}}}
	if got, want := c.ChildEnv(environ), environ; !slices.Equal(got, want) || c.DefaultCredentials(environ) != nil {
		t.Errorf("ChildEnv() = %q, want %q as long as credentials are not told apart", got, want)
	}
	c.Credentials = Credentials{{Workspace: "a"}}
	if got, want := c.CheckEnv(environ), []string{"PATH=/bin", "https_proxy=p"}; !slices.Equal(got, want) {
		t.Errorf("CheckEnv() = %q, want %q", got, want)
	}
	if got, want := c.ChildEnv(environ), []string{"PATH=/bin", "ACME=z", "https_proxy=p"}; !slices.Equal(got, want) {
		t.Errorf("ChildEnv() = %q, want %q", got, want)
	}
	if got := c.DefaultCredentials(environ); got != nil {
		t.Errorf("DefaultCredentials() = %q, want none unless it is configured", got)
	}
	c.CredentialsDefault = true
	if got, want := c.DefaultCredentials(environ), []string{"AWS_SECRET_ACCESS_KEY=x", "VAULT_TOKEN=y"}; !slices.Equal(got, want) {
		t.Errorf("DefaultCredentials() = %q, want %q", got, want)
	}
}

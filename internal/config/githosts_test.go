package config

import (
	"fmt"
	"strings"
	"testing"
)

// Every mistake in a table of [git.hosts] is told with the table's name, and no
// file's content is.
func TestGitHostsRefused(t *testing.T) {
	t.Parallel()
	secret := write(t, "secret", "hunter2", 0o600)
	public := write(t, "public", "hunter2", 0o644)
	for _, c := range []struct{ table, want string }{
		{`[git.hosts."https://github.com"]` + "\ntoken_file = %[1]q", `git.hosts."https://github.com": must be a host in small letters`},
		{`[git.hosts."GitHub.com"]` + "\ntoken_file = %[1]q", `git.hosts."GitHub.com": must be a host in small letters`},
		{`[git.hosts."github.com:443"]` + "\ntoken_file = %[1]q", `git.hosts."github.com:443": leave the port out`},
		{`[git.hosts."github.com:22"]` + "\nssh_key_file = %[1]q", `git.hosts."github.com:22": leave the port out`},
		{`[git.hosts."github.com"]`, `git.hosts."github.com": names no credential`},
		{`[git.hosts."github.com"]` + "\nusername = \"ada\"", `git.hosts."github.com": names no credential`},
		{`[git.hosts."github.com"]` + "\ntoken_file = %[1]q\napp_id = \"1\"\napp_installation_id = \"2\"\napp_key_file = %[1]q", `has both a token_file and a GitHub App`},
		{`[git.hosts."github.com"]` + "\napp_id = \"1\"", "a GitHub App needs app_id, app_installation_id and app_key_file"},
		{`[git.hosts."github.com"]` + "\napp_id = \"1\"\napp_installation_id = \"a/b\"\napp_key_file = %[1]q", `git.hosts."github.com".app_installation_id: must be a number`},
		{`[git.hosts."github.com"]` + "\napp_id = \"1/2\"\napp_installation_id = \"2\"\napp_key_file = %[1]q", `git.hosts."github.com".app_id: must be`},
		{`[git.hosts."h"]` + "\napp_id = \"1\"\napp_installation_id = \"2\"\napp_key_file = %[1]q\napp_api_url = \"http://h\"", `git.hosts."h".app_api_url: must be an https:// URL`},
		{`[git.hosts."github.com"]` + "\napp_id = 1", "in quotes"},
		{`[git.hosts."h"]` + "\ntoken_file = %[1]q\nusername = \"a:b\"", `git.hosts."h".username: must have no`},
		{`[git.hosts."h"]` + "\ntoken_file = %[1]q\nrepos = [\"a b\"]", `git.hosts."h".repos: must be patterns`},
		{`[git.hosts."github.com"]` + "\ntoken_file = %[1]q\nrepos = [\"https://gitlab.com/acme/*\"]", `git.hosts."github.com".repos: must name repositories of this host`},
		{`[git.hosts."h"]` + "\ntoken_file = %[2]q", `others may read it (mode 0644)`},
		{`[git.hosts."h"]` + "\nssh_key_file = %[2]q", `git.hosts."h".ssh_key_file: `},
		{`[git.hosts."h"]` + "\ntoken_file = \"/nowhere/token\"", `git.hosts."h".token_file: "/nowhere/token" cannot be read`},
		{`[git.hosts."h"]` + "\nssh_key_file = %[1]q\nknown_hosts_file = \"/nowhere/hosts\"", `git.hosts."h".known_hosts_file: "/nowhere/hosts" is no file`},
		{`[git.hosts."h"]` + "\ntoken_fiel = %[1]q", `token_fiel: unknown key; did you mean "token_file"?`},
		{`[git.hosts."h"]` + "\ntoken = \"glpat-s3cret\"", `h.token: a secret does not belong in this file; put it in a file of its own, named by token_file`},
		{`[git.hosts."h"]` + "\npassword = \"glpat-s3cret\"", `named by token_file`},
	} {
		text := c.table
		if strings.Contains(text, "%") {
			text = fmt.Sprintf(text+"%.0[1]s%.0[2]s", secret, public)
		}
		_, err := Load(write(t, "agent.toml", text, 0o600), minimal())
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load(%s) = %v, want %q in it", c.table, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"github.com", "git.hosts (TENDRIL_GIT_HOSTS"},
		{"github.com.token=x", "git.hosts (TENDRIL_GIT_HOSTS"},
	} {
		if _, err := Load("", minimal("TENDRIL_GIT_HOSTS="+c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Load(TENDRIL_GIT_HOSTS=%s) = %v, want %q in it", c.text, err, c.want)
		}
	}
}

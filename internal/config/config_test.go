package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestSecretIsNotShown(t *testing.T) {
	t.Parallel()
	c := Config{Queue: Queue{Token: NewSecret("hunter2")}}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("config", "config", c, "token", c.Queue.Token)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", "config", c, "token", c.Queue.Token)
	for how, text := range map[string]string{
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c), "String": c.Queue.Token.String(),
		"%q": fmt.Sprintf("%q", c.Queue.Token), "JSON": string(asJSON), "slog": log.String(),
	} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("a configuration as %s = %s, want the token hidden", how, text)
		}
	}
	if got := c.Queue.Token.Reveal(); got != "hunter2" {
		t.Errorf("Reveal() = %q, want hunter2", got)
	}
}

// TestKeysCoverTheStruct finds a field without a key and a key without a field.
func TestKeysCoverTheStruct(t *testing.T) {
	t.Parallel()
	var tagged []string
	var walk func(prefix string, ty reflect.Type)
	walk = func(prefix string, ty reflect.Type) {
		for _, field := range reflect.VisibleFields(ty) {
			tag := field.Tag.Get("toml")
			switch {
			case tag == "-":
			case field.Type.Kind() == reflect.Struct && !reflect.PointerTo(field.Type).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
				walk(prefix+tag+".", field.Type)
			default:
				tagged = append(tagged, prefix+tag)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	var listed []string
	for _, k := range keys() {
		listed = append(listed, k.name)
	}
	slices.Sort(tagged)
	slices.Sort(listed)
	if !slices.Equal(listed, tagged) {
		t.Errorf("keys() = %q, want the fields of Config, %q", listed, tagged)
	}
}

func TestReference(t *testing.T) {
	t.Parallel()
	got := Reference()
	for _, want := range []string{
		"\n## Agent: keys outside of tables\n\n| key | type | default | environment | since | description |\n|---|---|---|---|---|---|\n",
		"\n## Agent: `[queue]`\n", "\n## Agent: `[[credentials]]`\n",
		"| `slots` | number | `2` | `TENDRIL_SLOTS` | 0.1.0 | How many runs execute at once. ",
		"| `run.timeout` | duration | `2h` | `TENDRIL_RUN_TIMEOUT` |", "| `drain_timeout` | duration | `10m` | `TENDRIL_DRAIN_TIMEOUT` |",
		"| `run.log_limit` | size | `64MiB` | `TENDRIL_RUN_LOG_LIMIT` |", "| `cache.limit` | size | `10GiB` | `TENDRIL_CACHE_LIMIT` |",
		"| `log_level` | string | `info` | `TENDRIL_LOG_LEVEL` |", "| `policy.operations` | list | `plan,apply,destroy,refresh,power,inspect` | `TENDRIL_POLICY_OPERATIONS` |",
		"| `engine.install` | boolean | `true` | `TENDRIL_ENGINE_INSTALL` |", "| `queue.url` | string | none | `TENDRIL_QUEUE_URL` |", "| `git.hosts` | table |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("Reference() = %s\nwant %q in it", got, want)
		}
	}
	tables, _, _ := strings.Cut(got, "\n## Agent: variables without a key\n")
	for line := range strings.Lines(tables) {
		if n := strings.Count(line, "|"); n != 7 && strings.HasPrefix(line, "|") {
			t.Errorf("Reference() line %q has %d bars, want 7", line, n)
		}
	}
}

// Where plans are judged or approved, no other run of the same uid runs meanwhile.
func TestRunsAtOnce(t *testing.T) {
	t.Parallel()
	const root, ordinary = 0, 1000
	for _, c := range []struct {
		name      string
		uid       int
		uids      string
		hook      []string
		approval  string
		slots     int
		want      int
		wantCause string
	}{
		{"nobody judges", ordinary, "auto", nil, "never", 4, 4, ""},
		{"a hook", ordinary, "auto", []string{"/bin/true"}, "never", 4, 1, "policy.hook is set"},
		{"a hook and one slot", ordinary, "auto", []string{"/bin/true"}, "never", 1, 1, ""},
		{"approval of every plan", ordinary, "auto", nil, "always", 2, 1, `policy.approval is "always"`},
		{"approval of some plans", ordinary, "auto", nil, "destructive", 2, 1, `policy.approval is "destructive"`},
		{"uids of their own", root, "auto", []string{"/bin/true"}, "always", 4, 4, ""},
		{"uids of their own from a number", root, "200000", []string{"/bin/true"}, "always", 4, 4, ""},
		{"root for all", root, "off", []string{"/bin/true"}, "never", 4, 1, "share uid 0"},
	} {
		config := Config{Slots: c.slots, Run: Run{UIDs: c.uids}, Policy: Policy{Hook: c.hook, Approval: c.approval}}
		if c.wantCause != "" && config.interferes(c.uid) == "" {
			t.Errorf("%s: a command may ask how machines are next to a run", c.name)
		}
		if got, why := config.runsAtOnce(c.uid); got != c.want || (why == "") != (c.wantCause == "") || !strings.Contains(why, c.wantCause) {
			t.Errorf("%s: runsAtOnce() = %d, %q, want %d for %q", c.name, got, why, c.want, c.wantCause)
		}
		// Each Job has a pod of its own. A command that asks how a machine is would have none.
		config.Run.Launcher = Kubernetes
		if got, why := config.runsAtOnce(c.uid); got != c.slots || why != "" || config.NoCommands() == "" {
			t.Errorf("%s: with Jobs runsAtOnce() = %d, %q, NoCommands() = %q, want %d and no commands", c.name, got, why, config.NoCommands(), c.slots)
		}
	}
}

// TestDefaultsAreAllowed keeps the reference from promising a default that
// Load refuses.
func TestDefaultsAreAllowed(t *testing.T) {
	t.Parallel()
	c := defaults(environment{"HOME": "/home/ada"})
	c.Queue.URL, c.Name = testURL, "a"
	for _, k := range keys() {
		if k.check != nil && !k.check(c) {
			t.Errorf("the default of %s, %q, is not allowed: must be %s", k.name, k.text(c), k.allowed)
		}
	}
}

func TestChildEnv(t *testing.T) {
	t.Parallel()
	engineConfig := filepath.Join(t.TempDir(), "terraformrc")
	if err := os.WriteFile(engineConfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pass := []string{
		"PATH=/bin", "HOME=/h", "USER=u", "LANG=C", "LC_ALL=C", "TZ=UTC", "TMPDIR=/t", "SSL_CERT_FILE=f", "SSL_CERT_DIR=d",
		"HTTP_PROXY=p", "HTTPS_PROXY=p", "NO_PROXY=p", "http_proxy=p", "https_proxy=p", "no_proxy=p",
		"AWS_PROFILE=x", "AZURE_X=x", "ARM_CLIENT_ID=x", "GOOGLE_CREDENTIALS=a=b=c", "CLOUDSDK_X=x", "KUBECONFIG=x", "KUBE_CONFIG_PATH=x",
		"KUBERNETES_SERVICE_HOST=x", "DIGITALOCEAN_TOKEN=x", "HCLOUD_TOKEN=x", "PROXMOX_VE_ENDPOINT=x", "PM_API_URL=x", "OS_CLOUD=x",
		"VSPHERE_USER=x", "VAULT_ADDR=x", "CLOUDFLARE_API_TOKEN=x", "AWS_EMPTY=",
	}
	never := []string{
		"TENDRIL_API_TOKEN=x", "TENDRIL_QUEUE_URL=x", "TRELLIS_URL=x", "SUPABASE_KEY=x", "PGPASSWORD=x", "PGHOST=x", "DATABASE_URL=x",
		"TF_VAR_x=x", "TF_LOG=x", "TF_PLUGIN_CACHE_DIR=x", "TF_CLI_ARGS=x", "LD_PRELOAD=x", "LD_LIBRARY_PATH=x",
	}
	other := []string{"ACME_A=x", "ACME=x", "EDITOR=x", "AWSX=x", "PATHX=x", "HCLOUD_TOKEN2=x"}
	garbage := []string{"", "=x", "NOTHING"}
	environ := slices.Concat(pass, never, other, garbage, []string{"TF_CLI_CONFIG_FILE=" + engineConfig})

	for _, tc := range []struct {
		passEnv []string
		more    []string
	}{
		{nil, nil},
		{[]string{"ACME_*"}, []string{"ACME_A=x"}},
		{[]string{"ACME"}, []string{"ACME=x"}},
		// Even where validation has been gone round, what is never passed stays.
		{[]string{"*"}, other},
		{[]string{"TENDRIL_*", "TF_*", "PG*", "T*", "LD_PRELOAD", "DATABASE_URL"}, nil},
		{[]string{"TF_CLI_CONFIG_FILE"}, []string{"TF_CLI_CONFIG_FILE=" + engineConfig}},
	} {
		got := Config{Run: Run{PassEnv: tc.passEnv}}.ChildEnv(environ)
		if want := slices.Concat(pass, tc.more); !slices.Equal(got, want) {
			t.Errorf("ChildEnv with pass_env %q = %q, want %q", tc.passEnv, got, want)
		}
	}

	missing := Config{Run: Run{PassEnv: []string{"TF_CLI_CONFIG_FILE"}}}.ChildEnv([]string{"TF_CLI_CONFIG_FILE=" + engineConfig + ".missing"})
	if len(missing) != 0 {
		t.Errorf("ChildEnv(TF_CLI_CONFIG_FILE that is missing) = %q, want nothing", missing)
	}
}

func TestPassable(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]bool{
		"ACME_TOKEN": true, "ACME_*": true, "*": true, "TF_CLI_CONFIG_FILE": true, "acme": true, "P*": true,
		"": false, "A B": false, "*_TOKEN": false, "A*B": false, "A=B": false, "1A": false,
		"TF_*": false, "TF_VAR_x": false, "TF_CLI_CONFIG_FIL*": false, "TENDRIL_API_TOKEN": false, "PG*": false, "PGHOST": false,
		"LD_PRELOAD": false, "DATABASE_URL": false, "SUPABASE_*": false, "TRELLIS_X": false,
	} {
		if got := passable(pattern); got != want {
			t.Errorf("passable(%q) = %t, want %t", pattern, got, want)
		}
	}
}

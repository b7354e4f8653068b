package config

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	testToken = "tnd_testtoken"
	testURL   = "postgres://agent:hunter2@db/tendril"
)

// write puts a file into a new directory and returns its path.
func write(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return path
}

// minimal is an environment that makes a valid configuration, and more.
func minimal(more ...string) []string {
	return append([]string{"HOME=/home/ada", "TENDRIL_NAME=host-1", "TENDRIL_QUEUE_URL=" + testURL, "TENDRIL_API_TOKEN=" + testToken}, more...)
}

// wantProblems checks an error of Load line by line.
func wantProblems(t *testing.T, call string, err error, want ...string) {
	t.Helper()
	invalid, ok := errors.AsType[*Invalid](err)
	if !ok {
		t.Fatalf("%s error = %v, want an *Invalid", call, err)
	}
	if !slices.Equal(invalid.Problems, want) {
		t.Errorf("%s problems =\n  %s\nwant\n  %s", call, strings.Join(invalid.Problems, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestLoadReadsEveryKeyOfTheFile(t *testing.T) {
	t.Parallel()
	const certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	path := write(t, "tendril.toml", `
name = "agent-7"
data_dir = "data"
slots = 8
drain_timeout = "90s"
log_format = "json"
log_level = "debug"
identity_file = "/identity"
[queue]
url = "postgresql://db/tendril"
listen_url = "postgres://db:6543/tendril"
allow_http = false
token_file = "token"
poll_interval = "250ms"
key_lifetime = "48h"
[health]
listen = "127.0.0.1:9090"
[policy]
repos = ["https://github.com/acme/**", "git@host:acme/*"]
operations = ["plan", "apply", "destroy", "refresh"]
approval = "destructive"
allow_file = true
plain_sensitive = true
modules = ["registry.terraform.io/acme/*/*", "archive::https://mirror/**"]
programs = ["/opt/acme/provision.sh"]
hook = ["/bin/true", "test", "-"]
hook_timeout = "30s"
[git]
ca_file = "ca.pem"
timeout = "30s"
[git.hosts."github.com"]
app_id = "Iv1.23"
app_installation_id = "45"
app_key_file = "token"
[git.hosts."git.example:8443"]
token_file = "token"
username = "oauth2"
ssh_key_file = "token"
known_hosts_file = "ca.pem"
repos = ["https://git.example:8443/modules/*"]
[engine]
kind = "tofu"
version = "1.9.0"
dir = "."
install = false
mirror_url = "https://mirror.example.com/releases"
public_key_file = "ca.pem"
provider_mirror = "https://mirror.example.com/providers/"
provider_direct = true
[state]
default = "managed"
backend = "s3"
[state.config.s3]
bucket = "acme-state"
key = "{workspace_id}/terraform.tfstate"
[run]
timeout = "1h"
timeouts = {plan = "30m", state = "5m"}
cancel_grace = "1m"
disk_wait = "45s"
log_limit = "1GiB"
pass_env = ["ACME_*"]
uids = "off"
launcher = "kubernetes"
[kubernetes]
namespace = "runs"
image = "tendril:1"
service_account = "runner"
pod_file = "ca.pem"
pod_files = ["acme/**: /etc/hostname"]
start_timeout = "1m"
lease = "writers"
kubeconfig = "kubeconfig"
[manual]
notification_webhook = "https://hooks.example.com/x"
notification_kind = "slack"
signing_secret_file = "token"
[cache]
limit = "2TiB"
keep = "36h"
min_free = "0"
`, 0o644)
	dir := filepath.Dir(path)
	for name, content := range map[string]string{"ca.pem": certificate, "token": "  " + testToken + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path, nil)
	if err != nil {
		t.Fatalf("Load() error: %v", err)
	}
	want := Config{
		Name: "agent-7", DataDir: filepath.Join(dir, "data"), Slots: 8, DrainTimeout: Duration{90 * time.Second},
		LogFormat: "json", LogLevel: slog.LevelDebug, IdentityFile: "/identity",
		Queue: Queue{
			URL: "postgresql://db/tendril", ListenURL: "postgres://db:6543/tendril",
			TokenFile: filepath.Join(dir, "token"), PollInterval: Duration{250 * time.Millisecond}, KeyLifetime: Duration{48 * time.Hour}, Token: NewSecret(testToken),
		},
		Health: Health{Listen: "127.0.0.1:9090"},
		Policy: Policy{
			Repos:      []string{"https://github.com/acme/**", "git@host:acme/*"},
			Operations: []string{"plan", "apply", "destroy", "refresh"}, Approval: "destructive", AllowFile: true, PlainSensitive: true,
			Modules: []string{"registry.terraform.io/acme/*/*", "archive::https://mirror/**"}, Programs: []string{"/opt/acme/provision.sh"}, OldestTerraform: "0.14.0", OldestTofu: "1.6.0",
			Hook: []string{"/bin/true", "test", "-"}, HookTimeout: Duration{30 * time.Second},
		},
		Git: Git{CAFile: filepath.Join(dir, "ca.pem"), Timeout: Duration{30 * time.Second}, Hosts: GitHosts{
			"github.com": {AppID: "Iv1.23", AppInstallationID: "45", AppKeyFile: filepath.Join(dir, "token")},
			"git.example:8443": {
				TokenFile: filepath.Join(dir, "token"), Username: "oauth2", SSHKeyFile: filepath.Join(dir, "token"),
				KnownHostsFile: filepath.Join(dir, "ca.pem"), Repos: []string{"https://git.example:8443/modules/*"},
			},
		}},
		Engine: Engine{
			Kind: "tofu", Version: "1.9.0", Dir: dir,
			MirrorURL: "https://mirror.example.com/releases", PublicKeyFile: filepath.Join(dir, "ca.pem"),
			ProviderMirror: "https://mirror.example.com/providers/", ProviderDirect: true,
		},
		State: State{Default: "managed", Backend: "s3", Config: map[string]map[string]string{
			"s3": {"bucket": "acme-state", "key": "{workspace_id}/terraform.tfstate"},
		}},
		Manual: Manual{NotificationWebhook: "https://hooks.example.com/x", NotificationKind: "slack", SigningSecretFile: filepath.Join(dir, "token")},
		Run:    Run{Timeout: Duration{time.Hour}, CancelGrace: Duration{time.Minute}, DiskWait: Duration{45 * time.Second}, LogLimit: Size{1 << 30}, PassEnv: []string{"ACME_*"}, UIDs: "off", Launcher: Kubernetes, Timeouts: Timeouts{"plan": {30 * time.Minute}, "state": {5 * time.Minute}}},
		Jobs: Jobs{
			Namespace: "runs", Image: "tendril:1", ServiceAccount: "runner", PodFile: filepath.Join(dir, "ca.pem"), PodFiles: []string{"acme/**: /etc/hostname"}, StartTimeout: Duration{time.Minute},
			Lease: "writers", Kubeconfig: filepath.Join(dir, "kubeconfig"),
		},
		Cache: Cache{Limit: Size{2 << 40}, Keep: Duration{36 * time.Hour}},
	}
	want.Queue.from.token = want.Queue.TokenFile
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Load() = %+v, want %+v", got, want)
	}

	settings := got.Settings()
	wantSettings := job.Settings{
		Policy: job.Policy{Repos: want.Policy.Repos, AllowFile: true, PlainSensitive: true, Approval: provision.ApprovalDestructive, Operations: []provision.Operation{
			provision.OperationPlan, provision.OperationApply, provision.OperationDestroy, provision.OperationRefresh,
		}, Modules: want.Policy.Modules, Programs: want.Policy.Programs, Hook: want.Policy.Hook, HookTimeout: 30 * time.Second},
		Git: job.Git{CAFile: want.Git.CAFile, Timeout: 30 * time.Second},
		Engine: job.Engine{
			Kind: "tofu", Version: "1.9.0", Dir: dir, MirrorURL: want.Engine.MirrorURL, PublicKeyFile: want.Engine.PublicKeyFile,
			ProviderMirror: want.Engine.ProviderMirror, ProviderDirect: true, OldestTerraform: "0.14.0", OldestTofu: "1.6.0",
		},
		State:       job.State{Default: job.Managed, Backend: "s3", Config: want.State.Config},
		CancelGrace: time.Minute, Timeout: time.Hour, DiskWait: 45 * time.Second, LogLimit: 1 << 30,
		Timeouts: map[provision.Operation]time.Duration{provision.OperationPlan: 30 * time.Minute, provision.OperationState: 5 * time.Minute},
	}
	if !reflect.DeepEqual(settings, wantSettings) {
		t.Errorf("Settings() = %+v, want %+v", settings, wantSettings)
	}
}

func TestLoadReadsEveryKeyOfTheEnvironment(t *testing.T) {
	t.Parallel()
	// The file says otherwise everywhere: the environment wins.
	path := write(t, "tendril.toml", "name = \"file\"\nslots = 1\nlog_level = \"error\"\n[policy]\nrepos = [\"x\"]\n[engine]\ninstall = true\n"+
		"[state.config.s3]\nbucket = \"file\"\n[queue]\ntoken_file = \"/nowhere\"\n", 0o600)
	dir := t.TempDir()
	environ := []string{
		"TENDRIL_NAME=env", "TENDRIL_DATA_DIR=" + dir, "TENDRIL_SLOTS=64", "TENDRIL_DRAIN_TIMEOUT=1m30s",
		"TENDRIL_LOG_FORMAT=json", "TENDRIL_LOG_LEVEL=warn",
		"TENDRIL_QUEUE_URL=" + testURL, "TENDRIL_QUEUE_LISTEN_URL=" + testURL, "TENDRIL_QUEUE_TOKEN_FILE=/none", "TENDRIL_QUEUE_JOIN_TOKEN_FILE=", "TENDRIL_QUEUE_JOIN_SERVICE_ACCOUNT_TOKEN_FILE=",
		"TENDRIL_QUEUE_API_KEY=", "TENDRIL_QUEUE_CA_FILE=", "TENDRIL_QUEUE_ALLOW_HTTP=false",
		"TENDRIL_QUEUE_URL_FILE=/none", "TENDRIL_HEALTH_LISTEN=:9090",
		"TENDRIL_QUEUE_POLL_INTERVAL=1s", "TENDRIL_QUEUE_KEY_LIFETIME=0s", "TENDRIL_API_TOKEN=" + testToken,
		"TENDRIL_POLICY_REPOS=https://a/*, https://b/** ,", "TENDRIL_POLICY_OPERATIONS=plan,destroy", "TENDRIL_POLICY_APPROVAL=always", "TENDRIL_POLICY_ALLOW_FILE=1", "TENDRIL_POLICY_PLAIN_SENSITIVE=true",
		"TENDRIL_POLICY_OLDEST_TERRAFORM=1.9.0", "TENDRIL_POLICY_OLDEST_TOFU=1.8.0",
		"TENDRIL_POLICY_REQUESTER_KEYS=acme/*: age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
		"TENDRIL_POLICY_IDENTITY_CERTIFIERS=ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
		"TENDRIL_POLICY_COMMIT_REFS=refs/heads/main,refs/tags/**", "TENDRIL_POLICY_MODULES=**", "TENDRIL_POLICY_PROGRAMS=/opt/x", "TENDRIL_POLICY_CHECK_RANGES=10.0.0.0/8,2001:db8::/32", "TENDRIL_POLICY_HOOK=/bin/true,-x", "TENDRIL_POLICY_HOOK_TIMEOUT=9s",
		"TENDRIL_ENGINE_PROVIDER_MIRROR=" + dir, "TENDRIL_ENGINE_PROVIDER_DIRECT=true", "TENDRIL_RUN_TIMEOUTS=plan=30m, apply=90s",
		"TENDRIL_GIT_CA_FILE=", "TENDRIL_GIT_TIMEOUT=5s",
		"TENDRIL_GIT_HOSTS=git.example:8443.token_file=" + path + ", git.example:8443.repos=https://git.example:8443/a/*,git.example:8443.repos=https://git.example:8443/b/*,github.com.ssh_key_file=" + path,
		"TENDRIL_ENGINE_KIND=tofu", "TENDRIL_ENGINE_VERSION=1.9.0", "TENDRIL_ENGINE_DIR=" + dir, "TENDRIL_ENGINE_INSTALL=false",
		"TENDRIL_ENGINE_MIRROR_URL=http://m", "TENDRIL_ENGINE_PUBLIC_KEY_FILE=" + path,
		"TENDRIL_STATE_BACKEND=gcs", "TENDRIL_STATE_DEFAULT=managed", "TENDRIL_STATE_CONFIG=gcs.bucket=b=c, gcs.prefix=p,s3.key=k",
		"TENDRIL_RUN_TIMEOUT=2s", "TENDRIL_RUN_CANCEL_GRACE=3s", "TENDRIL_RUN_DISK_WAIT=4s", "TENDRIL_RUN_LOG_LIMIT=1536KiB", "TENDRIL_RUN_PASS_ENV=A,B_*", "TENDRIL_RUN_UIDS=70000", "TENDRIL_RUN_LAUNCHER=kubernetes",
		"TENDRIL_KUBERNETES_NAMESPACE=a", "TENDRIL_KUBERNETES_IMAGE=b", "TENDRIL_KUBERNETES_SERVICE_ACCOUNT=c", "TENDRIL_KUBERNETES_POD_FILE=" + path, "TENDRIL_KUBERNETES_POD_FILES=a/**: " + path, "TENDRIL_KUBERNETES_START_TIMEOUT=20s", "TENDRIL_KUBERNETES_LEASE=d", "TENDRIL_KUBERNETES_KUBECONFIG=/none",
		"TENDRIL_CACHE_LIMIT=0", "TENDRIL_CACHE_KEEP=1m", "TENDRIL_CACHE_MIN_FREE=512MiB", "TENDRIL_IDENTITY_FILE=/identity",
		"TENDRIL_MANUAL_NOTIFICATION_WEBHOOK=http://hooks", "TENDRIL_MANUAL_NOTIFICATION_KIND=slack", "TENDRIL_MANUAL_SIGNING_SECRET_FILE=/none",
		"TENDRIL_CREDENTIALS=a/**:env_file=" + path, "TENDRIL_CREDENTIALS_DEFAULT=true",
		`TENDRIL_POOLS=[{name = "a", kind = "static", machines = [{name = "m", address = "10.0.0.1"}]}]`,
		"TENDRIL_TEST_ANYTHING=1", "TENDRIL_CONFIG=" + path, "TENDRIL_QUEUE_LISTEN_URL_FILE=/none",
		"TENDRIL_SERVICE_HOST=10.0.0.1", "TENDRIL_PORT_8080_TCP_ADDR=10.0.0.1", "TENDRIL_AGENT_SERVICE_PORT_HTTP=80", "TENDRIL_PORT=tcp://10.0.0.1:80",
	}
	got, err := Load(path, environ)
	if err != nil {
		t.Fatalf("Load() error: %v", err)
	}
	want := Config{
		Name: "env", IdentityFile: "/identity", DataDir: dir, Slots: 64, DrainTimeout: Duration{90 * time.Second}, LogFormat: "json", LogLevel: slog.LevelWarn,
		Queue:  Queue{URL: testURL, URLFile: "/none", ListenURL: testURL, ListenURLFile: "/none", TokenFile: "/none", PollInterval: Duration{time.Second}, Token: NewSecret(testToken)},
		Health: Health{Listen: ":9090"},
		Policy: Policy{Repos: []string{"https://a/*", "https://b/**"}, Operations: []string{"plan", "destroy"}, Approval: "always", AllowFile: true, PlainSensitive: true,
			OldestTerraform: "1.9.0", OldestTofu: "1.8.0",
			RequesterKeys:      []string{"acme/*: age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"},
			IdentityCertifiers: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
			CommitRefs:         []string{"refs/heads/main", "refs/tags/**"}, Modules: []string{"**"}, Programs: []string{"/opt/x"}, CheckRanges: []string{"10.0.0.0/8", "2001:db8::/32"}, Hook: []string{"/bin/true", "-x"}, HookTimeout: Duration{9 * time.Second}},
		Git: Git{Timeout: Duration{5 * time.Second}, Hosts: GitHosts{
			"git.example:8443": {TokenFile: path, Repos: []string{"https://git.example:8443/a/*", "https://git.example:8443/b/*"}}, "github.com": {SSHKeyFile: path},
		}},
		Engine: Engine{Kind: "tofu", Version: "1.9.0", Dir: dir, MirrorURL: "http://m", PublicKeyFile: path, ProviderMirror: dir, ProviderDirect: true},
		State: State{Default: "managed", Backend: "gcs", Config: map[string]map[string]string{
			"gcs": {"bucket": "b=c", "prefix": "p"}, "s3": {"key": "k"},
		}},
		Manual: Manual{NotificationWebhook: "http://hooks", NotificationKind: "slack", SigningSecretFile: "/none"},
		Run:    Run{Timeout: Duration{2 * time.Second}, CancelGrace: Duration{3 * time.Second}, DiskWait: Duration{4 * time.Second}, LogLimit: Size{1536 << 10}, PassEnv: []string{"A", "B_*"}, UIDs: "70000", Launcher: Kubernetes, Timeouts: Timeouts{"plan": {30 * time.Minute}, "apply": {90 * time.Second}}},
		Jobs:   Jobs{Namespace: "a", Image: "b", ServiceAccount: "c", PodFile: path, PodFiles: []string{"a/**: " + path}, StartTimeout: Duration{20 * time.Second}, Lease: "d", Kubeconfig: "/none"},
		Cache:  Cache{Keep: Duration{time.Minute}, MinFree: Size{512 << 20}},

		Credentials: Credentials{{Workspace: "a/**", EnvFile: path}}, CredentialsDefault: true,
		Pools: Pools{{Name: "a", Kind: "static", Machines: []PoolMachine{{Name: "m", Address: "10.0.0.1"}}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Load() = %+v, want %+v", got, want)
	}
	for _, k := range keys() {
		if !slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, k.env()+"=") }) {
			t.Errorf("the test does not set %s", k.env())
		}
	}
}

func TestLoadDefaults(t *testing.T) {
	t.Parallel()
	got, err := Load("", minimal())
	if err != nil {
		t.Fatalf("Load() error: %v", err)
	}
	want := Default()
	want.Name, want.Queue.URL, want.Queue.Token = "host-1", testURL, NewSecret(testToken)
	want.DataDir = defaultDataDir(environment{"HOME": "/home/ada"}, os.Geteuid())
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Load(nothing) = %+v, want %+v", got, want)
	}
	if got.Queue.PollInterval.Duration != 0 {
		t.Errorf("Load(nothing) poll interval = %s, want none: what the database advises counts then", got.Queue.PollInterval)
	}
}

func TestDefaultDataDir(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		uid  int
		env  environment
		want string
	}{
		{0, environment{"HOME": "/root", "XDG_STATE_HOME": "/x"}, "/var/lib/tendril"},
		{1000, environment{"HOME": "/home/ada"}, "/home/ada/.local/state/tendril"},
		{1000, environment{"HOME": "/home/ada", "XDG_STATE_HOME": "/x"}, "/x/tendril"},
		{1000, environment{"HOME": "/home/ada", "XDG_STATE_HOME": "x"}, "/home/ada/.local/state/tendril"},
		{1000, environment{}, ""},
	} {
		if got := defaultDataDir(tc.env, tc.uid); got != tc.want {
			t.Errorf("defaultDataDir(%v, %d) = %q, want %q", tc.env, tc.uid, got, tc.want)
		}
	}
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode    os.FileMode
		content string
		want    string // part of the one problem; "" for none
	}{
		{0o600, testToken + "\n", ""},
		{0o440, testToken, ""},
		{0o644, testToken, "others may read it (mode 0644); run: chmod o= "},
		{0o601, testToken, "others may read it (mode 0601)"},
		{0o600, "", "does not hold a cluster's token"},
		{0o600, "sb_secret_abc", "does not hold a cluster's token"},
		{0o600, testToken + "\n" + testToken, "does not hold a cluster's token"},
	} {
		path := write(t, "token", tc.content, tc.mode)
		got, err := Load("", []string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_QUEUE_URL=" + testURL, "TENDRIL_QUEUE_TOKEN_FILE=" + path})
		if tc.want == "" {
			if err != nil || got.Queue.Token.Reveal() != testToken {
				t.Errorf("Load(token file %04o %q) token = %q, %v, want %q", tc.mode, tc.content, got.Queue.Token.Reveal(), err, testToken)
			}
			continue
		}
		invalid, ok := errors.AsType[*Invalid](err)
		if !ok || len(invalid.Problems) != 1 || !strings.Contains(invalid.Problems[0], tc.want) {
			t.Errorf("Load(token file %04o %q) error = %v, want one problem with %q", tc.mode, tc.content, err, tc.want)
		}
		if tc.content != "" && strings.Contains(err.Error(), tc.content) {
			t.Errorf("Load(token file %04o %q) error = %v, want one without the content", tc.mode, tc.content, err)
		}
	}
}

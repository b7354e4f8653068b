package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadNamesEveryUnknownKey(t *testing.T) {
	t.Parallel()
	path := write(t, "tendril.toml", `slotz = 3
poll_interval = "5s"
[queue]
token = "tnd_secret"
urll = "x"
[quue]
url = "x"
[engine]
flavour = "x"
[run]
slots = 3
`, 0o600)
	_, err := Load(path, minimal("TENDRIL_SLOT=3", "TENDRIL_POLL_INTERVAL=5s"))
	wantProblems(t, "Load(unknown keys)", err,
		path+`:1: slotz: unknown key; did you mean "slots"?`,
		path+`:2: poll_interval: unknown key; did you mean "queue.poll_interval"?`,
		path+`:4: queue.token: a token does not belong in this file; put it in a file of its own, named by queue.token_file, or in the environment as TENDRIL_API_TOKEN`,
		path+`:5: queue.urll: unknown key; did you mean "queue.url"?`,
		path+`:6: quue: unknown key; did you mean "queue"?`,
		path+`:9: engine.flavour: unknown key; known: engine.dir, engine.install, engine.kind, engine.mirror_url, engine.provider_direct, engine.provider_mirror, engine.public_key_file, engine.version`,
		path+`:11: run.slots: unknown key; did you mean "slots"?`,
		`TENDRIL_POLL_INTERVAL: unknown environment variable; did you mean "TENDRIL_QUEUE_POLL_INTERVAL"?`,
		`TENDRIL_SLOT: unknown environment variable; did you mean "TENDRIL_SLOTS"?`,
	)
	if strings.Contains(err.Error(), "tnd_secret") {
		t.Errorf("Load(a token in the file) error = %v, want one without the token", err)
	}
}

func TestLoadRefusesWrongTypes(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"slots = \"many\"":                  `:1: slots: must be a number from 1 to 64`,
		"\ndrain_timeout = 10":              `: drain_timeout = 10: must be a duration from 0s to 24h, in quotes`,
		"[git]\ntimeout = 1.5":              `: git.timeout = 1.5: must be a duration from 1s to 1h, in quotes`,
		"[run]\nlog_limit = 67108864":       `: run.log_limit = 67108864: must be a size from 1MiB to 4GiB, in quotes`,
		"[run]\nlog_limit = \"64 MB\"":      `:2: run.log_limit: must be a size from 1MiB to 4GiB`,
		"[run]\nlog_limit = \"-1MiB\"":      `:2: run.log_limit: must be a size from 1MiB to 4GiB`,
		"drain_timeout = \"10\"":            `:1: drain_timeout: must be a duration from 0s to 24h`,
		"log_level = \"loud\"":              `:1: log_level: must be debug, info, warn or error`,
		"[policy]\nrepos = \"x\"":           `:2: policy.repos: must be patterns of repository URLs without white space`,
		"[policy]\nallow_file = \"yes\"":    `:2: policy.allow_file: must be true or false`,
		"[state.config]\ns3 = \"x\"":        `:2: state.config.s3: must be tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…`,
		"[state.config.s3]\nencrypt = true": `:2: state.config.s3.encrypt: must be tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…`,
		"name = \"a\"\nname = \"b\"":        `:2: name: must be 1 to 100 letters, digits, and . _ -, a letter or digit first`,
	} {
		path := write(t, "tendril.toml", content, 0o600)
		_, err := Load(path, minimal())
		wantProblems(t, fmt.Sprintf("Load(%q)", content), err, path+want)
	}
}

func TestLoadTellsAllThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	path := write(t, "tendril.toml", `
name = "two words"
data_dir = "~/tendril"
slots = 0
drain_timeout = "-1s"
log_format = "xml"
[queue]
url = "mysql://root:hunter2@db/x"
listen_url = "https://project.supabase.co"
token_file = "/does/not/exist"
poll_interval = "1ms"
[policy]
repos = ["https://a b"]
operations = ["apply", "explode"]
approval = "sometimes"
modules = ["git::https://a b"]
check_ranges = ["10.0.0.1"]
identity_certifiers = ["age1q"]
programs = ["provision.sh"]
hook = ["conftest", "test"]
hook_timeout = "2h"
oldest_terraform = "0.13.7"
oldest_tofu = "1.6"
[git]
ca_file = "/does/not/exist"
timeout = "2h"
[engine]
kind = "pulumi"
version = ">= 1.5"
dir = "/does/not/exist"
mirror_url = "ftp://x"
provider_mirror = "https://bob:hunter2@x/"
public_key_file = "/does/not/exist"
[state]
backend = "S3!"
[state.config."x y"]
secret = "hunter2"
[run]
timeout = "0s"
cancel_grace = "0s"
timeouts = {plan = "30m", explode = "1h"}
log_limit = "1023KiB"
pass_env = ["ACME_*", "TF_VAR_x"]
uids = "0"
[manual]
notification_webhook = "hooks.example/hunter2"
notification_kind = "teams"
[cache]
limit = "1KiB"
keep = "721h"
min_free = "65TiB"
`, 0o600)
	_, err := Load(path, []string{"HOME=/home/ada"})
	wantProblems(t, "Load()", err,
		`name = "two words": must be 1 to 100 letters, digits, and . _ -, a letter or digit first`,
		`data_dir = "~/tendril": must be a path that does not begin with ~`,
		`slots = "0": must be a number from 1 to 64`,
		`drain_timeout = "-1s": must be a duration from 0s to 24h`,
		`log_format = "xml": must be text or json`,
		`queue.url: must be `+queueURLs,
		`queue.listen_url: must be postgres://USER:PASSWORD@HOST/DATABASE, off, or nothing`,
		`queue.poll_interval = "1ms": must be a duration from 100ms to 10m, or 0s for what the database advises`,
		`policy.repos = "https://a b": must be patterns of repository URLs without white space`,
		`policy.operations = "apply,explode": must be some of plan, apply, destroy, refresh, power, unlock, state and inspect`,
		`policy.approval = "sometimes": must be never, destructive or always`,
		`policy.identity_certifiers = "age1q": must be public keys ssh-ed25519 AAAA…`,
		`policy.modules = "git::https://a b": must be `+moduleSources,
		`policy.check_ranges = "10.0.0.1": must be prefixes of IP addresses, such as 10.0.0.0/8`,
		`policy.programs = "provision.sh": must be absolute paths`,
		`policy.oldest_terraform = "0.13.7": must be one exact version, 0.14.0 or newer`,
		`policy.oldest_tofu = "1.6": must be one exact version, 1.6.0 or newer`,
		`policy.hook_timeout = "2h": must be a duration from 1s to 1h`,
		`git.ca_file = "/does/not/exist": must be a readable file of PEM certificates, or nothing`,
		`git.timeout = "2h": must be a duration from 1s to 1h`,
		`engine.kind = "pulumi": must be terraform or tofu`,
		`engine.version = ">= 1.5": must be one exact version such as 1.11.4, or nothing`,
		`engine.dir = "/does/not/exist": must be a directory that exists, or nothing`,
		`engine.mirror_url = "ftp://x": must be an https:// or http:// URL, or nothing`,
		`engine.public_key_file = "/does/not/exist": must be a readable file, or nothing`,
		`engine.provider_mirror: must be an https:// URL without user, password or query, the absolute path of a directory, or nothing`,
		`state.backend = "S3!": must be the name of a Terraform backend, managed, or nothing`,
		`state.config: must be tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…`,
		`run.timeout = "0s": must be a duration from 1s to 168h`,
		`run.timeouts = "explode=1h,plan=30m": must be a table of durations from 1s to 168h by operation, or in the environment OPERATION=DURATION,…`,
		`run.cancel_grace = "0s": must be a duration from 1s to 1h`,
		`run.log_limit = "1023KiB": must be a size from 1MiB to 4GiB`,
		`run.pass_env = "ACME_*,TF_VAR_x": must be names of environment variables, with * at most at the end; never `+neverPassed,
		`run.uids = "0": must be auto, off, or a number from 1000 to 4294000000`,
		`manual.notification_webhook: must be an https:// or http:// URL, or nothing`,
		`manual.notification_kind = "teams": must be generic or slack`,
		`cache.limit = "1KiB": must be a size from 64MiB to 64TiB, or 0 for none`,
		`cache.keep = "721h": must be a duration from 0s to 720h`,
		`cache.min_free = "65TiB": must be a size from 64MiB to 64TiB, or 0 for none`,
		`policy.hook: "conftest" is no absolute path`,
		`queue.token_file = "/does/not/exist": cannot be read: stat /does/not/exist: no such file or directory`,
	)
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Load() error = %v, want one without the password", err)
	}
}

func TestLoadTellsAllOfTheEnvironment(t *testing.T) {
	t.Parallel()
	_, err := Load("", []string{
		"HOME=/home/ada", "TENDRIL_NAME=a", "TENDRIL_SLOTS=many", "TENDRIL_DRAIN_TIMEOUT=soon", "TENDRIL_POLICY_ALLOW_FILE=perhaps",
		"TENDRIL_QUEUE_URL=https://project.supabase.co/?apikey=hunter2", "TENDRIL_STATE_CONFIG=bucket=hunter2", "TENDRIL_STATE_DEFAULT=remote",
		"TENDRIL_GIT_TIMEOUT=0s", "TENDRIL_API_TOKEN=hunter2",
	})
	wantProblems(t, "Load()", err,
		`slots (TENDRIL_SLOTS="many"): must be a number from 1 to 64`,
		`drain_timeout (TENDRIL_DRAIN_TIMEOUT="soon"): must be a duration from 0s to 24h`,
		`policy.allow_file (TENDRIL_POLICY_ALLOW_FILE="perhaps"): must be true or false`,
		`state.config (TENDRIL_STATE_CONFIG): must be tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…`,
		`queue.url (TENDRIL_QUEUE_URL): must be `+queueURLs,
		`git.timeout (TENDRIL_GIT_TIMEOUT="0s"): must be a duration from 1s to 1h`,
		`state.default (TENDRIL_STATE_DEFAULT="remote"): must be local or managed`,
		`TENDRIL_API_TOKEN: does not hold a cluster's token, which begins with tnd_ and is one word`,
	)
}

func TestLoadAsksForWhatHasNoDefault(t *testing.T) {
	t.Parallel()
	_, err := Load("", []string{"HOME=/home/ada", "TENDRIL_NAME=a"})
	wantProblems(t, "Load(nothing)", err,
		"queue.url: missing; set it, or TENDRIL_QUEUE_URL, to "+queueURLs,
		"queue.token_file: missing, and this agent has not joined a cluster by key: run tendril join URL, name a file with a join token by queue.join_token_file, or set TENDRIL_API_TOKEN",
	)
}

func TestLoadWithoutTheFile(t *testing.T) {
	t.Parallel()
	_, err := Load(filepath.Join(t.TempDir(), "none.toml"), minimal())
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load(no file) error = %v, want os.ErrNotExist", err)
	}
}

package config

import (
	"encoding"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/policyhook"
)

// key is one setting: the only place that says its name, where it lives, what
// may stand there and what it is for.
type key struct {
	name    string // as in TOML, dotted
	allowed string // completes "must be …"
	about   string
	field   func(*Config) any
	// check reports whether the value is allowed; nil allows all that parse.
	check func(Config) bool
	// usually replaces the default's text where it depends on the machine.
	usually string
	path    bool // a file or directory; relative ones in TOML start at the file
	hidden  bool // its value may be a secret, so messages leave it out
}

// env is the key's twin in the environment.
func (k key) env() string {
	return "TENDRIL_" + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

// keys lists every setting in the order of the reference.
func keys() []key {
	return []key{
		{name: "name", allowed: "1 to 100 letters, digits, and . _ -, a letter or digit first",
			about: "What the agent calls itself in the console and in logs.", usually: "the host's name",
			field: func(c *Config) any { return &c.Name }, check: func(c Config) bool { return agentName(c.Name) }},
		{name: "data_dir", allowed: "a path that does not begin with ~", path: true,
			about:   "Spools, work directories, caches and local state. Two agents never share one.",
			usually: "`/var/lib/tendril` as root, else `$XDG_STATE_HOME/tendril` or `~/.local/state/tendril`",
			field:   func(c *Config) any { return &c.DataDir }, check: func(c Config) bool { return plainPath(c.DataDir) }},
		{name: "slots", allowed: "a number from 1 to 64",
			about: "How many provisions run at once. Only one does where `policy.hook` or `policy.approval` is set and runs have no uids of their own (`run.uids`): they could reach each other.",
			field: func(c *Config) any { return &c.Slots }, check: func(c Config) bool { return 1 <= c.Slots && c.Slots <= 64 }},
		{name: "drain_timeout", allowed: "a duration from 0s to 24h",
			about: "How long running provisions may go on after SIGTERM before they are ended.",
			field: func(c *Config) any { return &c.DrainTimeout }, check: func(c Config) bool { return c.DrainTimeout.within(0, 24*time.Hour) }},
		{name: "identity_file", allowed: "a path, or nothing", path: true,
			about: "A file with age identities, the current one first, that all agents of a cluster share; not readable by others. Read again at each heartbeat. Without it the agent makes one of its own in `data_dir`.",
			field: func(c *Config) any { return &c.IdentityFile }},
		{name: "log_format", allowed: "text or json",
			about: "How the agent writes its own log.",
			field: func(c *Config) any { return &c.LogFormat }, check: func(c Config) bool { return oneOf(c.LogFormat, "text", "json") }},
		{name: "log_level", allowed: "debug, info, warn or error",
			about: "The least important level that the agent's own log shows.",
			field: func(c *Config) any { return &c.LogLevel }},

		{name: "queue.url", allowed: queueURLs, hidden: true,
			about: "Where the queue is; without it and `queue.url_file`, `SUPABASE_URL` says. Required.",
			field: func(c *Config) any { return &c.Queue.URL }, check: func(c Config) bool { return postgresURL(c.Queue.URL) || rpcURL(c.Queue.URL) }},
		{name: "queue.url_file", allowed: "a path, or nothing", path: true,
			about: "A file with that URL, for one with a password; not readable by others. Read again for each connection, so that a password may be changed without a restart. `TENDRIL_QUEUE_URL` beats it.",
			field: func(c *Config) any { return &c.Queue.URLFile }},
		{name: "queue.api_key", allowed: "one word without spaces, or nothing", hidden: true,
			about: "The public (publishable or anon) key of a Supabase project, where `queue.url` is https; without it `SUPABASE_ANON_KEY` says.",
			field: func(c *Config) any { return &c.Queue.APIKey },
			check: func(c Config) bool { return !strings.ContainsFunc(c.Queue.APIKey, notVisible) }},
		{name: "queue.ca_file", allowed: "a readable file of PEM certificates, or nothing", path: true,
			about: "Certificates trusted for an https `queue.url` beside the system's.",
			field: func(c *Config) any { return &c.Queue.CAFile }, check: func(c Config) bool { return c.Queue.CAFile == "" || pemFile(c.Queue.CAFile) }},
		{name: "queue.allow_http", allowed: "true or false",
			about: "Permit `http://` to other machines: anyone who can read the traffic then has the cluster's credential.",
			field: func(c *Config) any { return &c.Queue.AllowHTTP }},
		{name: "queue.listen_url", allowed: listenURLs, hidden: true,
			about: "A session connection for LISTEN, where `queue.url` goes through a transaction-mode pooler; `off` has the agent poll only.",
			field: func(c *Config) any { return &c.Queue.ListenURL },
			check: func(c Config) bool { return oneOf(c.Queue.ListenURL, "", "off") || postgresURL(c.Queue.ListenURL) }},
		{name: "queue.listen_url_file", allowed: "a path, or nothing", path: true,
			about: "A file with `queue.listen_url`, as `queue.url_file` is one with `queue.url`. `TENDRIL_QUEUE_LISTEN_URL` beats it.",
			field: func(c *Config) any { return &c.Queue.ListenURLFile }},
		{name: "queue.token_file", allowed: "a path, or nothing", path: true,
			about: "A file with the cluster's token, not readable by others. Read again at each heartbeat, so that a token may be rotated without a restart. `TENDRIL_API_TOKEN`, the token itself, beats it. One of them is required.",
			field: func(c *Config) any { return &c.Queue.TokenFile }},
		{name: "queue.poll_interval", allowed: "a duration from 100ms to 10m, or 0s for what the database advises",
			about: "How often the queue is asked without having been woken; varied a little each time.", usually: "the database's advice",
			field: func(c *Config) any { return &c.Queue.PollInterval },
			check: func(c Config) bool {
				return c.Queue.PollInterval.Duration == 0 || c.Queue.PollInterval.within(100*time.Millisecond, 10*time.Minute)
			}},

		{name: "health.listen", allowed: "HOST:PORT or :PORT with a port from 0 to 65535, or nothing",
			about: "Where `/healthz`, `/readyz` and `/metrics` are served, in the clear and to all who reach the port; port 0 is any that is free. Without it the agent opens no port.",
			field: func(c *Config) any { return &c.Health.Listen }, check: func(c Config) bool { return c.Health.Listen == "" || listenAddress(c.Health.Listen) }},

		{name: "policy.repos", allowed: "patterns of repository URLs without white space",
			about: "Repositories that templates may come from; `*` stands for one path segment, `**` for any number. None listed, none allowed.",
			field: func(c *Config) any { return &c.Policy.Repos }, check: func(c Config) bool { return every(c.Policy.Repos, repoPattern) }},
		{name: "policy.operations", allowed: "some of plan, apply, destroy, refresh, unlock, state and inspect",
			about: "What provisions may do here. By default all but `state`, which hands out and replaces whole states, and `unlock`.",
			field: func(c *Config) any { return &c.Policy.Operations },
			check: func(c Config) bool { return len(c.Policy.Operations) > 0 && every(c.Policy.Operations, knownOperation) }},
		{name: "policy.approval", allowed: "never, destructive or always",
			about: "When a plan must be approved before it is applied here, at least; snapshot, template and cluster may want it oftener. `destructive`: when it destroys, replaces or forgets something.",
			field: func(c *Config) any { return &c.Policy.Approval },
			check: func(c Config) bool { return oneOf(c.Policy.Approval, "never", "destructive", "always") }},
		{name: "policy.allow_file", allowed: "true or false",
			about: "Permit `file://` repositories, still subject to `policy.repos`.",
			field: func(c *Config) any { return &c.Policy.AllowFile }},
		{name: "policy.plain_sensitive", allowed: "true or false",
			about: "Accept plain values for variables that a template declares sensitive, rather than sealed ones only. They then stand in the database, for all who may see the provision.",
			field: func(c *Config) any { return &c.Policy.PlainSensitive }},
		{name: "policy.commit_refs", allowed: "patterns that begin with refs/heads/ or refs/tags/",
			about: "Branches and tags from which a commit must be reachable when a snapshot names a commit instead of a tag, such as `refs/heads/main`; `*` stands for one segment, `**` for any number. Without it, all branches and tags.",
			field: func(c *Config) any { return &c.Policy.CommitRefs }, check: func(c Config) bool { return every(c.Policy.CommitRefs, commitRef) }},
		{name: "policy.requester_keys", allowed: "entries [WORKSPACES: ]KEY, where KEY is age1…, ssh-ed25519 AAAA…, authority SHA256:…, revoked ID or the absolute path of a file with such lines",
			about: "People to whom this agent seals sensitive outputs and pulled states, and whose signed orders may push a state or roll one back. `WORKSPACES` is a pattern as in `credentials`, `acme/**` or `acme/prod id=UUID`; without one the entry is for all. `age1…` may be sealed to; `ssh-ed25519 …` may also give orders; `authority` makes certificates count that this key issued (`trellis keys certify`), `revoked` takes a certificate or a key back. Files are read again for each run; others must not be able to write them. None listed, nothing is handed out.",
			field: func(c *Config) any { return &c.Policy.RequesterKeys }},
		{name: "policy.modules", allowed: moduleSources,
			about: "Where modules may come from beside what `policy.repos` and the `repos` of a git host allow and the checkout itself: repository URLs as in `policy.repos`, modules of a registry as `HOST/NAMESPACE/NAME/PROVIDER`, and `archive::URL`, `s3::URL`, `gcs::URL` and `hg::URL` for what is not fetched by git; `*` and `**` as there. `**` alone allows everything.",
			field: func(c *Config) any { return &c.Policy.Modules }, check: func(c Config) bool { return every(c.Policy.Modules, repoPattern) }},
		{name: "policy.oldest_terraform", allowed: "one exact version, 0.14.0 or newer",
			about: "Older versions of Terraform are not run, whatever a snapshot or a template asks for. Before 0.14 there is no lock file, so nothing says which providers a template gets.",
			field: func(c *Config) any { return &c.Policy.OldestTerraform },
			check: func(c Config) bool { return atLeast(c.Policy.OldestTerraform, firstTerraform) }},
		{name: "policy.oldest_tofu", allowed: "one exact version, 1.6.0 or newer",
			about: "The same for OpenTofu, whose first version was 1.6.0.",
			field: func(c *Config) any { return &c.Policy.OldestTofu },
			check: func(c Config) bool { return atLeast(c.Policy.OldestTofu, firstTofu) }},
		{name: "policy.hook", allowed: "the absolute path of a program that the agent may execute, and its arguments, or nothing",
			about: "Run after every plan, without a shell, with the plan's JSON on its stdin (`terraform show -json`; conftest, opa or your own): unless it exits with 0, the run fails as `policy_refused` and nothing is applied. It runs in an empty directory, which is its `HOME` and `TMPDIR`, and gets `TENDRIL_WORKSPACE`, `TENDRIL_OPERATION`, `TENDRIL_PROVISION`, no credentials, and as `PATH` always `" + policyhook.SearchPath + "`. Whoever runs templates must not be able to write to the program, to its arguments that are paths, or to these directories.",
			field: func(c *Config) any { return &c.Policy.Hook }},
		{name: "policy.hook_timeout", allowed: "a duration from 1s to 1h",
			about: "How long the hook may take; then it counts as a refusal.",
			field: func(c *Config) any { return &c.Policy.HookTimeout }, check: func(c Config) bool { return c.Policy.HookTimeout.within(time.Second, time.Hour) }},

		{name: "git.ca_file", allowed: "a readable file of PEM certificates, or nothing", path: true,
			about: "Certificates trusted for git servers beside the system's.",
			field: func(c *Config) any { return &c.Git.CAFile }, check: func(c Config) bool { return c.Git.CAFile == "" || pemFile(c.Git.CAFile) }},
		{name: "git.timeout", allowed: "a duration from 1s to 1h",
			about: "The longest that one exchange with a git server may take.",
			field: func(c *Config) any { return &c.Git.Timeout }, check: func(c Config) bool { return c.Git.Timeout.within(time.Second, time.Hour) }},
		{name: "git.hosts", allowed: "tables named after hosts, with values in quotes, or in the environment HOST.KEY=VALUE,…",
			about: "`[git.hosts.\"HOST\"]` has the credentials for that git server: " + gitHostKeys + ".",
			field: func(c *Config) any { return &c.Git.Hosts }},

		{name: "engine.kind", allowed: "terraform or tofu",
			about: "The engine for snapshots that name none.",
			field: func(c *Config) any { return &c.Engine.Kind }, check: func(c Config) bool { return oneOf(c.Engine.Kind, "terraform", "tofu") }},
		{name: "engine.version", allowed: "one exact version such as 1.11.4, or nothing",
			about: "The version for snapshots that name none; without it, whichever is found.",
			field: func(c *Config) any { return &c.Engine.Version }, check: func(c Config) bool { return exactOrNone(c.Engine.Version) }},
		{name: "engine.dir", allowed: "a directory that exists, or nothing", path: true,
			about: "Searched for engines before `PATH`.",
			field: func(c *Config) any { return &c.Engine.Dir }, check: func(c Config) bool { return c.Engine.Dir == "" || directory(c.Engine.Dir) }},
		{name: "engine.install", allowed: "true or false",
			about: "Download an engine that is not found.",
			field: func(c *Config) any { return &c.Engine.Install }},
		{name: "engine.mirror_url", allowed: "an https:// or http:// URL, or nothing",
			about: "Replaces the vendor's release server.",
			field: func(c *Config) any { return &c.Engine.MirrorURL }, check: func(c Config) bool { return c.Engine.MirrorURL == "" || webURL(c.Engine.MirrorURL) }},
		{name: "engine.public_key_file", allowed: "a readable file, or nothing", path: true,
			about: "An ASCII-armoured key that replaces the vendor's signing key.",
			field: func(c *Config) any { return &c.Engine.PublicKeyFile },
			check: func(c Config) bool { return c.Engine.PublicKeyFile == "" || regularFile(c.Engine.PublicKeyFile) }},
		{name: "engine.provider_mirror", hidden: true, allowed: "an https:// URL without user, password or query, the absolute path of a directory, or nothing",
			about: "A network mirror, or a directory that is a filesystem mirror, from which engines get all providers, instead of the registries. It replaces an operator's own `TF_CLI_CONFIG_FILE`.",
			field: func(c *Config) any { return &c.Engine.ProviderMirror },
			check: func(c Config) bool { return providerMirror(c.Engine.ProviderMirror) }},
		{name: "engine.provider_direct", allowed: "true or false",
			about: "Permit the registries beside `engine.provider_mirror`.",
			field: func(c *Config) any { return &c.Engine.ProviderDirect }},

		{name: "state.default", allowed: "local or managed",
			about: "Where the state of a template is that declares no backend: `local`, a file of this agent's, so that no other can run the workspace, or `managed`, sealed, in the database. A file that is there is taken over.",
			field: func(c *Config) any { return &c.State.Default },
			check: func(c Config) bool { return c.State.Default == "local" || c.State.Default == job.Managed }},
		{name: "state.backend", allowed: "the name of a Terraform backend, managed, or nothing",
			about: "Replaces whatever backend a template declares; `managed` is as for `state.default`.",
			field: func(c *Config) any { return &c.State.Backend }, check: func(c Config) bool { return c.State.Backend == "" || backendName(c.State.Backend) }},
		{name: "state.config", allowed: "tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…", hidden: true,
			about: "`[state.config.TYPE]` completes a backend of that type; `{workspace_id}` stands for the workspace's id.",
			field: func(c *Config) any { return &c.State.Config },
			check: func(c Config) bool {
				return every(slices.Collect(maps.Keys(c.State.Config)), backendName)
			}},

		{name: "run.timeout", allowed: "a duration from 1s to 168h",
			about: "The longest that one provision may take.",
			field: func(c *Config) any { return &c.Run.Timeout }, check: func(c Config) bool { return c.Run.Timeout.within(time.Second, 168*time.Hour) }},
		{name: "run.timeouts", allowed: "a table of durations from 1s to 168h by operation, or in the environment OPERATION=DURATION,…",
			about: "The longest that one operation may take, where it is not `run.timeout`: `timeouts = {plan = \"30m\"}`. A snapshot's `timeout_seconds` may be less, never more.",
			field: func(c *Config) any { return &c.Run.Timeouts }, check: func(c Config) bool { return c.Run.Timeouts.valid() }},
		{name: "run.cancel_grace", allowed: "a duration from 1s to 1h",
			about: "How long an engine that is told to end may take before it is killed.",
			field: func(c *Config) any { return &c.Run.CancelGrace }, check: func(c Config) bool { return c.Run.CancelGrace.within(time.Second, time.Hour) }},
		{name: "run.disk_wait", allowed: "a duration from 0s to 1h",
			about: "How long a run whose output does not fit on a full disk waits for room before it is told to end.",
			field: func(c *Config) any { return &c.Run.DiskWait }, check: func(c Config) bool { return c.Run.DiskWait.within(0, time.Hour) }},
		{name: "run.log_limit", allowed: "a size from 1MiB to 4GiB",
			about: "The most text kept of a provision's log. Up to half of it nothing is left out; of what is printed beyond that, samples while the run goes on and, whole, the end.",
			field: func(c *Config) any { return &c.Run.LogLimit }, check: func(c Config) bool { return c.Run.LogLimit.within(1<<20, 4<<30) }},
		{name: "run.pass_env", allowed: "names of environment variables, with * at most at the end; never " + neverPassed,
			about: "Variables handed to Terraform besides the usual ones (cloud credentials, proxies, `PATH`, `HOME`).",
			field: func(c *Config) any { return &c.Run.PassEnv }, check: func(c Config) bool { return every(c.Run.PassEnv, passable) }},
		{name: "run.uids", allowed: "auto, off, or a number from 1000 to 4294000000",
			about: "For an agent started as root: the first of 65 uids that no user of the machine has, of which runs get one each; `auto` finds them. `off` runs templates as root, with everything that root can read.",
			field: func(c *Config) any { return &c.Run.UIDs }, check: func(c Config) bool { return uidRange(c.Run.UIDs) }},

		{name: "cache.limit", allowed: "a size from 64MiB to 64TiB, or 0 for none",
			about: "How much on the disk mirrors of repositories, provider packages, downloaded engines, and the modules in work directories may take together. Beyond it, what was used longest ago is removed, and fetched again when it is wanted.",
			field: func(c *Config) any { return &c.Cache.Limit },
			check: func(c Config) bool { return c.Cache.Limit.Bytes == 0 || c.Cache.Limit.within(64<<20, 64<<40) }},
		{name: "cache.keep", allowed: "a duration from 0s to 720h",
			about: "What was used within that time is not removed from the caches, nor what a run is using.",
			field: func(c *Config) any { return &c.Cache.Keep }, check: func(c Config) bool { return c.Cache.Keep.within(0, 720*time.Hour) }},
		{name: "cache.min_free", allowed: "a size from 64MiB to 64TiB, or 0 for none",
			about: "With less than this free on the disk, or hardly any inodes, the caches are cleaned before a run begins, whatever their limit.",
			field: func(c *Config) any { return &c.Cache.MinFree },
			check: func(c Config) bool { return c.Cache.MinFree.Bytes == 0 || c.Cache.MinFree.within(64<<20, 64<<40) }},

		{name: "credentials", allowed: "tables with values in quotes, or in the environment PATTERN:KEY=VALUE,…",
			about: "`[[credentials]]` tables say what runs sign in to clouds with, by workspace; the first that matches counts, and no run gets anything of another: " + credentialKeys +
				". Once there is one, the agent's own cloud credentials reach no run; `run.pass_env` still reaches all.",
			field: func(c *Config) any { return &c.Credentials }},
		{name: "credentials_default", allowed: "true or false",
			about: "Where `credentials` are configured: whether runs of workspaces that none matches get the agent's own cloud credentials.",
			field: func(c *Config) any { return &c.CredentialsDefault }},
	}
}

// set reads an environment variable's text into the key's field.
func (k key) set(c *Config, text string) error {
	var err error
	switch field := k.field(c).(type) {
	case *string:
		*field = text
	case *int:
		*field, err = strconv.Atoi(text)
	case *bool:
		*field, err = strconv.ParseBool(text)
	case *[]string:
		*field = splitList(text)
	case *map[string]map[string]string:
		*field, err = splitTables(text)
	case encoding.TextUnmarshaler:
		err = field.UnmarshalText([]byte(text))
	default:
		err = fmt.Errorf("key %s has a field of type %T", k.name, field)
	}
	return err
}

// text writes the key's value as the environment would.
func (k key) text(c Config) string {
	switch field := k.field(&c).(type) {
	case *string:
		return *field
	case *int:
		return strconv.Itoa(*field)
	case *bool:
		return strconv.FormatBool(*field)
	case *[]string:
		return strings.Join(*field, ",")
	case *Duration:
		return shortDuration(*field)
	case *Size:
		return field.String()
	case *Timeouts:
		return field.String()
	case *slog.Level:
		return strings.ToLower(field.String())
	default:
		return ""
	}
}

// shortDuration is Duration.String without the zeros at its end: 2h, not 2h0m0s.
func shortDuration(d Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func splitList(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// splitTables reads TYPE.KEY=VALUE,… into one table a type.
func splitTables(text string) (map[string]map[string]string, error) {
	tables := map[string]map[string]string{}
	for _, part := range splitList(text) {
		name, value, ok := strings.Cut(part, "=")
		table, key, dotted := strings.Cut(name, ".")
		if !ok || !dotted || table == "" || key == "" {
			return nil, fmt.Errorf("no TYPE.KEY=VALUE")
		}
		if tables[table] == nil {
			tables[table] = map[string]string{}
		}
		tables[table][key] = value
	}
	return tables, nil
}

package config

import (
	"encoding"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/policyhook"
	"github.com/tendril-run/tendril/internal/webhook"
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
	path    bool   // a file or directory; relative ones in TOML start at the file
	hidden  bool   // its value may be a secret, so messages leave it out
	since   string // the release that brought it; empty for the first one
}

// env is the key's twin in the environment.
func (k key) env() string {
	return "TENDRIL_" + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

// keys lists every setting in the order of the reference.
func keys() []key {
	return []key{
		{name: "name", allowed: "1 to 100 letters, digits, and . _ -, a letter or digit first",
			about: "The agent's name in the console and in logs.", usually: "the host's name",
			field: func(c *Config) any { return &c.Name }, check: func(c Config) bool { return agentName(c.Name) }},
		{name: "data_dir", allowed: "a path that does not begin with ~", path: true,
			about:   "Spools, work directories, caches and local state. Two agents never share one.",
			usually: "`/var/lib/tendril` as root, else `$XDG_STATE_HOME/tendril` or `~/.local/state/tendril`",
			field:   func(c *Config) any { return &c.DataDir }, check: func(c Config) bool { return plainPath(c.DataDir) }},
		{name: "slots", allowed: "a number from 1 to 64",
			about: "How many runs execute at once. Only one does if `policy.hook` or `policy.approval` is set and runs have no users of their own (`run.uids`), because they could reach each other.",
			field: func(c *Config) any { return &c.Slots }, check: func(c Config) bool { return 1 <= c.Slots && c.Slots <= 64 }},
		{name: "drain_timeout", allowed: "a duration from 0s to 24h",
			about: "How long runs may continue after SIGTERM before the agent ends them.",
			field: func(c *Config) any { return &c.DrainTimeout }, check: func(c Config) bool { return c.DrainTimeout.within(0, 24*time.Hour) }},
		{name: "identity_file", allowed: "a path, or nothing", path: true,
			about: "A file with the age identities that all agents of a cluster share, the current one first. Other users must not be able to read it. The agent reads it again at each heartbeat. Without it, the agent makes an identity in `data_dir`, or takes one there that another agent shares and `tendril identity accept` names. `tendril identity new` makes one.",
			field: func(c *Config) any { return &c.IdentityFile }},
		{name: "log_format", allowed: "text or json",
			about: "Format of the agent's own log.",
			field: func(c *Config) any { return &c.LogFormat }, check: func(c Config) bool { return oneOf(c.LogFormat, "text", "json") }},
		{name: "log_level", allowed: "debug, info, warn or error",
			about: "Lowest level that the agent's own log shows.",
			field: func(c *Config) any { return &c.LogLevel }},

		{name: "queue.url", allowed: queueURLs, hidden: true,
			about: "The queue's URL. Required, here, in `queue.url_file` or in `SUPABASE_URL`.",
			field: func(c *Config) any { return &c.Queue.URL }, check: func(c Config) bool { return postgresURL(c.Queue.URL) || rpcURL(c.Queue.URL) }},
		{name: "queue.url_file", allowed: "a path, or nothing", path: true,
			about: "A file with that URL, for one with a password. Other users must not be able to read it. The agent reads it again for each connection, so a password can change without a restart. `TENDRIL_QUEUE_URL` wins over it.",
			field: func(c *Config) any { return &c.Queue.URLFile }},
		{name: "queue.api_key", allowed: "one word without spaces, or nothing", hidden: true,
			about: "The public (publishable or anon) key of a Supabase project, for an https `queue.url`. Defaults to `SUPABASE_ANON_KEY`.",
			field: func(c *Config) any { return &c.Queue.APIKey },
			check: func(c Config) bool { return !strings.ContainsFunc(c.Queue.APIKey, notVisible) }},
		{name: "queue.ca_file", allowed: "a readable file of PEM certificates, or nothing", path: true,
			about: "Certificates to trust for an https `queue.url`, in addition to the system's.",
			field: func(c *Config) any { return &c.Queue.CAFile }, check: func(c Config) bool { return c.Queue.CAFile == "" || pemFile(c.Queue.CAFile) }},
		{name: "queue.allow_http", allowed: "true or false",
			about: "Allow `http://` to other machines. Anyone who can read the traffic then has the cluster's credential.",
			field: func(c *Config) any { return &c.Queue.AllowHTTP }},
		{name: "queue.listen_url", allowed: listenURLs, hidden: true,
			about: "A session connection for LISTEN, if `queue.url` goes through a transaction-mode pooler. With `off` the agent only polls.",
			field: func(c *Config) any { return &c.Queue.ListenURL },
			check: func(c Config) bool { return oneOf(c.Queue.ListenURL, "", "off") || postgresURL(c.Queue.ListenURL) }},
		{name: "queue.listen_url_file", allowed: "a path, or nothing", path: true,
			about: "A file with `queue.listen_url`, read as `queue.url_file` is. `TENDRIL_QUEUE_LISTEN_URL` wins over it.",
			field: func(c *Config) any { return &c.Queue.ListenURLFile }},
		{name: "queue.token_file", allowed: "a path, or nothing", path: true,
			about: "A file with the cluster's token. Other users must not be able to read it. The agent reads it again at each heartbeat, so you can rotate a token without a restart. `TENDRIL_API_TOKEN`, the token itself, wins over it. An agent without a token signs with its own key, once `tendril join` has let it join a cluster.",
			field: func(c *Config) any { return &c.Queue.TokenFile }},
		{name: "queue.join_token_file", allowed: "a path, or nothing", path: true,
			about: "A file with a one-time join token (`trellis clusters join-token`), with which an agent that has not joined does so at its start, without a person. Other users must not be able to read it. `TENDRIL_JOIN_TOKEN`, the token itself, wins over it. Ignored once the agent has joined.",
			field: func(c *Config) any { return &c.Queue.JoinTokenFile }},
		{name: "queue.join_service_account_token_file", allowed: "a path, or nothing", path: true,
			about: "A file with a token of the pod's Kubernetes service account, for the audience that `trellis clusters trust` shows. An agent whose key has not joined, or counts no more, joins with it at its start, without a person. Other users must not be able to read it. For agents whose data directory goes with their pod.",
			field: func(c *Config) any { return &c.Queue.JoinAccountTokenFile }},
		{name: "queue.key_lifetime", allowed: "a duration from 1h, or 0s for good",
			about: "How long an agent that has joined by key signs with one key. Then it makes another, for which the old one vouches; the old one counts for ten more minutes.",
			field: func(c *Config) any { return &c.Queue.KeyLifetime },
			check: func(c Config) bool {
				return c.Queue.KeyLifetime.Duration == 0 || c.Queue.KeyLifetime.Duration >= time.Hour
			}},
		{name: "queue.poll_interval", allowed: "a duration from 100ms to 10m, or 0s for what the database advises",
			about: "How often the agent polls the queue, with some jitter.", usually: "the database's advice",
			field: func(c *Config) any { return &c.Queue.PollInterval },
			check: func(c Config) bool {
				return c.Queue.PollInterval.Duration == 0 || c.Queue.PollInterval.within(100*time.Millisecond, 10*time.Minute)
			}},

		{name: "health.listen", allowed: "HOST:PORT or :PORT with a port from 0 to 65535, or nothing",
			about: "Where the agent serves `/healthz`, `/readyz` and `/metrics`, unencrypted and to everyone who reaches the port. Port 0 is any free port. Without it the agent opens no port.",
			field: func(c *Config) any { return &c.Health.Listen }, check: func(c Config) bool { return c.Health.Listen == "" || listenAddress(c.Health.Listen) }},

		{name: "policy.repos", allowed: "patterns of repository URLs without white space",
			about: "Repositories that templates may come from. `*` stands for one path segment, `**` for any number. An empty list allows none.",
			field: func(c *Config) any { return &c.Policy.Repos }, check: func(c Config) bool { return every(c.Policy.Repos, repoPattern) }},
		{name: "policy.operations", allowed: "some of plan, apply, destroy, refresh, power, unlock, state and inspect",
			about: "Operations that the agent carries out. The default lacks `state`, which hands out and replaces whole states, and `unlock`.",
			field: func(c *Config) any { return &c.Policy.Operations },
			check: func(c Config) bool { return len(c.Policy.Operations) > 0 && every(c.Policy.Operations, knownOperation) }},
		{name: "policy.approval", allowed: "never, destructive or always",
			about: "When a plan needs approval at least; snapshot, template and cluster may require approval more often. `destructive`: when the plan destroys, replaces or forgets something.",
			field: func(c *Config) any { return &c.Policy.Approval },
			check: func(c Config) bool { return oneOf(c.Policy.Approval, "never", "destructive", "always") }},
		{name: "policy.allow_file", allowed: "true or false",
			about: "Allow `file://` repositories that `policy.repos` lists.",
			field: func(c *Config) any { return &c.Policy.AllowFile }},
		{name: "policy.plain_sensitive", allowed: "true or false",
			about: "Accept plain values for variables that a template declares sensitive. Everyone who may see the run can then read them in the database.",
			field: func(c *Config) any { return &c.Policy.PlainSensitive }},
		{name: "policy.commit_refs", allowed: "patterns that begin with refs/heads/ or refs/tags/",
			about: "Branches and tags from which a commit must be reachable if a snapshot names a commit, such as `refs/heads/main`. `*` stands for one segment, `**` for any number. Without it, all branches and tags count.",
			field: func(c *Config) any { return &c.Policy.CommitRefs }, check: func(c Config) bool { return every(c.Policy.CommitRefs, commitRef) }},
		{name: "policy.requester_keys", allowed: "entries [WORKSPACES: ]KEY, where KEY is age1…, ssh-ed25519 AAAA…, authority SHA256:…, revoked ID or the absolute path of a file with such lines",
			about: "People to whom this agent seals sensitive outputs and pulled states, and whose signed orders push a state or roll one back. `WORKSPACES` is a pattern as in `credentials`, such as `acme/**` or `acme/prod id=UUID`; without one the entry counts for all. The agent seals to `age1…` keys and accepts orders signed with `ssh-ed25519 …` keys. `authority` accepts certificates that this key issued (`trellis keys certify`); `revoked` rejects a certificate or a key. The agent reads files again for each run; other users must not be able to write them. With an empty list it hands out nothing.",
			field: func(c *Config) any { return &c.Policy.RequesterKeys }},
		{name: "policy.identity_certifiers", allowed: "public keys ssh-ed25519 AAAA…",
			about: "Keys whose certificates (`tendril identity certify`) move the cluster's identity. An agent that has the identity shares it with an agent for which one of these keys has signed a certificate; an agent that lacks it accepts such a certificate. The agent asks the queue for certificates once a minute. With an empty list an operator runs `tendril identity share`.",
			field: func(c *Config) any { return &c.Policy.IdentityCertifiers }, check: func(c Config) bool { return every(c.Policy.IdentityCertifiers, publicKey) }},
		{name: "policy.modules", allowed: moduleSources,
			about: "Sources of modules, in addition to the checkout, `policy.repos` and the `repos` of a git host: repository URLs as in `policy.repos`, registry modules as `HOST/NAMESPACE/NAME/PROVIDER`, and `archive::URL`, `s3::URL`, `gcs::URL` and `hg::URL` for other downloads. `*` and `**` count as there; `**` alone allows everything.",
			field: func(c *Config) any { return &c.Policy.Modules }, check: func(c Config) bool { return every(c.Policy.Modules, repoPattern) }},
		{name: "policy.check_ranges", allowed: "prefixes of IP addresses, such as 10.0.0.0/8",
			about: "The only addresses that health checks of machines may ask over TCP, HTTP and SSH; a command of a template can reach what its runs can. Without it, all but those of the agent's own machine and link, such as 127.0.0.1 and 169.254.169.254.",
			field: func(c *Config) any { return &c.Policy.CheckRanges }, check: func(c Config) bool { return every(c.Policy.CheckRanges, isPrefix) }},
		{name: "policy.programs", allowed: "absolute paths",
			about: "Programs outside of a template that its `tendril.hcl` may name, such as `/opt/acme/provision.sh`. It is no sandbox: the template's own programs and commands run as all of its code does.",
			field: func(c *Config) any { return &c.Policy.Programs }, check: func(c Config) bool { return every(c.Policy.Programs, filepath.IsAbs) }},
		{name: "policy.oldest_terraform", allowed: "one exact version, 0.14.0 or newer",
			about: "The oldest Terraform that the agent runs, whatever a snapshot or a template requests. Versions before 0.14 have no lock file, so nothing fixes a template's providers.",
			field: func(c *Config) any { return &c.Policy.OldestTerraform },
			check: func(c Config) bool { return atLeast(c.Policy.OldestTerraform, firstTerraform) }},
		{name: "policy.oldest_tofu", allowed: "one exact version, 1.6.0 or newer",
			about: "The same for OpenTofu, whose first version is 1.6.0.",
			field: func(c *Config) any { return &c.Policy.OldestTofu },
			check: func(c Config) bool { return atLeast(c.Policy.OldestTofu, firstTofu) }},
		{name: "policy.hook", allowed: "the absolute path of a program that the agent may execute, and its arguments, or nothing",
			about: "A program that judges every plan: conftest, opa or your own. It reads the plan's JSON (`terraform show -json`) on stdin. Unless it exits with 0, the run fails as `policy_refused` and nothing is applied. It runs without a shell in an empty directory, which is its `HOME` and `TMPDIR`. It gets `TENDRIL_WORKSPACE`, `TENDRIL_OPERATION`, `TENDRIL_PROVISION`, no credentials, and the `PATH` `" + policyhook.SearchPath + "`. The user that runs templates must not be able to write to the program, to its arguments that are paths, or to these directories.",
			field: func(c *Config) any { return &c.Policy.Hook }},
		{name: "policy.hook_timeout", allowed: "a duration from 1s to 1h",
			about: "How long the hook may take. After that it counts as a refusal.",
			field: func(c *Config) any { return &c.Policy.HookTimeout }, check: func(c Config) bool { return c.Policy.HookTimeout.within(time.Second, time.Hour) }},

		{name: "git.ca_file", allowed: "a readable file of PEM certificates, or nothing", path: true,
			about: "Certificates to trust for git servers, in addition to the system's.",
			field: func(c *Config) any { return &c.Git.CAFile }, check: func(c Config) bool { return c.Git.CAFile == "" || pemFile(c.Git.CAFile) }},
		{name: "git.timeout", allowed: "a duration from 1s to 1h",
			about: "How long one exchange with a git server may take.",
			field: func(c *Config) any { return &c.Git.Timeout }, check: func(c Config) bool { return c.Git.Timeout.within(time.Second, time.Hour) }},
		{name: "git.hosts", allowed: "tables named after hosts, with values in quotes, or in the environment HOST.KEY=VALUE,…",
			about: "`[git.hosts.\"HOST\"]` holds the credentials for that git server: " + gitHostKeys + ".",
			field: func(c *Config) any { return &c.Git.Hosts }},

		{name: "engine.kind", allowed: "terraform or tofu",
			about: "The engine for snapshots that name none.",
			field: func(c *Config) any { return &c.Engine.Kind }, check: func(c Config) bool { return oneOf(c.Engine.Kind, "terraform", "tofu") }},
		{name: "engine.version", allowed: "one exact version such as 1.11.4, or nothing",
			about: "The engine's version for snapshots that name none. Without it the agent uses the one it finds.",
			field: func(c *Config) any { return &c.Engine.Version }, check: func(c Config) bool { return exactOrNone(c.Engine.Version) }},
		{name: "engine.dir", allowed: "a directory that exists, or nothing", path: true,
			about: "A directory to search for engines before `PATH`.",
			field: func(c *Config) any { return &c.Engine.Dir }, check: func(c Config) bool { return c.Engine.Dir == "" || directory(c.Engine.Dir) }},
		{name: "engine.install", allowed: "true or false",
			about: "Download an engine that is not installed.",
			field: func(c *Config) any { return &c.Engine.Install }},
		{name: "engine.mirror_url", allowed: "an https:// or http:// URL, or nothing",
			about: "A mirror of the vendor's release server.",
			field: func(c *Config) any { return &c.Engine.MirrorURL }, check: func(c Config) bool { return c.Engine.MirrorURL == "" || webURL(c.Engine.MirrorURL) }},
		{name: "engine.public_key_file", allowed: "a readable file, or nothing", path: true,
			about: "An ASCII-armoured key that replaces the vendor's signing key.",
			field: func(c *Config) any { return &c.Engine.PublicKeyFile },
			check: func(c Config) bool { return c.Engine.PublicKeyFile == "" || regularFile(c.Engine.PublicKeyFile) }},
		{name: "engine.provider_mirror", hidden: true, allowed: "an https:// URL without user, password or query, the absolute path of a directory, or nothing",
			about: "A network mirror, or the directory of a filesystem mirror, from which engines get all providers instead of the registries. It replaces your own `TF_CLI_CONFIG_FILE`.",
			field: func(c *Config) any { return &c.Engine.ProviderMirror },
			check: func(c Config) bool { return providerMirror(c.Engine.ProviderMirror) }},
		{name: "engine.provider_direct", allowed: "true or false",
			about: "Allow the registries in addition to `engine.provider_mirror`.",
			field: func(c *Config) any { return &c.Engine.ProviderDirect }},

		{name: "state.default", allowed: "local or managed",
			about: "Where the state of a template without a backend is kept: `local`, a file of this agent, so that no other agent can run the workspace; or `managed`, sealed in the database. `managed` takes over an existing file.",
			field: func(c *Config) any { return &c.State.Default },
			check: func(c Config) bool { return c.State.Default == "local" || c.State.Default == job.Managed }},
		{name: "state.backend", allowed: "the name of a Terraform backend, managed, or nothing",
			about: "A backend that replaces the template's; `managed` as for `state.default`.",
			field: func(c *Config) any { return &c.State.Backend }, check: func(c Config) bool { return c.State.Backend == "" || backendName(c.State.Backend) }},
		{name: "state.config", allowed: "tables named after backends with texts as values, or in the environment TYPE.KEY=VALUE,…", hidden: true,
			about: "`[state.config.TYPE]` completes a backend of that type. `{workspace_id}` stands for the workspace's id.",
			field: func(c *Config) any { return &c.State.Config },
			check: func(c Config) bool {
				return every(slices.Collect(maps.Keys(c.State.Config)), backendName)
			}},

		{name: "run.timeout", allowed: "a duration from 1s to 168h",
			about: "How long one run may take.",
			field: func(c *Config) any { return &c.Run.Timeout }, check: func(c Config) bool { return c.Run.Timeout.within(time.Second, 168*time.Hour) }},
		{name: "run.timeouts", allowed: "a table of durations from 1s to 168h by operation, or in the environment OPERATION=DURATION,…",
			about: "How long a run of one operation may take, if not `run.timeout`: `timeouts = {plan = \"30m\"}`. A snapshot's `timeout_seconds` may be less, never more.",
			field: func(c *Config) any { return &c.Run.Timeouts }, check: func(c Config) bool { return c.Run.Timeouts.valid() }},
		{name: "run.cancel_grace", allowed: "a duration from 1s to 1h",
			about: "How long an interrupted engine may take before the agent kills it.",
			field: func(c *Config) any { return &c.Run.CancelGrace }, check: func(c Config) bool { return c.Run.CancelGrace.within(time.Second, time.Hour) }},
		{name: "run.disk_wait", allowed: "a duration from 0s to 1h",
			about: "How long a run waits for space on a full disk before the agent interrupts it.",
			field: func(c *Config) any { return &c.Run.DiskWait }, check: func(c Config) bool { return c.Run.DiskWait.within(0, time.Hour) }},
		{name: "run.log_limit", allowed: "a size from 1MiB to 4GiB",
			about: "How much text of a run's log is kept. The first half is whole; beyond it the log has samples while the run continues, and the whole end.",
			field: func(c *Config) any { return &c.Run.LogLimit }, check: func(c Config) bool { return c.Run.LogLimit.within(1<<20, 4<<30) }},
		{name: "run.pass_env", allowed: "names of environment variables, with * at most at the end; never " + neverPassed,
			about: "Environment variables that Terraform gets in addition to the usual ones (cloud credentials, proxies, `PATH`, `HOME`).",
			field: func(c *Config) any { return &c.Run.PassEnv }, check: func(c Config) bool { return every(c.Run.PassEnv, passable) }},
		{name: "run.uids", allowed: "auto, off, or a number from 1000 to 4294000000",
			about: "For an agent started as root: the first of 65 uids that no user of the machine has; each run gets one. `auto` finds them. With `off`, templates run as root and can read everything.",
			field: func(c *Config) any { return &c.Run.UIDs }, check: func(c Config) bool { return uidRange(c.Run.UIDs) }},

		{name: "run.launcher", allowed: "process or kubernetes",
			about: "What carries runs out: processes of this agent, or [Jobs](KUBERNETES.md) of the Kubernetes cluster that it runs in, which outlive it. Jobs need `state.default = \"managed\"`, or `state.backend`.",
			field: func(c *Config) any { return &c.Run.Launcher }, check: func(c Config) bool { return oneOf(c.Run.Launcher, Process, Kubernetes) }},

		{name: "kubernetes.namespace", allowed: "a namespace, or nothing",
			about: "Where Jobs are made. Without it, that of the agent's own pod.",
			field: func(c *Config) any { return &c.Jobs.Namespace }},
		{name: "kubernetes.image", allowed: "an image, or nothing",
			about: "The image of their pods, with the program `tendril`, git and engines. Jobs need one.",
			field: func(c *Config) any { return &c.Jobs.Image }},
		{name: "kubernetes.service_account", allowed: "a name, or nothing",
			about: "The service account of their pods, for clouds that know it. Its token is not mounted unless `kubernetes.pod_file` says so.",
			field: func(c *Config) any { return &c.Jobs.ServiceAccount }},
		{name: "kubernetes.pod_file", allowed: "a path, or nothing", path: true,
			about: "A pod template in YAML that is laid over each pod, as `kubectl patch` does: resources and limits of the container `runner`, where pods run, further volumes.",
			field: func(c *Config) any { return &c.Jobs.PodFile }, check: func(c Config) bool { return c.Jobs.PodFile == "" || regularFile(c.Jobs.PodFile) }},
		{name: "kubernetes.pod_files", allowed: "entries WORKSPACES: PATH, where PATH is an absolute path",
			about: "Pod templates for the runs of some workspaces, in place of `kubernetes.pod_file`. `WORKSPACES` is a pattern as in `credentials`; the first that matches counts.",
			field: func(c *Config) any { return &c.Jobs.PodFiles }, check: func(c Config) bool { return podFiles(c.Jobs) }},
		{name: "kubernetes.start_timeout", allowed: "a duration from 10s to 24h",
			about: "How long a pod may take to start until its run fails with `runner_not_started`: for an image to be pulled, and a node to be found.",
			field: func(c *Config) any { return &c.Jobs.StartTimeout }, check: func(c Config) bool { return c.Jobs.StartTimeout.within(10*time.Second, 24*time.Hour) }},
		{name: "kubernetes.lease", allowed: "a name, or nothing",
			about: "The Lease that one of several agents holds, and the others wait for. They follow each other's runs.",
			field: func(c *Config) any { return &c.Jobs.Lease }},
		{name: "kubernetes.kubeconfig", allowed: "a path, or nothing", path: true,
			about: "How Kubernetes is reached from outside of it. Without it, as a pod reaches it.",
			field: func(c *Config) any { return &c.Jobs.Kubeconfig }},

		{name: "manual.notification_webhook", hidden: true, allowed: "an https:// or http:// URL, or nothing",
			about: "A webhook to which this agent itself posts when a run of a manual template begins to wait for a person, in addition to the webhooks of the console. The message has the type `awaiting_input`, the run's id, number and operation, and its workspace. The agent tries for ten minutes; an agent that is killed meanwhile sends nothing.",
			field: func(c *Config) any { return &c.Manual.NotificationWebhook },
			check: func(c Config) bool { return c.Manual.NotificationWebhook == "" || webURL(c.Manual.NotificationWebhook) }},
		{name: "manual.notification_kind", allowed: "generic or slack",
			about: "The form of that message: JSON as [Standard Webhooks](https://www.standardwebhooks.com), or Slack's.",
			field: func(c *Config) any { return &c.Manual.NotificationKind },
			check: func(c Config) bool { return oneOf(c.Manual.NotificationKind, webhook.Generic, webhook.Slack) }},
		{name: "manual.signing_secret_file", allowed: "a path, or nothing", path: true,
			about: "A file with the secret that signs that message: `whsec_` and 24 to 64 random bytes in base64. Other users must not be able to read it. The agent reads it again for each message. Without it, messages are not signed.",
			field: func(c *Config) any { return &c.Manual.SigningSecretFile }},

		{name: "cache.limit", allowed: "a size from 64MiB to 64TiB, or 0 for none",
			about: "Disk space for mirrors of repositories, provider packages, downloaded engines and modules together. Beyond it, the agent removes what was unused longest, and downloads it again when needed.",
			field: func(c *Config) any { return &c.Cache.Limit },
			check: func(c Config) bool { return c.Cache.Limit.Bytes == 0 || c.Cache.Limit.within(64<<20, 64<<40) }},
		{name: "cache.keep", allowed: "a duration from 0s to 720h",
			about: "The agent keeps what was used within this time, and what a run is using.",
			field: func(c *Config) any { return &c.Cache.Keep }, check: func(c Config) bool { return c.Cache.Keep.within(0, 720*time.Hour) }},
		{name: "cache.min_free", allowed: "a size from 64MiB to 64TiB, or 0 for none",
			about: "With less free disk space, or too few inodes, the agent cleans the caches before a run begins, whatever their limit.",
			field: func(c *Config) any { return &c.Cache.MinFree },
			check: func(c Config) bool { return c.Cache.MinFree.Bytes == 0 || c.Cache.MinFree.within(64<<20, 64<<40) }},

		{name: "credentials", allowed: "tables with values in quotes, or in the environment PATTERN:KEY=VALUE,…",
			about: "`[[credentials]]` tables select the cloud credentials of runs by workspace. The first matching table counts, and a run gets nothing of the others: " + credentialKeys +
				". With at least one table, the agent's own cloud credentials reach no run; `run.pass_env` still reaches all.",
			field: func(c *Config) any { return &c.Credentials }},
		{name: "credentials_default", allowed: "true or false",
			about: "If `credentials` are configured: whether runs of workspaces that match none get the agent's own cloud credentials.",
			field: func(c *Config) any { return &c.CredentialsDefault }},

		{name: "pools", allowed: "tables, or in the environment a TOML list of them",
			about: "`[[pools]]` tables are where `provisioner \"machine\"` makes machines: " + poolKeys + ".",
			field: func(c *Config) any { return &c.Pools }},
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

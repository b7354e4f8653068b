package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/trust"
	"github.com/tendril-run/tendril/internal/webhook"
)

// Config is the agent's configuration. The meaning of each field stands in
// Reference.
type Config struct {
	Name         string     `toml:"name"`
	DataDir      string     `toml:"data_dir"`
	Slots        int        `toml:"slots"`
	DrainTimeout Duration   `toml:"drain_timeout"`
	IdentityFile string     `toml:"identity_file"`
	LogFormat    string     `toml:"log_format"`
	LogLevel     slog.Level `toml:"log_level"`

	Queue  Queue  `toml:"queue"`
	Health Health `toml:"health"`
	Policy Policy `toml:"policy"`
	Git    Git    `toml:"git"`
	Engine Engine `toml:"engine"`
	State  State  `toml:"state"`
	Run    Run    `toml:"run"`
	Jobs   Jobs   `toml:"kubernetes"`
	Manual Manual `toml:"manual"`
	Cache  Cache  `toml:"cache"`

	Credentials        Credentials `toml:"credentials"`
	CredentialsDefault bool        `toml:"credentials_default"`

	Pools Pools `toml:"pools"`
}

// Queue is how the queue is reached.
type Queue struct {
	// URL and ListenURL may hold a password: do not log them. Each is what is in its
	// file where that is what counts.
	URL           string `toml:"url"`
	URLFile       string `toml:"url_file"`
	ListenURL     string `toml:"listen_url"`
	ListenURLFile string `toml:"listen_url_file"`
	// APIKey, CAFile and AllowHTTP go with a URL over HTTPS.
	APIKey    string `toml:"api_key"`
	CAFile    string `toml:"ca_file"`
	AllowHTTP bool   `toml:"allow_http"`
	TokenFile string `toml:"token_file"`
	// JoinTokenFile holds a one-time token with which the agent's key joins.
	JoinTokenFile string `toml:"join_token_file"`
	// JoinAccountTokenFile holds the token of a Kubernetes service account, with which it joins too.
	JoinAccountTokenFile string `toml:"join_service_account_token_file"`
	// KeyLifetime is how long the agent signs with one key; 0: for good.
	KeyLifetime Duration `toml:"key_lifetime"`
	// PollInterval is 0 where the database's advice is to be followed.
	PollInterval Duration `toml:"poll_interval"`
	// Token comes from TENDRIL_API_TOKEN or from TokenFile, never from the TOML.
	Token Secret `toml:"-"`
	// Key is the agent's own, of its data directory, which signs in place of a token; nil
	// where a token is configured, and where the agent is yet to join.
	Key *agentkey.Key `toml:"-"`
	// JoinToken comes from TENDRIL_JOIN_TOKEN or from JoinTokenFile. It is empty once there
	// is a key.
	JoinToken Secret `toml:"-"`
	// AccountToken comes from JoinAccountTokenFile, whether there is a key or not: the key may be
	// that of a pod before this one.
	AccountToken Secret `toml:"-"`

	// from are the files that URL, ListenURL and Token were read from, and may be
	// read from again; "" where they stand elsewhere.
	from struct{ url, listenURL, token string } `toml:"-"`
}

// PodClass is what the pods of some workspaces' runs are made from.
type PodClass struct {
	Workspaces trust.Workspaces
	File       string
}

// Classes are those of PodFiles, the first that matches first.
func (j Jobs) Classes() (all []PodClass, err error) {
	for _, entry := range j.PodFiles {
		pattern, file, ok := strings.Cut(entry, ": ")
		where, err := trust.ParseWorkspaces(strings.TrimSpace(pattern))
		if !ok || err != nil {
			return nil, fmt.Errorf("%q is no entry WORKSPACES: PATH", entry)
		}
		all = append(all, PodClass{where, strings.TrimSpace(file)})
	}
	return all, nil
}

// podFiles reports whether entries have patterns, and files that are there.
func podFiles(j Jobs) bool {
	all, err := j.Classes()
	return err == nil && !slices.ContainsFunc(all, func(c PodClass) bool { return !filepath.IsAbs(c.File) || !regularFile(c.File) })
}

// Manual is what the agent does for templates whose work a person does.
type Manual struct {
	// NotificationWebhook may be a secret: do not log it. "" is for none.
	NotificationWebhook string `toml:"notification_webhook"`
	NotificationKind    string `toml:"notification_kind"`
	SigningSecretFile   string `toml:"signing_secret_file"`
}

// Health is how others learn how the agent is.
type Health struct {
	// Listen is the address of the HTTP server; "" for none.
	Listen string `toml:"listen"`
}

// Policy is what the operator consents to, whatever the database says.
type Policy struct {
	Repos          []string `toml:"repos"`
	Operations     []string `toml:"operations"`
	Approval       string   `toml:"approval"`
	AllowFile      bool     `toml:"allow_file"`
	PlainSensitive bool     `toml:"plain_sensitive"`
	// CommitRefs are references from which a bare commit must be reachable.
	CommitRefs []string `toml:"commit_refs"`
	// RequesterKeys say to whom is sealed what a run may hand out, and whose orders
	// replace a state: see trust.ParseKeys.
	RequesterKeys []string `toml:"requester_keys"`
	// IdentityCertifiers are the public keys whose certificates move the cluster's identity:
	// see identity.Certifiers.
	IdentityCertifiers []string `toml:"identity_certifiers"`
	// Modules are sources that modules may have beside Repos.
	Modules []string `toml:"modules"`
	// CheckRanges are the addresses that health checks may ask.
	CheckRanges []string `toml:"check_ranges"`
	// Programs are those that templates may name in tendril.hcl beside their own.
	Programs []string `toml:"programs"`
	// OldestTerraform and OldestTofu are the oldest versions that may run.
	OldestTerraform string `toml:"oldest_terraform"`
	OldestTofu      string `toml:"oldest_tofu"`
	// Hook is a command and its arguments, and HookTimeout bounds it.
	Hook        []string `toml:"hook"`
	HookTimeout Duration `toml:"hook_timeout"`
}

// Git is how repositories are reached.
type Git struct {
	CAFile  string   `toml:"ca_file"`
	Timeout Duration `toml:"timeout"`
	Hosts   GitHosts `toml:"hosts"`
}

// Engine is which terraform or tofu runs, and where it comes from.
type Engine struct {
	Kind          string `toml:"kind"`
	Version       string `toml:"version"`
	Dir           string `toml:"dir"`
	Install       bool   `toml:"install"`
	MirrorURL     string `toml:"mirror_url"`
	PublicKeyFile string `toml:"public_key_file"`
	// ProviderMirror is a URL or a directory, and ProviderDirect adds the
	// registries to it.
	ProviderMirror string `toml:"provider_mirror"`
	ProviderDirect bool   `toml:"provider_direct"`
}

// State is where Terraform's state lives. Values of Config may be secrets.
type State struct {
	Default string                       `toml:"default"`
	Backend string                       `toml:"backend"`
	Config  map[string]map[string]string `toml:"config"`
}

// Run bounds one provision.
type Run struct {
	Timeout     Duration `toml:"timeout"`
	Timeouts    Timeouts `toml:"timeouts"`
	CancelGrace Duration `toml:"cancel_grace"`
	DiskWait    Duration `toml:"disk_wait"`
	LogLimit    Size     `toml:"log_limit"`
	PassEnv     []string `toml:"pass_env"`
	// UIDs is "auto", "off" or the first of the uids that runs have.
	UIDs string `toml:"uids"`
	// Launcher is Process or Kubernetes.
	Launcher string `toml:"launcher"`
}

// What Run.Launcher may be.
const (
	Process    = "process"
	Kubernetes = "kubernetes"
)

// Jobs is how runs become Jobs of Kubernetes.
type Jobs struct {
	Namespace      string   `toml:"namespace"`
	Image          string   `toml:"image"`
	ServiceAccount string   `toml:"service_account"`
	PodFile        string   `toml:"pod_file"`
	PodFiles       []string `toml:"pod_files"`
	StartTimeout   Duration `toml:"start_timeout"`
	Kubeconfig     string   `toml:"kubeconfig"`
	Lease          string   `toml:"lease"`
}

// Cache bounds what is kept of what could be fetched again.
type Cache struct {
	Limit   Size     `toml:"limit"`
	Keep    Duration `toml:"keep"`
	MinFree Size     `toml:"min_free"`
}

// Default is the configuration of an agent that is told nothing. It lacks what
// has no default, the queue's URL and the token, so it is not valid as it is.
func Default() Config { return defaults(newEnvironment(os.Environ())) }

func defaults(env environment) Config {
	name, err := os.Hostname()
	if err != nil {
		name = "" // validation will ask for one
	}
	return Config{
		Name:         name,
		DataDir:      defaultDataDir(env, os.Geteuid()),
		Slots:        2,
		DrainTimeout: Duration{10 * time.Minute},
		Queue:        Queue{KeyLifetime: Duration{90 * 24 * time.Hour}},
		LogFormat:    "text",
		Manual:       Manual{NotificationKind: webhook.Generic},
		LogLevel:     slog.LevelInfo,
		Policy:       Policy{Operations: defaultOperations(), Approval: string(provision.ApprovalNever), HookTimeout: Duration{2 * time.Minute}, OldestTerraform: firstTerraform, OldestTofu: firstTofu},
		Git:          Git{Timeout: Duration{2 * time.Minute}},
		Engine:       Engine{Kind: "terraform", Install: true},
		State:        State{Default: "local"},
		Run:          Run{Timeout: Duration{2 * time.Hour}, CancelGrace: Duration{30 * time.Second}, DiskWait: Duration{2 * time.Minute}, LogLimit: Size{64 << 20}, UIDs: "auto", Launcher: Process},
		Jobs:         Jobs{StartTimeout: Duration{10 * time.Minute}},
		Cache:        Cache{Limit: Size{10 << 30}, Keep: Duration{time.Hour}, MinFree: Size{1 << 30}},
	}
}

// isolates reports whether each run gets a uid that no other has.
func (c Config) isolates(uid int) bool { return uid == 0 && c.Run.UIDs != "off" }

// RunsAtOnce is how many provisions run at once, and why that is fewer than Slots;
// "" where it is not. Runs that share a uid can reach each other's files and
// processes, so where a plan is judged or approved nothing else may run meanwhile.
func (c Config) RunsAtOnce() (slots int, why string) { return c.runsAtOnce(os.Geteuid()) }

func (c Config) runsAtOnce(uid int) (int, string) {
	if why := c.interferes(uid); why != "" && c.Slots > 1 {
		return 1, why
	}
	return c.Slots, ""
}

// NoCommands is why no machine is asked how it is by a command of its template, "" where
// some are: what a run must not have next to it.
func (c Config) NoCommands() string {
	if c.Run.Launcher == Kubernetes {
		return "runs are Jobs: next to this agent a command of a template could reach its account of Kubernetes"
	}
	return c.interferes(os.Geteuid())
}

// interferes is why a template that runs beside a run could change what that does, "" where
// it can't.
func (c Config) interferes(uid int) string {
	judge := ""
	switch {
	case c.Run.Launcher == Kubernetes:
		return "" // each run has a pod of its own
	case len(c.Policy.Hook) > 0:
		judge = "policy.hook is set"
	case c.Policy.Approval != string(provision.ApprovalNever):
		judge = fmt.Sprintf("policy.approval is %q", c.Policy.Approval)
	}
	if judge == "" || c.isolates(uid) {
		return ""
	}
	return fmt.Sprintf("%s, and all runs share uid %d, so a template could interfere with another run between check and apply", judge, uid)
}

// defaultDataDir follows the XDG base directory specification for ordinary
// users; "" when the environment gives no home.
func defaultDataDir(env environment, uid int) string {
	if uid == 0 {
		return "/var/lib/tendril"
	}
	// The specification has relative paths ignored.
	if state := env["XDG_STATE_HOME"]; filepath.IsAbs(state) {
		return filepath.Join(state, "tendril")
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "tendril")
	}
	return ""
}

// defaultOperations leaves out what an operator must ask for: state hands out and
// replaces whole states, and unlock takes another's lock away.
func defaultOperations() []string {
	var names []string
	for _, operation := range provision.Operations {
		if operation != provision.OperationState && operation != provision.OperationUnlock {
			names = append(names, string(operation))
		}
	}
	return names
}

// Settings is the part of the configuration that a provision's own process
// obeys. The token is not in it.
func (c Config) Settings() job.Settings {
	operations := make([]provision.Operation, len(c.Policy.Operations))
	for i, operation := range c.Policy.Operations {
		operations[i] = provision.Operation(operation)
	}
	return job.Settings{
		Policy: job.Policy{
			Repos: c.Policy.Repos, Operations: operations, Approval: provision.Approval(c.Policy.Approval), AllowFile: c.Policy.AllowFile,
			PlainSensitive: c.Policy.PlainSensitive,
			CommitRefs:     c.Policy.CommitRefs,
			Modules:        c.Policy.Modules, Programs: c.Policy.Programs, CheckRanges: prefixes(c.Policy.CheckRanges), Hook: c.Policy.Hook, HookTimeout: c.Policy.HookTimeout.Duration,
		},
		Git: job.Git{CAFile: c.Git.CAFile, Timeout: c.Git.Timeout.Duration},
		Engine: job.Engine{
			Kind: c.Engine.Kind, Version: c.Engine.Version, Dir: c.Engine.Dir, Install: c.Engine.Install,
			MirrorURL: c.Engine.MirrorURL, PublicKeyFile: c.Engine.PublicKeyFile,
			ProviderMirror: c.Engine.ProviderMirror, ProviderDirect: c.Engine.ProviderDirect,
			OldestTerraform: c.Policy.OldestTerraform, OldestTofu: c.Policy.OldestTofu,
		},
		State:       job.State{Default: c.State.Default, Backend: c.State.Backend, Config: c.State.Config},
		CancelGrace: c.Run.CancelGrace.Duration,
		DiskWait:    c.Run.DiskWait.Duration,
		Timeout:     c.Run.Timeout.Duration,
		Timeouts:    c.Run.Timeouts.byOperation(),
		LogLimit:    c.Run.LogLimit.Bytes,
	}
}

// Limits are those of the caches.
func (c Cache) Limits() caches.Limits {
	return caches.Limits{Most: c.Limit.Bytes, Keep: c.Keep.Duration, MinFree: c.MinFree.Bytes}
}

// Duration is a time.Duration that TOML writes as text, such as "90s".
type Duration struct{ time.Duration }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 90s, 10m or 2h", text)
	}
	d.Duration = value
	return nil
}

// Secret is a text that formatting and logging do not show.
type Secret struct{ value string }

// NewSecret hides a text.
func NewSecret(value string) Secret { return Secret{value: value} }

// Reveal returns the text itself.
func (s Secret) Reveal() string { return s.value }

func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return "[hidden]"
}

// GoString keeps %#v from showing it.
func (s Secret) GoString() string { return s.String() }

// MarshalText keeps encoders from writing it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

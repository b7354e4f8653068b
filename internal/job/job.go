package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// The descriptors a child inherits, beside the usual three.
const (
	ControlFD  = 3
	SpoolFD    = 4
	LockFD     = 5
	DoorbellFD = 6
	// The two files of the log's tail.
	TailFD0 = 7
	TailFD1 = 8
	// The lock on the uids, where runs have uids of their own.
	UIDLockFD = 9
	// PlanFD is a file of the agent's: the child leaves there the plan bundle
	// that awaits a person, or finds there the one that was approved; and of a
	// state operation what it reads, sealed, or what it is given.
	PlanFD = 10
	// StateInFD is a file of the agent's with the managed state as it is, and
	// the other two take what the engine writes, sealed, in turn.
	StateInFD = 11
	StateOutA = 12
	StateOutB = 13
)

// Job is the first message on the control pipe: all a child needs to know.
// It never holds the agent's token.
type Job struct {
	Assignment provision.Assignment `json:"assignment"`
	Settings   Settings             `json:"settings"`
	Dirs       Dirs                 `json:"dirs"`
	// Instance is the agent's, part of what names local state.
	Instance uuid.UUID `json:"instance"`
	// SealedVars are the snapshot's sealed variables, opened, as JSON. They go
	// down the control pipe and into a file that ends with the run.
	SealedVars map[string]json.RawMessage `json:"sealed_vars,omitempty"`
	// SealedInput is likewise what is sealed in the assignment's input.
	SealedInput map[string]json.RawMessage `json:"sealed_input,omitempty"`
	// ClusterKey is the public key to which what this run makes is sealed.
	ClusterKey string `json:"cluster_key,omitempty"`
	// Requester is to whom the run seals what it hands out, "" for nobody. Where the
	// snapshot names somebody that the agent's policy does not, RequesterRefused says
	// why.
	Requester        string `json:"requester,omitempty"`
	RequesterRefused string `json:"requester_refused,omitempty"`
	// Approved is how many of the bytes in PlanFD are the plan that was approved; what
	// a state operation is given follows.
	Approved int64 `json:"approved,omitempty"`
	// MaySetDown says that the database knows runs that are set down.
	MaySetDown bool `json:"may_set_down,omitempty"`
	// ManagedState is nil where the run can have none.
	ManagedState *ManagedState `json:"managed_state,omitempty"`
	// Credentials are what the workspace's runs sign in to clouds with.
	Credentials Credentials `json:"credentials,omitzero"`
	// Pools are where the run may have machines made, with their secrets.
	Pools []pool.Config `json:"pools,omitempty"`
	// ChecksAfter is the Made of the newest check by a command that the agent knows of the
	// workspace: those of this run come after it, whatever the clock says.
	ChecksAfter int64 `json:"checks_after,omitempty"`
	// Check is nil but where the child asks how one machine is, and does nothing else. Its
	// result is a success for one that is healthy, and a failure with CodeUnhealthy for one
	// that is not; after any other nobody knows.
	Check *Check `json:"check,omitempty"`
	// Launched is when the child was about to be started, where the agent wants Marks; else zero.
	Launched time.Time `json:"launched,omitzero"`
	// NoteKey authenticates what a run notes for the next one where a template
	// could write: a key of the agent's, new at each of its starts.
	NoteKey []byte `json:"note_key"`
}

// Check is a machine to ask about.
type Check struct {
	Machine string                `json:"machine"` // its name
	Check   provision.HealthCheck `json:"check"`
}

// CodeUnhealthy is the error of a check that says so of its machine. The database never
// gets it.
const CodeUnhealthy provision.Code = "unhealthy"

// Dirs are the directories a child may write to. All exist, mode 0700, but for
// Secrets, which a child makes where runs have uids of their own. Work and State
// belong to the run's uid then, Repos, Engines, Providers and Checkout to that
// of the caches.
type Dirs struct {
	// Work is the one work directory of the workspace.
	Work string `json:"work"`
	// State holds the workspace's local state, where it has one.
	State string `json:"state"`
	// Repos is the cache of bare mirrors shared by all children.
	Repos string `json:"repos"`
	// Engines is where engines are installed, shared by all children.
	Engines string `json:"engines"`
	// Providers is the store of provider packages, shared by all children.
	Providers string `json:"providers"`
	// Checkout is where the caches' uid leaves the template for the run's; ""
	// where there is one uid for both.
	Checkout string `json:"checkout,omitempty"`
	// Secrets is for files with variables and for the plan: the agent removes
	// it when the run is over, however that came about.
	Secrets string `json:"secrets"`
}

// The directories in Dirs.Work that are of one run only. A child removes them at
// its end, and for one that was killed the agent does, unless UnsavedState is in
// one of them: that is for the next run to keep.
const (
	SourceName = "source"
	TempName   = "tmp"
	// HomeName is HOME where runs have uids of their own.
	HomeName = "home"
)

// UnsavedState is the file in which an engine leaves a state that it could not
// store. An empty one is none.
const UnsavedState = "errored.tfstate"

// KeptStates matches the names under which such states are kept in Dirs.State
// until they are stored.
const KeptStates = "errored*.tfstate"

// ReservedName is the file in Dirs.State that holds room on the disk while an
// apply goes on. That of a killed child is removed by the agent.
const ReservedName = ".ballast"

// Settings is the part of the agent's configuration that a child obeys.
type Settings struct {
	Policy Policy `json:"policy"`
	Git    Git    `json:"git"`
	Engine Engine `json:"engine"`
	State  State  `json:"state"`
	// CancelGrace is how long an engine may take to end after its one SIGINT.
	CancelGrace time.Duration `json:"cancel_grace"`
	// Timeout ends a run like a cancel does; see TimeLimit.
	Timeout time.Duration `json:"timeout"`
	// Timeouts are those of single operations.
	Timeouts map[provision.Operation]time.Duration `json:"timeouts,omitempty"`
	// DiskWait is how long a run whose output does not fit on a full disk waits
	// for room.
	DiskWait time.Duration `json:"disk_wait"`
	// LogLimit is the most text of a log that is kept, in bytes; 0 is no limit.
	LogLimit int64 `json:"log_limit,omitempty"`
}

// TimeLimit is how long a run of the operation may take, 0 for any time.
func (s Settings) TimeLimit(operation provision.Operation) time.Duration {
	if limit, ok := s.Timeouts[operation]; ok {
		return limit
	}
	return s.Timeout
}

// Policy is what this agent consents to, whatever the database says.
type Policy struct {
	// Repos are the repository URLs allowed, "*" for one path segment and "**"
	// for any number. None allowed means none run.
	Repos []string `json:"repos"`
	// CommitRefs are patterns of the references from which a bare commit must be
	// reachable; empty means all branches and tags.
	CommitRefs []string `json:"commit_refs,omitempty"`
	// Operations granted; empty means all.
	Operations []provision.Operation `json:"operations"`
	// Approval is the least that plans must be approved here, whatever snapshot,
	// template and cluster say; "" counts as never.
	Approval provision.Approval `json:"approval,omitempty"`
	// AllowFile permits file: URLs (still subject to Repos).
	AllowFile bool `json:"allow_file"`
	// PlainSensitive admits plain values for variables that the template
	// declares sensitive.
	PlainSensitive bool `json:"plain_sensitive,omitempty"`
	// Modules are patterns of sources that modules may have beside Repos and the
	// Repos of git hosts.
	Modules []string `json:"modules,omitempty"`
	// Programs are absolute paths of programs that templates may name in tendril.hcl
	// beside those of their own.
	Programs []string `json:"programs,omitempty"`
	// CheckRanges are the addresses that health checks may ask, as prefixes; none: all but
	// those of the agent's machine and link.
	CheckRanges []netip.Prefix `json:"check_ranges,omitempty"`
	// Hook is the command that judges plans, an absolute path and arguments;
	// empty: nobody does. HookTimeout bounds it.
	Hook        []string      `json:"hook,omitempty"`
	HookTimeout time.Duration `json:"hook_timeout,omitempty"`
}

// Git is how repositories are reached.
type Git struct {
	// CAFile is a PEM bundle trusted as well as the system's.
	CAFile string `json:"ca_file,omitempty"`
	// Timeout bounds one exchange with a git server.
	Timeout time.Duration `json:"timeout"`
	// Hosts are the credentials, as the agent read them when the run began.
	Hosts []GitHost `json:"hosts,omitempty"`
}

// GitHost is how a run identifies itself to one git server. It holds secrets:
// it goes down the control pipe and nowhere else.
type GitHost struct {
	// Host is as in a URL: lower case, with the port if it is not the scheme's.
	Host string `json:"host"`
	// Username and Token are for HTTPS; without a Token there is none.
	Username string `json:"username,omitempty"`
	Token    string `json:"token,omitempty"`
	// Key is a private key in PEM, for SSH; without one there is none.
	Key string `json:"key,omitempty"`
	// KnownHosts is the text of KnownHostsFile, which is named in messages.
	// Without a file the user's and the machine's are asked.
	KnownHosts     string `json:"known_hosts,omitempty"`
	KnownHostsFile string `json:"known_hosts_file,omitempty"`
	// Repos are patterns, as in Policy.Repos, of what the credentials may be
	// used for beside those: modules' sources.
	Repos []string `json:"repos,omitempty"`
	// TokenProblem and KeyProblem say why a credential that is configured is
	// not here, for whoever would have needed it. They hold no secret.
	TokenProblem string `json:"token_problem,omitempty"`
	KeyProblem   string `json:"key_problem,omitempty"`
}

// Engine is which terraform (or tofu) runs and where it may come from.
type Engine struct {
	// Kind is "terraform" or "tofu", when the snapshot does not say.
	Kind string `json:"kind"`
	// Version when the snapshot does not say; "" takes whatever is found.
	Version string `json:"version,omitempty"`
	// Dir is searched before PATH, for KIND and KIND_VERSION.
	Dir string `json:"dir,omitempty"`
	// Install permits downloading an engine that is not found.
	Install bool `json:"install"`
	// MirrorURL replaces the vendor's release server.
	MirrorURL string `json:"mirror_url,omitempty"`
	// PublicKeyFile replaces the vendor's signing key, ASCII-armoured.
	PublicKeyFile string `json:"public_key_file,omitempty"`
	// ProviderMirror is the URL of a network mirror or the directory of a
	// filesystem mirror, the only source of providers unless ProviderDirect.
	ProviderMirror string `json:"provider_mirror,omitempty"`
	ProviderDirect bool   `json:"provider_direct,omitempty"`
	// OldestTerraform and OldestTofu are the oldest versions that may run, by the
	// agent's policy; "" for any.
	OldestTerraform string `json:"oldest_terraform,omitempty"`
	OldestTofu      string `json:"oldest_tofu,omitempty"`
}

// State is where Terraform's state lives; see the design, section 3.
type State struct {
	// Default is Managed where a template that declares no backend has its state
	// in the database; else it is a local file.
	Default string `json:"default,omitempty"`
	// Backend, when set, replaces whatever the template declares.
	Backend string `json:"backend,omitempty"`
	// Config completes a backend of the type it is keyed by. In values,
	// {workspace_id} stands for the workspace's id.
	Config map[string]map[string]string `json:"config,omitempty"`
}

// Managed is what Default and Backend say of a state that is kept in the
// database, sealed to the cluster's key.
const Managed = "managed"

// MayBeManaged reports whether a run with these settings may have a managed
// state: unless the template declares a backend that is to be used.
func (s State) MayBeManaged() bool {
	return s.Backend == Managed || s.Backend == "" && s.Default == Managed
}

// ManagedState is what a run is told of its workspace's state in the database.
// The state itself, opened, is what StateInFD holds.
type ManagedState struct {
	// Version is the newest that is stored, 0 for none. What the run writes is
	// numbered on from there.
	Version int64 `json:"version"`
}

// Control is one message to a running child.
type Control struct {
	// Ack answers the update of that number: go on, or, with Refused, stop.
	Ack     int64              `json:"ack,omitempty"`
	Refused *provision.Failure `json:"refused,omitempty"`
	// Places answers an update that asked for places of machines.
	Places []provision.Place `json:"places,omitempty"`
	// Stop asks the child to end its run gracefully, and why.
	Stop StopReason `json:"stop,omitempty"`
	// Detach asks a child whose work continues by itself to set its run down. Any other
	// goes on.
	Detach bool `json:"detach,omitempty"`
	// Watched says that people have begun, or ceased, to watch the log; nil: neither.
	Watched *bool `json:"watched,omitempty"`
}

// StopReason says why a run is to end before its time.
type StopReason string

// The reasons an agent gives. AgentGone is what a child tells itself when the
// control pipe ends, SpoolFailed when its output cannot be written.
const (
	StopCancelled StopReason = "cancelled" // a person asked for it
	StopDrained   StopReason = "drained"   // the agent's drain time ran out
	StopLost      StopReason = "lost"      // the claim is no longer this agent's
	StopTimedOut  StopReason = "timed_out"
	StopAgentGone StopReason = "agent_gone"

	StopSpoolFailed StopReason = "spool_failed"
)

// Write puts one message, a Job or a Control, on the pipe.
func Write(w io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode control message: %w", err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write control message: %w", err)
	}
	return nil
}

// Reader reads what Write wrote.
type Reader struct{ decoder *json.Decoder }

// NewReader returns a Reader on the control pipe.
func NewReader(r io.Reader) *Reader { return &Reader{decoder: json.NewDecoder(r)} }

// Job reads the first message.
func (r *Reader) Job() (Job, error) {
	var j Job
	if err := r.decoder.Decode(&j); err != nil {
		return Job{}, fmt.Errorf("read job: %w", err)
	}
	return j, nil
}

// ErrAgentGone is returned when the pipe ends: no agent holds its other end.
var ErrAgentGone = errors.New("the agent is gone")

// Next reads the next control message, and ErrAgentGone when there is no more.
func (r *Reader) Next() (Control, error) {
	var c Control
	err := r.decoder.Decode(&c)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Control{}, ErrAgentGone
	default:
		return Control{}, fmt.Errorf("read control message: %w", err)
	}
}

package provision

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/agext/levenshtein"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/lazyregexp"
)

// MaxSnapshot is the most bytes of JSON a snapshot may have.
const MaxSnapshot = 256 << 10

// Snapshot is what a provision asks for: provisions.config_snapshot. The same
// rules are kept by the database when the row is inserted.
type Snapshot struct {
	TemplateSource TemplateSource `json:"template_source"`
	// TerraformVars are the template's variables, each as it was written, so
	// that numbers keep their precision.
	TerraformVars map[string]json.RawMessage `json:"terraform_vars,omitempty"`
	// Workspace is what the snapshot itself says; see WorkspaceName.
	Workspace string       `json:"workspace,omitempty"`
	Terraform EngineChoice `json:"terraform,omitzero"`
	// SealedVars are variables as age messages to the cluster's key, armoured;
	// what is inside is seal.Variable. None is in TerraformVars as well.
	SealedVars map[string]string `json:"sealed_vars,omitempty"`
	// Targets and Replace are resource addresses, as for -target and -replace.
	Targets []string `json:"targets,omitempty"`
	Replace []string `json:"replace,omitempty"`
	// Power is what the operation power does to the machines that Targets names.
	Power Power `json:"power,omitempty"`
	// Approval may be stricter than what template and cluster want, never
	// more lenient; "" leaves it to them.
	Approval Approval `json:"approval,omitempty"`
	// TimeoutSeconds bounds the run; 0 takes the agent's limit, beyond which it
	// cannot go.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
	// MaxAttempts is how often the provision is tried when it fails before its
	// apply began; 0 and 1 are once.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// RequesterKey is the public key, age1… or ssh-ed25519 …, to which sensitive
	// outputs are sealed, or a certificate of one; "" for none. Whether it may be is
	// for the agent's policy to say.
	RequesterKey string `json:"requester_key,omitempty"`
	// State is what the operation state does.
	State *StateCommand `json:"state,omitempty"`
	// LockID is the lock that the operation unlock releases.
	LockID string `json:"lock_id,omitempty"`
	// Meta is the caller's own: who, why. Nothing here depends on it.
	Meta map[string]json.RawMessage `json:"meta,omitempty"`
}

// StateCommand is one change to a state, or a look at it.
type StateCommand struct {
	// Command is pull, push, list, rm, mv, import, rollback, adopt (take over the
	// state of the backend that the template declares) or reveal (a machine's
	// credentials).
	Command string `json:"command"`
	// Args are the addresses of rm, mv and reveal, and address and id of import. A reveal
	// without one is of all machines.
	Args []string `json:"args,omitempty"`
	// Upload is the blob that push takes, sealed to the cluster's key.
	Upload string `json:"upload,omitempty"`
	// Version is the state that rollback returns to, and that pull reads; 0 is
	// the newest.
	Version int64 `json:"version,omitempty"`
	// Order is what somebody has signed for push and rollback, see trust.Order.
	Order string `json:"order,omitempty"`
}

// TemplateSource is which template, at which point of its history.
type TemplateSource struct {
	Repo string `json:"repo"`
	// Version is a tag or a full commit, never a branch.
	Version string `json:"version"`
	// Path is the template's directory within the repository; "" is its root.
	Path string `json:"path,omitempty"`
}

// EngineChoice is the engine a snapshot asks for; what is empty is up to the
// agent.
type EngineChoice struct {
	Engine  string `json:"engine,omitempty"`  // "terraform" or "tofu"
	Version string `json:"version,omitempty"` // exact, such as 1.11.4
}

// ParseSnapshot reads and checks a config_snapshot. Its error is a Failure
// with CodeBadSnapshot whose message names every problem by its path, one a
// line. A null counts as absent. Whether the snapshot names a workspace is not
// checked here, for an assignment brings the name: ask WorkspaceName.
func ParseSnapshot(data []byte) (Snapshot, error) {
	if len(data) > MaxSnapshot {
		return Snapshot{}, Fail(CodeBadSnapshot, fmt.Sprintf(
			"config_snapshot: %d bytes, at most %d are allowed", len(data), MaxSnapshot), nil)
	}
	root, err := newSnapshotObject("config_snapshot", data)
	if err != nil {
		return Snapshot{}, err
	}

	var s Snapshot
	source := root.object("template_source", true)
	s.TemplateSource.Repo = source.text("repo", true, checkRepo)
	s.TemplateSource.Version = source.text("version", true, checkVersion)
	s.TemplateSource.Path = source.text("path", false, checkPath)
	source.refuseUnknown(map[string]string{
		"url": "repo", "repository": "repo", "git": "repo",
		"ref": "version", "tag": "version", "branch": "version", "commit": "version", "revision": "version",
		"dir": "path", "directory": "path", "subdir": "path", "folder": "path",
	})

	vars := root.object("terraform_vars", false)
	for _, name := range slices.Sorted(maps.Keys(vars.members)) {
		if problem := checkVariableName(name); problem != "" {
			vars.fail(quoteUnlessPlain(name), problem)
		}
	}
	s.TerraformVars = vars.members

	s.Workspace = root.text("workspace", false, checkWorkspace)

	engine := root.object("terraform", false)
	s.Terraform.Engine = engine.text("engine", false, checkEngine)
	s.Terraform.Version = engine.text("version", false, checkEngineVersion)
	engine.refuseUnknown(map[string]string{"kind": "engine", "name": "engine"})

	s.SealedVars = root.sealed("sealed_vars", s.TerraformVars)
	s.Targets = root.addresses("targets")
	s.Replace = root.addresses("replace")
	s.Power = Power(root.text("power", false, checkPower))
	s.Approval = Approval(root.text("approval", false, checkApproval))
	s.TimeoutSeconds = int(root.number("timeout_seconds", 1, maxTimeout))
	s.MaxAttempts = int(root.number("max_attempts", 1, maxAttempts))
	s.RequesterKey = root.text("requester_key", false, checkRequesterKey)
	s.LockID = root.text("lock_id", false, checkArgument(maxLockID))
	s.State = root.stateCommand("state")

	s.Meta = root.object("meta", false).members
	root.refuseUnknown(map[string]string{
		"vars": "terraform_vars", "variables": "terraform_vars", "tfvars": "terraform_vars",
		"source": "template_source", "template": "template_source", "engine": "terraform",
		"metadata": "meta",
	})

	if problems := *root.problems; len(problems) > 0 {
		return Snapshot{}, Fail(CodeBadSnapshot, strings.Join(problems, "\n"), nil)
	}
	return s, nil
}

// WorkspaceName is the workspace that the snapshot belongs to: the one it
// names, else project_name/environment from its variables. The error is a
// Failure with CodeBadSnapshot.
func (s Snapshot) WorkspaceName() (string, error) {
	if s.Workspace != "" {
		return s.Workspace, nil
	}
	var parts [2]string
	for i, name := range []string{"project_name", "environment"} {
		// A value that is no string leaves the part empty.
		if err := json.Unmarshal(s.TerraformVars[name], &parts[i]); err != nil || parts[i] == "" {
			return "", Fail(CodeBadSnapshot, "config_snapshot.workspace: missing; "+
				"give it, or project_name and environment as strings in terraform_vars", nil)
		}
		// a/b with c and a with b/c must not become one state.
		if strings.Contains(parts[i], "/") {
			return "", Fail(CodeBadSnapshot, "config_snapshot.workspace: missing; "+
				"project_name and environment cannot stand for it, for one has a \"/\" in it", nil)
		}
	}
	workspace := parts[0] + "/" + parts[1]
	if problem := checkWorkspace(workspace); problem != "" {
		return "", Fail(CodeBadSnapshot, fmt.Sprintf(
			"config_snapshot.workspace: missing, and project_name/environment will not do: %s", problem), nil)
	}
	return workspace, nil
}

// Again is the snapshot for another operation on what an earlier one deployed:
// its template, variables and engine, for that workspace, and nothing that was
// meant for the one run alone, as its targets. by is what triggers it, and
// requesterKey the key of who asks now, "" for none: nothing is sealed to who asked
// then. change may be nil. An error is a Failure with CodeBadSnapshot.
func Again(last []byte, workspace, by, requesterKey string, change func(*Snapshot)) (json.RawMessage, error) {
	before, err := ParseSnapshot(last)
	if err != nil {
		return nil, err
	}
	triggered, err := json.Marshal(by)
	if err != nil {
		return nil, fmt.Errorf("encode who triggers it: %w", err)
	}
	asked := Snapshot{
		TemplateSource: before.TemplateSource, TerraformVars: before.TerraformVars, SealedVars: before.SealedVars,
		Workspace: workspace, Terraform: before.Terraform, RequesterKey: requesterKey,
		Meta: map[string]json.RawMessage{"triggered_by": triggered},
	}
	if change != nil {
		change(&asked)
	}
	if err := before.SealedElsewhere(asked); err != nil {
		return nil, err
	}
	snapshot, err := json.Marshal(asked)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	_, err = ParseSnapshot(snapshot)
	return snapshot, err
}

// SealedElsewhere refuses what asks for sealed values of this snapshot in another
// workspace or with another template: they were sealed for this one's, and an agent
// would not open them. A workspace that was renamed is another one. The error is a
// Failure with CodeBadSnapshot that names each.
func (s Snapshot) SealedElsewhere(asked Snapshot) error {
	was, err := s.WorkspaceName()
	if err != nil {
		return nil //nolint:nilerr // it was taken all the same; the agent compares
	}
	is, err := asked.WorkspaceName()
	if err != nil {
		return err
	}
	var differs []string
	if was != is {
		differs = append(differs, fmt.Sprintf("the workspace %s, and this is for the workspace %s", was, is))
	}
	if was, is := canonical.Address(s.TemplateSource.Repo), canonical.Address(asked.TemplateSource.Repo); was != is {
		differs = append(differs, fmt.Sprintf("the template repository %s, and this is for %s", was, is))
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(asked.SealedVars)) {
		if len(differs) > 0 && asked.SealedVars[name] == s.SealedVars[name] {
			problems = append(problems, fmt.Sprintf("config_snapshot.sealed_vars.%s: it was sealed for %s; seal the value again", name, strings.Join(differs, ", and for ")))
		}
	}
	if problems == nil {
		return nil
	}
	return Fail(CodeBadSnapshot, strings.Join(problems, "\n"), nil)
}

// What a snapshot says of how it is to be run. The database says the same in
// the same words: tendril.snapshot_problems and tendril.operation_problems.

const (
	maxAddresses  = 100
	maxAddress    = 512
	maxSealed     = 16 << 10 // bytes
	maxTimeout    = 604800   // seconds: a week
	maxAttempts   = 10
	maxLockID     = 200
	maxCommand    = 20
	maxStateCount = 1<<53 - 1
	maxSigned     = 8192 // of a certificate and of an order
)

var (
	ageMessage   = lazyregexp.New(`^-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=]{1,64}\r?\n)+-----END AGE ENCRYPTED FILE-----[\r\n]*$`).MatchString
	requesterKey = lazyregexp.New(`^(age1[02-9ac-hj-np-z]{58}|ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}( [^\x01-\x1f\x7f-\x{9f}]{1,200})?)$`).MatchString
	uploadID     = regexp.MustCompile(`^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`)
	certificate  = lazyregexp.New(`^tendril-certificate-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$`).MatchString
	order        = lazyregexp.New(`^tendril-order-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$`).MatchString
	// stateCommands are those of a StateCommand.
	stateCommands = []string{"pull", "push", "list", "rm", "mv", "import", "rollback", "adopt", "reveal"}
)

// sealed reads the variables that are age messages. What does not fit is not
// repeated: it may be the secret itself.
func (o *snapshotObject) sealed(name string, plain map[string]json.RawMessage) map[string]string {
	vars := o.object(name, false)
	if len(vars.members) == 0 {
		return nil
	}
	sealed := make(map[string]string, len(vars.members))
	for _, key := range slices.Sorted(maps.Keys(vars.members)) {
		var text string
		problem := checkVariableName(key)
		if problem == "" && (kindOf(vars.members[key]) != "a string" || json.Unmarshal(vars.members[key], &text) != nil) {
			problem = "must be a string, not " + kindOf(vars.members[key])
		}
		if problem == "" {
			problem = checkSealed(text)
		}
		if _, twice := plain[key]; problem == "" && twice {
			problem = "is in terraform_vars as well; give it once"
		}
		if problem != "" {
			vars.fail(quoteUnlessPlain(key), problem)
		}
		sealed[key] = text
	}
	return sealed
}

func checkSealed(text string) string {
	if len(text) > maxSealed {
		return fmt.Sprintf("%d bytes, at most %d are allowed", len(text), maxSealed)
	}
	if !ageMessage(text) {
		return `must be an armoured age message, as "trellis seal" makes it`
	}
	return ""
}

// addresses reads a list of arguments for an engine.
func (o *snapshotObject) addresses(name string) []string {
	raw, ok := o.take(name, false)
	if !ok {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		o.fail(name, "must be a list, not "+kindOf(raw))
		return nil
	}
	if len(list) > maxAddresses {
		o.fail(name, fmt.Sprintf("%d addresses, at most %d are allowed", len(list), maxAddresses))
		return nil
	}
	texts := make([]string, len(list))
	for i, raw := range list {
		var problem string
		if kindOf(raw) != "a string" || json.Unmarshal(raw, &texts[i]) != nil {
			problem = "must be a string, not " + kindOf(raw)
		} else {
			problem = checkArgument(maxAddress)(texts[i])
		}
		if problem != "" {
			o.fail(fmt.Sprintf("%s[%d]", name, i), problem)
		}
	}
	return texts
}

// number reads a whole number.
func (o *snapshotObject) number(name string, least, most int64) int64 {
	raw, ok := o.take(name, false)
	if !ok {
		return 0
	}
	if kindOf(raw) != "a number" {
		o.fail(name, "must be a number, not "+kindOf(raw))
		return 0
	}
	// Not as an integer: the database stores 1e3 and 1000 as one.
	n, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if err != nil || n != math.Trunc(n) || n < float64(least) || n > float64(most) {
		o.fail(name, fmt.Sprintf("must be a whole number from %d to %d", least, most))
		return 0
	}
	return int64(n)
}

// stateCommand reads what the operation state does.
func (o *snapshotObject) stateCommand(name string) *StateCommand {
	if raw, ok := o.members[name]; !ok || kindOf(raw) != "an object" {
		o.object(name, false)
		return nil
	}
	s := o.object(name, false)
	problems := len(*s.problems)
	c := &StateCommand{Command: s.text("command", true, checkStateCommand)}
	known := len(*s.problems) == problems
	problems = len(*s.problems)
	c.Args = s.addresses("args")
	if known && (c.Args != nil || len(*s.problems) == problems) {
		s.countArgs(c)
	}
	raw, given := s.take("upload", false)
	switch {
	case !given && known && c.Command == "push":
		s.fail("upload", "missing; push needs it")
	case given && known && c.Command != "push":
		s.fail("upload", "only for push")
	case given:
		if json.Unmarshal(raw, &c.Upload) != nil {
			s.fail("upload", "must be a string, not "+kindOf(raw))
		} else if !uploadID.MatchString(c.Upload) {
			s.fail("upload", "must be the id of an upload, a UUID in lower case")
		}
	}
	_, given = s.take("version", false)
	switch {
	case !given && known && c.Command == "rollback":
		s.fail("version", "missing; rollback needs it")
	case given && known && c.Command != "pull" && c.Command != "rollback":
		s.fail("version", "only for pull and rollback")
	case given:
		c.Version = s.number("version", 1, maxStateCount)
	}
	raw, given = s.take("order", false)
	switch {
	case given && known && c.Command != "push" && c.Command != "rollback":
		s.fail("order", "only for push and rollback")
	case given:
		if json.Unmarshal(raw, &c.Order) != nil {
			s.fail("order", "must be a string, not "+kindOf(raw))
		} else if len(c.Order) > maxSigned || !order(c.Order) {
			s.fail("order", "must be a signed order, as trellis state push and rollback make it")
		}
	}
	s.refuseUnknown(nil)
	return c
}

func (o *snapshotObject) countArgs(c *StateCommand) {
	switch n := len(c.Args); c.Command {
	case "mv", "import":
		if n != 2 {
			o.fail("args", fmt.Sprintf("%s takes 2 arguments, not %d", c.Command, n))
		}
	case "reveal":
		if n > 1 {
			o.fail("args", fmt.Sprintf("reveal takes 1 argument at most, not %d", n))
		}
	case "rm":
		if n == 0 {
			o.fail("args", "rm takes an argument at least")
		}
	default:
		if n > 0 {
			o.fail("args", c.Command+" takes no arguments")
		}
	}
}

// CheckOperation refuses what the snapshot lacks for an operation, or has in
// vain. Its error is like ParseSnapshot's.
func (s Snapshot) CheckOperation(op Operation) error {
	var problems []string
	if s.Targets != nil && (op == OperationUnlock || op == OperationState) {
		problems = append(problems, fmt.Sprintf("config_snapshot.targets: not for operation %s", op))
	}
	if s.Targets == nil && op == OperationPower {
		problems = append(problems, "config_snapshot.targets: missing; operation power needs it")
	}
	if s.Replace != nil && op != OperationPlan && op != OperationApply {
		problems = append(problems, fmt.Sprintf("config_snapshot.replace: not for operation %s", op))
	}
	for _, m := range []struct {
		name  string
		given bool
		of    Operation
	}{{"state", s.State != nil, OperationState}, {"lock_id", s.LockID != "", OperationUnlock}, {"power", s.Power != "", OperationPower}} {
		switch {
		case op == m.of && !m.given:
			problems = append(problems, fmt.Sprintf("config_snapshot.%s: missing; operation %s needs it", m.name, op))
		case op != m.of && m.given:
			problems = append(problems, fmt.Sprintf("config_snapshot.%s: not for operation %s", m.name, op))
		}
	}
	if len(problems) > 0 {
		return Fail(CodeBadSnapshot, strings.Join(problems, "\n"), nil)
	}
	return nil
}

func checkPower(power string) string {
	if !slices.Contains(Powers, Power(power)) {
		return `must be "start", "stop", "restart", "rescue" or "unrescue"`
	}
	return ""
}

func checkApproval(rule string) string {
	if rule != string(ApprovalNever) && rule != string(ApprovalDestructive) && rule != string(ApprovalAlways) {
		return `must be "never", "destructive" or "always"`
	}
	return ""
}

func checkRequesterKey(key string) string {
	if !requesterKey(key) && (len(key) > maxSigned || !certificate(key)) {
		return "must be a public key, age1… or ssh-ed25519 …, or a certificate of one"
	}
	return ""
}

func checkStateCommand(command string) string {
	if problem := checkText(command, maxCommand); problem != "" {
		return problem
	}
	if !slices.Contains(stateCommands, command) {
		return "must be pull, push, list, rm, mv, import, rollback, adopt or reveal"
	}
	return ""
}

// checkArgument refuses what an engine would take for an option.
func checkArgument(longest int) func(string) string {
	return func(value string) string {
		if problem := checkText(value, longest); problem != "" {
			return problem
		}
		if strings.HasPrefix(value, "-") {
			return "must not start with a dash"
		}
		return ""
	}
}

// snapshotObject is one JSON object of a snapshot while it is read. Problems
// are gathered, not returned, so that a person sees all of them at once.
type snapshotObject struct {
	path     string
	members  map[string]json.RawMessage
	known    []string
	problems *[]string
}

// newSnapshotObject reads the outermost object; without it there is nothing
// more to check.
func newSnapshotObject(path string, data []byte) (*snapshotObject, error) {
	o := &snapshotObject{path: path, problems: new([]string)}
	if !json.Valid(data) {
		var value any
		cause := json.Unmarshal(data, &value)
		return nil, Fail(CodeBadSnapshot, fmt.Sprintf("%s: not JSON: %v", path, cause), cause)
	}
	if err := json.Unmarshal(data, &o.members); err != nil || o.members == nil {
		return nil, Fail(CodeBadSnapshot, fmt.Sprintf("%s: must be an object, not %s", path, kindOf(data)), nil)
	}
	return o, nil
}

// fail notes a problem with the member called name.
func (o *snapshotObject) fail(name, problem string) {
	*o.problems = append(*o.problems, fmt.Sprintf("%s.%s: %s", o.path, name, problem))
}

// take returns the member called name and notes that it is known. An absent
// one and a null are the same.
func (o *snapshotObject) take(name string, required bool) (json.RawMessage, bool) {
	o.known = append(o.known, name)
	raw, ok := o.members[name]
	if ok && kindOf(raw) != "null" {
		return raw, true
	}
	if required {
		o.fail(name, "missing")
	}
	return nil, false
}

// object reads a member that is an object. What comes back is never nil; where
// there is no object, reading from it finds nothing and complains of nothing.
func (o *snapshotObject) object(name string, required bool) *snapshotObject {
	child := &snapshotObject{path: o.path + "." + name, problems: o.problems}
	raw, ok := o.take(name, required)
	if ok && json.Unmarshal(raw, &child.members) != nil {
		o.fail(name, "must be an object, not "+kindOf(raw))
		ok = false
	}
	if !ok {
		child.members, child.problems = nil, new([]string)
	}
	return child
}

// text reads a member that is a string and passes it to check, which answers
// what is wrong with it or "".
func (o *snapshotObject) text(name string, required bool, check func(string) string) string {
	raw, ok := o.take(name, required)
	if !ok {
		return ""
	}
	var value string
	if json.Unmarshal(raw, &value) != nil {
		o.fail(name, "must be a string, not "+kindOf(raw))
		return ""
	}
	if problem := check(value); problem != "" {
		o.fail(name, problem)
	}
	return value
}

// refuseUnknown names the members that nothing has taken. Synonyms are names
// that people bring from other tools.
func (o *snapshotObject) refuseUnknown(synonyms map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(o.members)) {
		if slices.Contains(o.known, name) {
			continue
		}
		hint := DidYouMean(name, o.known)
		if meant, ok := synonyms[fold(name)]; ok {
			hint = fmt.Sprintf("; did you mean %q?", meant)
		}
		o.fail(quoteUnlessPlain(name), "unknown"+hint)
	}
}

// quoteUnlessPlain keeps a stranger's key from breaking the line it is named in.
func quoteUnlessPlain(name string) string {
	const longest = 80
	if len(name) > longest {
		name = name[:longest] + "…"
	}
	if checkVariableName(name) == "" {
		return name
	}
	return strconv.Quote(name)
}

// kindOf says what a valid JSON text is, in the words of a message.
func kindOf(raw json.RawMessage) string {
	for _, c := range raw {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case '{':
			return "an object"
		case '[':
			return "a list"
		case '"':
			return "a string"
		case 't', 'f':
			return "a boolean"
		case 'n':
			return "null"
		default:
			return "a number"
		}
	}
	return "nothing"
}

// The rules below are kept in SQL too, in the trigger that accepts a
// provision: keep both the same. Lengths are in characters, as SQL counts.
// Every check answers what is wrong with the value, or "".

const (
	maxVersion      = 200
	maxPath         = 500
	maxVariableName = 200
	maxEngineVer    = 64
)

var (
	variableName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
	engineVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
)

func checkRepo(repo string) string {
	if repo == "" {
		return "missing"
	}
	if _, err := canonical.ParseRepository(repo); err != nil {
		return err.Error()
	}
	return ""
}

func checkVersion(version string) string {
	if problem := checkText(version, maxVersion); problem != "" {
		return problem
	}
	switch {
	case strings.HasPrefix(version, "-"):
		return "must not start with a dash"
	case strings.HasPrefix(version, "refs/"):
		return `must be a tag or a full commit, without "refs/"`
	case strings.Contains(version, ".."):
		return `must not contain ".."`
	case strings.ContainsFunc(version, unicode.IsSpace):
		return "must not contain white space"
	case strings.ContainsAny(version, `~^:?*[\`):
		return `must be a tag or a full commit, without any of ~^:?*[\`
	}
	return ""
}

func checkPath(path string) string {
	if path == "" {
		return ""
	}
	if problem := checkText(path, maxPath); problem != "" {
		return problem
	}
	switch {
	case strings.HasPrefix(path, "/"):
		return "must be relative to the repository's root"
	case strings.Contains(path, `\`):
		return "must not contain a backslash"
	case slices.Contains(strings.Split(path, "/"), ".."):
		return `must not contain ".."`
	}
	return ""
}

func checkWorkspace(name string) string {
	if name == "" {
		return "missing"
	}
	problem := canonical.WorkspaceProblem(name)
	if problem == "" {
		return ""
	}
	shown := []rune(name)
	return fmt.Sprintf("%q %s", string(shown[:min(len(shown), 200)]), problem)
}

func checkEngine(engine string) string {
	if engine != "terraform" && engine != "tofu" {
		return `must be "terraform" or "tofu"`
	}
	return ""
}

// ExactVersion reports whether version names one release of an engine, such as
// 1.11.4 or 1.12.0-beta1, rather than a range.
func ExactVersion(version string) bool {
	return len(version) <= maxEngineVer && engineVersion.MatchString(version)
}

func checkEngineVersion(version string) string {
	if !ExactVersion(version) {
		return "must be one exact version, such as 1.11.4"
	}
	return ""
}

func checkVariableName(name string) string {
	if len(name) > maxVariableName || !variableName.MatchString(name) {
		return "not a variable name; letters, digits, _ and - are allowed, a letter or _ first"
	}
	return ""
}

// checkText refuses what no text value may be: empty, longer than longest, or
// with characters that a terminal or a log would obey.
func checkText(value string, longest int) string {
	switch n := len([]rune(value)); {
	case n == 0:
		return "missing"
	case n > longest:
		return fmt.Sprintf("%d characters, at most %d are allowed", n, longest)
	case strings.ContainsFunc(value, unicode.IsControl):
		return "must not contain control characters"
	}
	return ""
}

// maxListed is how many known names a message lists when none is near.
const maxListed = 12

// DidYouMean ends a message about a name that is not among known: with the
// nearest known name if one is near enough to be a slip of the pen, else with
// all of them if they are few, else with nothing.
func DidYouMean(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > maxListed {
		return ""
	}
	return "; known: " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
}

// nearest returns the known name that takes the fewest edits to reach, at most
// one for every three characters, or "".
func nearest(name string, known []string) string {
	const longest = 256 // nobody mistypes a longer name, and the cost is quadratic
	if len(name) > longest {
		return ""
	}
	best, fewest := "", max(1, (len(name)+1)/3)+1
	for _, candidate := range slices.Sorted(slices.Values(known)) {
		if len(candidate) > longest {
			continue
		}
		if edits := levenshtein.Distance(fold(name), fold(candidate), nil); edits < fewest {
			best, fewest = candidate, edits
		}
	}
	return best
}

// fold makes names that differ only in case or in their dashes the same.
func fold(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }

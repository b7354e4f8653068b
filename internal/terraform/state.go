package terraform

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"
	tfjson "github.com/hashicorp/terraform-json"
	"github.com/zclconf/go-cty/cty"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/provision"
)

// State is what a state records of what exists.
type State struct {
	Resources []provision.Resource // managed, sorted by address
	// Outputs of the root module; those that are null are not among them.
	Outputs map[string]OutputValue
	// Secrets are values that must never be shown, as SensitiveValues has them.
	Secrets []string
}

// errStateFormat is met where a state is not of the one format there has been
// since Terraform 0.12, or is encrypted.
var errStateFormat = errors.New("a state of another format than version 4")

// storedState is that format, as far as it is needed here.
type storedState struct {
	Version   int                    `json:"version"`
	Outputs   map[string]OutputValue `json:"outputs"`
	Resources []struct {
		Module    string           `json:"module"`
		Mode      string           `json:"mode"`
		Type      string           `json:"type"`
		Name      string           `json:"name"`
		Provider  string           `json:"provider"`
		Instances []storedInstance `json:"instances"`
	} `json:"resources"`
}

type storedInstance struct {
	IndexKey   any            `json:"index_key"`
	Status     string         `json:"status"`
	Deposed    string         `json:"deposed"`
	Attributes map[string]any `json:"attributes"`
	// Sensitive are paths. Before Terraform 1.11, and in OpenTofu, what a
	// provider says is sensitive is not among them; the plan has that.
	Sensitive [][]storedStep `json:"sensitive_attributes"`
}

type storedStep struct {
	Type  string `json:"type"`
	Value any    `json:"value"`
}

// ReadState reads a state as the engine stores it; an empty text is an empty
// state. It takes no engine process, and so no schema of a provider: what is
// sensitive by one is known from the plan that the state came from.
func ReadState(raw []byte, plan *tfjson.Plan) (State, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return State{Resources: []provision.Resource{}}, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var file storedState
	if err := decoder.Decode(&file); err != nil {
		return State{}, fmt.Errorf("read the state: %w", err)
	}
	if file.Version != 4 {
		return State{}, fmt.Errorf("read the state: %w", errStateFormat)
	}
	secrets, marked := make(secretSet), marksOf(plan)
	state := State{Resources: []provision.Resource{}, Outputs: file.Outputs}
	for _, output := range file.Outputs {
		if output.Sensitive {
			secrets.addJSON(output.Value)
		}
	}
	for _, r := range file.Resources {
		for _, instance := range r.Instances {
			address := instance.address(r.Module, r.Type, r.Name)
			secrets.addInstance(instance, marked[address])
			if r.Mode != string(tfjson.ManagedResourceMode) {
				continue
			}
			resource := describeResource(address, r.Type, instance.Attributes, instance.hides(marked, address))
			resource.Provider = providerSource(r.Provider)
			if instance.Status == "tainted" {
				resource.Status = statusTainted
			}
			if instance.Deposed != "" { // left of a replacement; it goes with the next apply
				resource.Address += fmt.Sprintf(" (deposed object %s)", instance.Deposed)
				resource.Status = statusTainted
			}
			state.Resources = append(state.Resources, resource)
		}
	}
	slices.SortFunc(state.Resources, func(a, b provision.Resource) int { return cmp.Compare(a.Address, b.Address) })
	state.Secrets = secrets.sorted()
	return state, nil
}

// address is written as the engine writes it.
func (i storedInstance) address(module, resourceType, name string) string {
	var b strings.Builder
	if module != "" {
		b.WriteString(module + ".")
	}
	b.WriteString(resourceType + "." + name)
	switch key := i.IndexKey.(type) {
	case json.Number:
		fmt.Fprintf(&b, "[%s]", key)
	case string:
		fmt.Fprintf(&b, "[%s]", hclwrite.TokensForValue(cty.StringVal(key)).Bytes())
	}
	return b.String()
}

// hides says of which attributes nothing may be shown: those that are sensitive
// somewhere within; all of them, where nobody knows.
func (i storedInstance) hides(marked map[string]any, address string) func(string) bool {
	marks, known := marked[address]
	return func(attribute string) bool {
		return !known || marksIn(marks, attribute) || slices.ContainsFunc(i.Sensitive, func(path []storedStep) bool {
			return len(path) == 0 || path[0].Value == attribute
		})
	}
}

// addInstance adds what an instance holds that is sensitive, by the state and by
// the plan's marks.
func (s secretSet) addInstance(i storedInstance, marks any) {
	for _, path := range i.Sensitive {
		var value any = i.Attributes
		for _, step := range path {
			value = step.in(value)
		}
		s.addLong(withoutTypes(value))
	}
	members, _ := marks.(map[string]any)
	for name, mark := range members {
		s.addMarked(withoutTypes(i.Attributes[name]), mark)
	}
}

// in follows one step into a value. Where it leads nowhere it stays: more is
// hidden then.
func (s storedStep) in(value any) any {
	key := s.Value
	if index, ok := key.(map[string]any); ok { // {"value": "k", "type": "string"}
		key = index["value"]
	}
	value = unwrapped(value)
	switch key := key.(type) {
	case string:
		if members, ok := value.(map[string]any); ok {
			return members[key]
		}
	case json.Number:
		if i, err := key.Int64(); err == nil && i >= 0 && int(i) < length(value) {
			return ofIndex(value, int(i))
		}
	}
	return value
}

// unwrapped is a value without what a state says about its type, where its
// provider does not: {"value": …, "type": …}.
func unwrapped(value any) any {
	members, _ := value.(map[string]any)
	if _, typed := members["type"]; !typed || len(members) != 2 {
		return value
	}
	if inner, ok := members["value"]; ok {
		return inner
	}
	return value
}

// withoutTypes is unwrapped for a value and all in it: "string" is no secret.
func withoutTypes(value any) any {
	switch v := unwrapped(value).(type) {
	case map[string]any:
		members := make(map[string]any, len(v))
		for name, member := range v {
			members[name] = withoutTypes(member)
		}
		return members
	case []any:
		elements := make([]any, len(v))
		for i, element := range v {
			elements[i] = withoutTypes(element)
		}
		return elements
	default:
		return v
	}
}

// providerSource is the provider's address in provider["ADDRESS"].alias.
func providerSource(text string) string {
	if _, rest, ok := strings.Cut(text, `["`); ok {
		text, _, _ = strings.Cut(rest, `"]`)
	}
	return text
}

// marksOf collects, by address, what a plan says is sensitive in what it leaves.
func marksOf(plan *tfjson.Plan) map[string]any {
	marked := make(map[string]any)
	if plan == nil {
		return marked
	}
	if plan.PriorState != nil && plan.PriorState.Values != nil {
		marksOfModule(marked, plan.PriorState.Values.RootModule)
	}
	for _, change := range plan.ResourceChanges {
		if change == nil || change.Change == nil || change.DeposedKey != "" {
			continue
		}
		if change.Change.After == nil && change.Change.AfterSensitive != true {
			marked[change.Address] = change.Change.BeforeSensitive // what may be left of it
			continue
		}
		marked[change.Address] = change.Change.AfterSensitive
	}
	return marked
}

func marksOfModule(marked map[string]any, module *tfjson.StateModule) {
	if module == nil {
		return
	}
	for _, r := range module.Resources {
		if r == nil {
			continue
		}
		var marks any
		unmarshalLoose(r.SensitiveValues, &marks)
		marked[r.Address] = marks
	}
	for _, child := range module.ChildModules {
		marksOfModule(marked, child)
	}
}

// marksIn reports whether a resource's mask has anything within an attribute.
func marksIn(mask any, attribute string) bool {
	if members, ok := mask.(map[string]any); ok {
		return marks(members[attribute])
	}
	return marks(mask)
}

// StateHeader is what every state says about itself.
type StateHeader struct {
	Version int    `json:"version"`
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
}

// ReadStateHeader reads a whole state. One that is cut short is an error.
func ReadStateHeader(state []byte) (StateHeader, error) {
	var header StateHeader
	if err := json.Unmarshal(state, &header); err != nil {
		return StateHeader{}, fmt.Errorf("read the state: %w", err)
	}
	if header.Version <= 0 {
		return StateHeader{}, fmt.Errorf("read the state: it has no version")
	}
	return header, nil
}

// Follow returns state with a serial above that of the state it was made from.
// An engine that fails before it has written anything keeps the old serial, and
// would then refuse to push what it left: "a different state that has the same
// serial". A state that was written by somebody else since has that serial too,
// so the push is still refused where it must be.
func Follow(state []byte, base StateHeader) ([]byte, error) {
	header, err := ReadStateHeader(state)
	if err != nil {
		return nil, err
	}
	if base.Lineage == "" || header.Lineage != base.Lineage || header.Serial > base.Serial {
		return state, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(state, &fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	fields["serial"] = fmt.Appendf(nil, "%d", base.Serial+1)
	return json.Marshal(fields)
}

// PlanBase is the state that a saved plan was made from.
type PlanBase struct {
	State StateHeader
	// Room is how many bytes the state may have after the apply, as a guess:
	// twice what it has now, and four times the plan, for what is planned may
	// come back as more than one attribute.
	Room int64
}

// ReadPlanBase looks into a saved plan, which is a zip archive. It starts no
// engine.
func ReadPlanBase(planFile string) (PlanBase, error) {
	archive, err := zip.OpenReader(planFile)
	if err != nil {
		return PlanBase{}, fmt.Errorf("read the plan: %w", err)
	}
	defer archive.Close() //nolint:errcheck // opened for reading
	var base PlanBase
	for _, entry := range archive.File {
		switch entry.Name {
		case "tfstate":
			base.Room += 2 * int64(entry.UncompressedSize64)
			if base.State, err = readHeader(entry); err != nil {
				return PlanBase{}, err
			}
		case "tfplan":
			base.Room += 4 * int64(entry.UncompressedSize64)
		}
	}
	return base, nil
}

func readHeader(entry *zip.File) (StateHeader, error) {
	file, err := entry.Open()
	if err != nil {
		return StateHeader{}, fmt.Errorf("read the plan's state: %w", err)
	}
	defer file.Close() //nolint:errcheck // opened for reading
	content, err := io.ReadAll(file)
	if err != nil {
		return StateHeader{}, fmt.Errorf("read the plan's state: %w", err)
	}
	return ReadStateHeader(content)
}

// Succeed returns state as the one that comes after another, whatever its own
// past: with that one's lineage and the next serial.
func Succeed(state []byte, over StateHeader) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(state, &fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	lineage, err := json.Marshal(over.Lineage)
	if err != nil {
		return nil, fmt.Errorf("write the state: %w", err)
	}
	fields["lineage"], fields["serial"] = lineage, fmt.Appendf(nil, "%d", over.Serial+1)
	return json.Marshal(fields)
}

// MaxStateFile is how large a state may be that is read as a whole, in bytes.
// It is held in memory, some ten times its size where two are compared.
const MaxStateFile = 256 << 20

// ErrStateTooLarge is met where a state has more than MaxStateFile bytes.
var ErrStateTooLarge = fmt.Errorf("a state of more than %d MiB", MaxStateFile>>20)

// ErrNoStateFile is met where something else than a regular file has taken the
// place of a state: a link, a pipe, a directory. A template may have put it there.
var ErrNoStateFile = errors.New("no regular file")

// OpenStateFile opens a state where a template may write. It follows no link,
// to another workspace's state for one, and waits for nobody, as opening a pipe
// would.
func OpenStateFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %w", ErrNoStateFile, err)
	case err != nil:
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w", path, ErrNoStateFile)
	}
	if err != nil {
		_ = file.Close() // only opened for reading
		return nil, err
	}
	return file, nil
}

// ReadStateFile reads a state, whole or not, of at most MaxStateFile bytes; see
// OpenStateFile.
func ReadStateFile(path string) ([]byte, error) {
	file, err := OpenStateFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	state, err := io.ReadAll(io.LimitReader(file, MaxStateFile+1))
	if err == nil && len(state) > MaxStateFile {
		err = fmt.Errorf("read %s: %w", path, ErrStateTooLarge)
	}
	return state, err
}

// ShowState reads the state where Init has said. It holds sensitive values:
// nothing of it is written to the Runner's Stdout. Fails with CodeStateFailed.
func (r *Runner) ShowState(ctx context.Context) (*tfjson.State, error) {
	var shown bytes.Buffer
	run := r.command("show", provision.CodeStateFailed)
	run.into = &shown
	if err := run.do(ctx, "-json", "-no-color"); err != nil {
		return nil, err
	}
	state := new(tfjson.State)
	state.UseJSONNumber(true)
	if err := json.Unmarshal(shown.Bytes(), state); err != nil {
		return nil, fmt.Errorf("read what %s show says of the state: %w", r.engine.Kind, err)
	}
	return state, nil
}

// RemoveFromState forgets resources: they go on existing. Fails with
// CodeStateFailed; those before the one that failed are forgotten then.
func (r *Runner) RemoveFromState(ctx context.Context, addresses ...string) error {
	for _, address := range addresses {
		if err := operand(address); err != nil {
			return err
		}
		if err := r.change(ctx, "state rm", address); err != nil {
			return err
		}
	}
	return nil
}

// MoveInState records a resource under another address. Fails with
// CodeStateFailed.
func (r *Runner) MoveInState(ctx context.Context, from, to string) error {
	for _, address := range []string{from, to} {
		if err := operand(address); err != nil {
			return err
		}
	}
	return r.change(ctx, "state mv", from, to)
}

// Import records something that exists, by its provider's id, under an address
// of the configuration. Fails with CodeStateFailed.
func (r *Runner) Import(ctx context.Context, address, id string, varFiles ...string) error {
	for _, text := range []string{address, id} {
		if err := operand(text); err != nil {
			return err
		}
	}
	args := []string{"-input=false"}
	for _, file := range varFiles {
		args = append(args, "-var-file="+file)
	}
	return r.change(ctx, "import", append(args, address, id)...)
}

// Unlock releases the state's lock of that id, whoever holds it. Fails with
// CodeStateFailed.
func (r *Runner) Unlock(ctx context.Context, lockID string) error {
	if err := operand(lockID); err != nil {
		return err
	}
	return r.change(ctx, "force-unlock", "-force", lockID)
}

func (r *Runner) change(ctx context.Context, name string, args ...string) error {
	run := r.command(name, provision.CodeStateFailed)
	run.use = WritesState
	run.print()
	return run.do(ctx, args...)
}

// operand refuses what the engine would take for an option.
func operand(text string) error {
	if text == "" || strings.HasPrefix(text, "-") {
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("%q is neither an address nor an id", text), nil)
	}
	return nil
}

// Recorded lists the managed resources of a state, as Resources does.
func Recorded(state *tfjson.State) []provision.Resource {
	exist := make(map[string]provision.Resource)
	if state.Values != nil {
		addResources(exist, state.Values.RootModule)
	}
	return sortedResources(exist)
}

// SensitiveInState returns what a state knows of values that must not be shown,
// as SensitiveValues does for a plan.
func SensitiveInState(state *tfjson.State) []string {
	found := make(secretSet)
	if state.Values == nil {
		return nil
	}
	for _, output := range state.Values.Outputs {
		if output != nil && output.Sensitive {
			found.add(output.Value)
		}
	}
	found.addModule(state.Values.RootModule)
	return found.sorted()
}

// ErrStateConflict is in the chain of an error that says: the backend holds a
// state which the pushed one does not follow from. Trying again does not help.
var ErrStateConflict = errors.New("the backend holds another state")

// PushOptions belong to PushState.
type PushOptions struct {
	// KillAfter is how long after the interrupt the engine is killed; 0 means
	// never. A push does not heed the interrupt: one that hangs on its backend
	// ends by this alone, and may leave the state's lock behind.
	KillAfter time.Duration
}

// PushState stores the state in file where Init has said, under the state's
// lock, and never by force: a state of another lineage, a newer one, or another
// one with the same serial stays, and the error has ErrStateConflict in its
// chain. Pushing again what is stored already succeeds, though the engine
// refuses that: it stores a state under the next serial, and in an empty backend
// under another lineage. Nothing is printed; all that the engine says is in the
// error. Fails with CodeStateUnsaved or CodeStateLocked.
func (r *Runner) PushState(ctx context.Context, file string, opts PushOptions) error {
	run := r.command("state push", provision.CodeStateUnsaved)
	run.use = WritesState
	run.out = newOutput(nil, nil)
	run.killAfter = opts.KillAfter
	err := run.do(ctx, file)
	failure, ok := errors.AsType[*provision.Failure](err)
	if !ok || !conflicts(failure.Message) {
		return err
	}
	stored, unknown := r.stores(ctx, file, opts)
	switch {
	case unknown != nil:
		// Whether it is a conflict is not known, so another try may help.
		return provision.Fail(failure.Code, fmt.Sprintf("%s. Whether that is the same state could not be found out: %s",
			strings.TrimRight(failure.Message, ".\n"), unknown), errors.Join(failure.Err, unknown))
	case stored:
		return nil
	}
	failure.Err = errors.Join(ErrStateConflict, failure.Err)
	return failure
}

// conflicts reports whether the engine refused a push because of what the
// backend holds. It has no code for that; these words are the same in every
// version from 0.12 on and in OpenTofu.
func conflicts(message string) bool {
	return strings.Contains(message, "cannot import state with") || strings.Contains(message, "cannot overwrite existing state")
}

// stores reports whether what the backend holds records the same as the state
// in file. The backend's state is held in memory, up to MaxStateFile bytes, and
// never printed.
func (r *Runner) stores(ctx context.Context, file string, opts PushOptions) (bool, error) {
	pushed, err := ReadStateFile(file)
	if err != nil {
		return false, err
	}
	stored, err := r.pullState(ctx, opts)
	if err != nil {
		return false, err
	}
	return sameState(pushed, []byte(stored)), nil
}

func (r *Runner) pullState(ctx context.Context, opts PushOptions) (state string, err error) {
	run := r.command("state pull", provision.CodeStateUnsaved)
	run.out = newOutput(nil, nil)
	run.killAfter = opts.KillAfter
	var pulled strings.Builder
	limit := &limitWriter{to: &pulled, left: MaxStateFile, exceeded: func() { run.interrupt(ErrStateTooLarge) }}
	run.into = limit
	if err = run.do(ctx); err == nil && limit.left < 0 {
		err = ErrStateTooLarge
	}
	return pulled.String(), err
}

// limitWriter takes left bytes and drops what is more: the engine, which waits until it
// is read, is then to be ended.
type limitWriter struct {
	to       io.Writer
	left     int
	exceeded func()
}

func (l *limitWriter) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		l.exceeded()
		return len(p), nil
	}
	return l.to.Write(p)
}

// sameState reports whether two whole states record the same. The serial and
// the version of the engine are whose hand it was written by. So is the
// lineage: an empty backend gives the state that is pushed to it another one.
// It keeps a state from being replaced by an unrelated one, and nothing is
// replaced here: what the one records is in the other, to the last id, so
// nothing is lost with either.
func sameState(a, b []byte) bool {
	left, err := recorded(a)
	if err != nil {
		return false
	}
	right, err := recorded(b)
	return err == nil && reflect.DeepEqual(left, right)
}

func recorded(state []byte) (map[string]any, error) {
	if _, err := ReadStateHeader(state); err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(state))
	decoder.UseNumber() // an id may have more digits than a float
	var fields map[string]any
	if err := decoder.Decode(&fields); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	for name, value := range fields {
		if value == nil || name == "serial" || name == "lineage" || name == "terraform_version" {
			delete(fields, name)
		}
	}
	return fields, nil
}

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
	"sync"
)

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
	ageMessage   = matching(`^-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=]{1,64}\r?\n)+-----END AGE ENCRYPTED FILE-----[\r\n]*$`)
	requesterKey = matching(`^(age1[02-9ac-hj-np-z]{58}|ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}( [^\x01-\x1f\x7f-\x{9f}]{1,200})?)$`)
	uploadID     = regexp.MustCompile(`^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$`)
	certificate  = matching(`^tendril-certificate-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$`)
	order        = matching(`^tendril-order-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$`)
	// stateCommands are those of a StateCommand.
	stateCommands = []string{"pull", "push", "list", "rm", "mv", "import", "rollback", "adopt"}
)

// matching returns what tells whether a text matches. The pattern is compiled when
// that is asked first: what these count makes them large, a quarter of a megabyte,
// and few snapshots and no idle agent need them.
func matching(pattern string) func(string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
	return func(text string) bool { return compiled().MatchString(text) }
}

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
	if s.Replace != nil && op != OperationPlan && op != OperationApply {
		problems = append(problems, fmt.Sprintf("config_snapshot.replace: not for operation %s", op))
	}
	for _, m := range []struct {
		name  string
		given bool
		of    Operation
	}{{"state", s.State != nil, OperationState}, {"lock_id", s.LockID != "", OperationUnlock}} {
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
		return "must be pull, push, list, rm, mv, import, rollback or adopt"
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

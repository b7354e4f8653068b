package terraform

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Summarise counts what a plan would do to resources and lists the changes in
// the plan's order. A replacement counts as one Replace and as no Add or
// Destroy. Changes of outputs alone leave the summary empty, although such a
// plan has something to apply: ask what Plan returned.
//
// Where there are more changes than a summary lists, those that take something
// away are listed first. What is deleted or forgotten goes as a whole, so its
// attributes are not listed; the engine's own text in the log has them.
func Summarise(plan *tfjson.Plan) provision.PlanSummary {
	var s provision.PlanSummary
	var sources []*tfjson.ResourceChange
	for _, change := range plan.ResourceChanges {
		if change == nil || change.Change == nil || change.Mode == tfjson.DataResourceMode {
			continue
		}
		if action := count(&s, change); action != "" {
			s.Resources, sources = append(s.Resources, plannedChange(change, action)), append(sources, change)
		}
	}
	listed := gravest(s.Resources)
	s.Truncated = len(s.Resources) - len(listed)
	for i, from := range listed {
		s.Resources[i] = s.Resources[from] // never before its own place
		describeChange(&s.Resources[i], sources[from].Change)
	}
	s.Resources = s.Resources[:len(listed)]
	return s
}

// plannedChange is a change without its attributes.
func plannedChange(change *tfjson.ResourceChange, action string) provision.PlannedChange {
	planned := provision.PlannedChange{Address: change.Address, Action: action, Reason: string(change.ActionReason)}
	if action == "forget" {
		planned.Reason = "" // which would be one to delete
	}
	if change.DeposedKey != "" {
		planned.Reason = "deposed" // left over from a replacement that failed
	}
	if change.PreviousAddress != change.Address {
		planned.From = change.PreviousAddress
	}
	if change.Change.Importing != nil {
		planned.ID = change.Change.Importing.ID
	}
	return planned
}

// describeChange adds the attributes that change.
func describeChange(planned *provision.PlannedChange, change *tfjson.Change) {
	switch planned.Action {
	case "create", "update", "replace":
		planned.Attributes, planned.Truncated = attributeChanges(change)
	}
}

// gravest returns the places, in order, of as many changes as a summary lists.
func gravest(changes []provision.PlannedChange) []int {
	places := make([]int, len(changes))
	for i := range places {
		places[i] = i
	}
	if len(places) <= provision.MaxPlanResources {
		return places
	}
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(gravity(changes[b]), gravity(changes[a])) })
	places = places[:provision.MaxPlanResources]
	slices.Sort(places)
	return places
}

func gravity(change provision.PlannedChange) int {
	switch change.Action {
	case "replace", "delete", "forget":
		return 2
	case "update":
		return 1
	default:
		return 0
	}
}

// count adds one change to the summary and names its action, "" for none. A
// move or an import may come with an update and then goes by the update's
// name, yet both are counted.
func count(s *provision.PlanSummary, change *tfjson.ResourceChange) (action string) {
	if change.PreviousAddress != "" && change.PreviousAddress != change.Address {
		s.Move++
		action = "move"
	}
	if change.Change.Importing != nil {
		s.Import++
		action = "import"
	}
	actions := change.Change.Actions
	switch {
	case actions.Create():
		s.Add++
		return "create"
	case actions.Update():
		s.Change++
		return "update"
	case actions.Delete():
		s.Destroy++
		return "delete"
	case actions.Replace(), isForgetful(actions):
		s.Replace++
		return "replace"
	case actions.Forget():
		s.Forget++
		return "forget"
	case !actions.NoOp() && !actions.Read():
		// Of an engine newer than this program. It may destroy, so who wants to be
		// asked before that is asked.
		s.Replace++
		return "replace"
	}
	return action
}

// isForgetful reports whether a replacement leaves the old object in the world,
// which terraform-json does not know of.
func isForgetful(actions tfjson.Actions) bool {
	return len(actions) == 2 && slices.Contains(actions, tfjson.ActionForget) && slices.Contains(actions, tfjson.ActionCreate)
}

// Steps is how many steps the plan's apply takes, to count its progress by: a
// replacement is two.
func Steps(s provision.PlanSummary) int {
	return s.Add + s.Change + s.Destroy + 2*s.Replace
}

// Bounds on what a summary shows of one resource. What is beyond them is left
// out whole, never cut: half a secret is not recognised when the rest is masked.
const (
	maxPlanValue  = 1 << 10  // bytes of one value as JSON
	maxPlanPath   = 512      // bytes of one path
	maxAttributes = 16 << 10 // bytes of all attributes of a resource
	maxPlanDepth  = 32
)

// attributeChanges lists what changes within a resource, what makes it be
// replaced first, and how many changes are left out. A value is shown if neither
// side of it is sensitive or unknown; which those are, the plan says in masks of
// the values' shape.
func attributeChanges(change *tfjson.Change) (shown []provision.AttributeChange, truncated int) {
	d := differ{replaces: replacePaths(change.ReplacePaths)}
	d.walk("", 0, side{change.Before, change.BeforeSensitive}, side{change.After, change.AfterSensitive}, change.AfterUnknown)
	slices.SortStableFunc(d.found, func(a, b provision.AttributeChange) int {
		if a.Replaces == b.Replaces {
			return 0
		} else if a.Replaces {
			return -1
		}
		return 1
	})
	size := 0
	for i, attribute := range d.found {
		size += len(attribute.Path) + len(attribute.Before) + len(attribute.After) + 64 // names and quotes
		if i == provision.MaxPlanAttributes || size > maxAttributes {
			return d.found[:i:i], len(d.found) - i
		}
	}
	return d.found, 0
}

// side is a value before or after, and which parts of it are sensitive.
type side struct{ value, sensitive any }

func (s side) key(name string) side { return side{ofKey(s.value, name), ofKey(s.sensitive, name)} }
func (s side) at(i int) side        { return side{ofIndex(s.value, i), ofIndex(s.sensitive, i)} }

type differ struct {
	replaces []string
	found    []provision.AttributeChange
}

func (d *differ) walk(path string, depth int, before, after side, unknown any) {
	hidden := marks(before.sensitive) || marks(after.sensitive)
	same := reflect.DeepEqual(before.value, after.value)
	switch {
	case same && !marks(unknown) && (before.value == nil || reflect.DeepEqual(before.sensitive, after.sensitive)):
		return
	case before.sensitive == true || after.sensitive == true:
		d.add(provision.AttributeChange{Path: path, Sensitive: true})
		return
	case unknown == true:
		d.add(provision.AttributeChange{Path: path, Unknown: true})
		return
	}
	open := !hidden && !marks(unknown)
	if path != "" && open && (before.value == nil || after.value == nil) && d.show(path, before.value, after.value) {
		return // new or gone, as a whole
	}
	shape := shapeOf(before.value, after.value, before.sensitive, after.sensitive, unknown)
	fits := depth < maxPlanDepth
	switch shape {
	case object:
		names := slices.Sorted(maps.Keys(keysOf(before.value, after.value, unknown)))
		for _, name := range names {
			fits = fits && len(below(path, name)) <= maxPlanPath
		}
		if !fits {
			break
		}
		for _, name := range names {
			d.walk(below(path, name), depth+1, before.key(name), after.key(name), ofKey(unknown, name))
		}
		return
	case list:
		if !fits || len(path) > maxPlanPath-16 {
			break
		}
		for i := range max(length(before.value), length(after.value), length(unknown)) {
			d.walk(path+"["+strconv.Itoa(i)+"]", depth+1, before.at(i), after.at(i), ofIndex(unknown, i))
		}
		return
	}
	switch {
	case same && open:
	case hidden:
		d.add(provision.AttributeChange{Path: path, Sensitive: true})
	case !open:
		d.add(provision.AttributeChange{Path: path, Unknown: true})
	case !d.show(path, before.value, after.value):
		d.add(provision.AttributeChange{Path: path, Before: shownValue(before.value), After: shownValue(after.value), Long: true})
	}
}

// show adds a change with both values, unless one is too long for that.
func (d *differ) show(path string, before, after any) bool {
	change := provision.AttributeChange{Path: path, Before: shownValue(before), After: shownValue(after)}
	if before != nil && change.Before == nil || after != nil && change.After == nil {
		return false
	}
	d.add(change)
	return true
}

func (d *differ) add(change provision.AttributeChange) {
	change.Replaces = slices.ContainsFunc(d.replaces, func(path string) bool {
		return within(change.Path, path) || within(path, change.Path)
	})
	d.found = append(d.found, change)
}

// shownValue is a value as JSON; nil for null and for what is too long, or a
// number so vast that the database would not take it.
func shownValue(value any) json.RawMessage {
	if value == nil || hasVastNumber(value) {
		return nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // as long as it looks
	if err := e.Encode(value); err != nil || b.Len() > maxPlanValue {
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

// replacePaths are the paths that force a replacement, written as in changes.
func replacePaths(raw []any) []string {
	var paths []string
	for _, steps := range raw {
		steps, _ := steps.([]any)
		path := ""
		for _, step := range steps {
			switch step := step.(type) {
			case string:
				path = below(path, step)
			default: // a number, whose type depends on who decoded the plan
				path += fmt.Sprintf("[%v]", step)
			}
		}
		paths = append(paths, path)
	}
	return paths
}

// below is the path of a member: a.b, or a["b c"] where b is no name.
func below(path, name string) string {
	switch {
	case !hclsyntax.ValidIdentifier(name):
		return path + "[" + strconv.Quote(name) + "]"
	case path == "":
		return name
	default:
		return path + "." + name
	}
}

// within reports whether a path is another or inside it.
func within(path, other string) bool {
	rest, ok := strings.CutPrefix(path, other)
	return ok && (rest == "" || other == "" || rest[0] == '.' || rest[0] == '[')
}

// maxPlanText is how much of a plan's text is kept back, in bytes. What comes
// after it is left out: to print it would show what nobody has checked for
// secrets yet.
const maxPlanText = 64 << 20

// planBegins is the first line of what an engine prints of a plan; before it are
// the lines that say what it is looking at. An indented one is for an engine
// that has found other words.
var planBegins = regexp.MustCompile(`^(?:(?:Terraform|OpenTofu) (?:used the selected|will perform|planned the following)|An execution plan has been|` +
	`Note: Objects have changed|Changes to Outputs:|No changes\.| +(?:#|\+|-|~|<=|-/\+|\+/-) )`)

// planText keeps back what the engine prints of a plan until somebody has read
// the plan itself: that alone says which of the values shown are sensitive. An
// output may be, and the attribute that it is made of not.
//
// The text waits in a file without a name, not in memory: a plan may print more
// than a run has memory for.
type planText struct {
	out    *output
	dir    string // where the file is made
	most   int64  // bytes that are kept
	on     bool
	file   *os.File
	buffer *bufio.Writer
	kept   int64
	left   int64 // bytes that were left out
	err    error // why the text, or the rest of it, could not be kept
}

// through returns a writer that takes the engine's lines.
// line takes one line of the engine's stdout.
func (p *planText) line(line []byte) {
	if p.on = p.on || planBegins.Match(colour.ReplaceAll(line, nil)); !p.on {
		p.out.write(toStdout, line)
		return
	}
	p.keep(line)
}

func (p *planText) keep(line []byte) {
	if p.file == nil && p.err == nil {
		if p.file, p.err = unnamedFile(p.dir); p.err == nil {
			p.buffer = bufio.NewWriterSize(p.file, 64<<10)
		}
	}
	if p.err != nil || p.kept+int64(len(line)) > p.most {
		p.left += int64(len(line))
		return
	}
	n, err := p.buffer.Write(line)
	p.kept += int64(n)
	p.left += int64(len(line) - n)
	p.err = err
}

// unnamedFile opens a file of mode 0600 that has no path any more, and that is
// gone when it is closed.
func unnamedFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, ".plan-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func (p *planText) print() {
	if p.file != nil {
		err := p.buffer.Flush()
		if err == nil {
			_, err = p.file.Seek(0, io.SeekStart)
		}
		if err == nil {
			_, err = io.CopyBuffer(p.out.stdout(), struct{ io.Reader }{p.file}, make([]byte, 64<<10))
		}
		_ = p.file.Close() // it has been read
		p.err = errors.Join(p.err, err)
	}
	switch {
	case p.err != nil:
		p.out.write(toStdout, fmt.Appendf(nil, "\nThe plan's text could not be kept until its secrets were known, so some of it is missing here: %v\n", p.err))
	case p.left > 0:
		p.out.write(toStdout, fmt.Appendf(nil, "\nThe plan's text is longer than the %d MiB that are shown; %d bytes are left out here.\n", p.most>>20, p.left))
	}
	*p = planText{out: p.out, dir: p.dir, most: p.most}
}

// PrintPlan prints what Plan has kept back. Call it when all is known that is to
// be masked.
func (r *Runner) PrintPlan() { r.plan.print() }

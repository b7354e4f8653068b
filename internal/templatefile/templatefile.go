package templatefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// Name is the name of the file within a template's directory.
const Name = "tendril.hcl"

// How large tendril.hcl, and the instructions that it names, can be.
const (
	maxFile         = 256 << 10
	maxInstructions = maxText
)

// Kind is what carries a template out.
type Kind string

// The kinds of provisioner.
const (
	Terraform Kind = "terraform"
	ByScript  Kind = "script"
	ByHand    Kind = "manual"
	ByMachine Kind = "machine"
)

// File is what tendril.hcl says. Its exported fields are literal: they are the same for
// every run. It may be used by several goroutines.
type File struct {
	Title, Description, Icon string

	Kind   Kind
	Script *Script // of ByScript alone
	Manual *Manual // of ByHand alone
	// Before and After are shell commands, one a line of the log, that run before and
	// after a machine is made; SkipAfter leaves the latter out.
	Before, After []string
	SkipAfter     bool
	// InMachine are commands that run in the machine once it is there; nil for none.
	InMachine *InMachine

	// PlacementVariable is the variable of Terraform that gets the places of machines;
	// "" for none.
	PlacementVariable string
	Steps             []Step
	Health            *Health

	machine   *machineBlock
	placement *hclsyntax.Body
	source    []byte
	readme    string
	// references are the variables that the file uses, where it first does.
	references map[string]hcl.Range

	mu    sync.Mutex // meter is in the tree
	meter meter
	limit time.Duration // of an evaluation: longest
}

// About is what the catalogue shows of the template.
func (f *File) About() *provision.About {
	about := &provision.About{Title: f.Title, Description: f.Description, Icon: f.Icon, Provisioner: string(f.Kind), Readme: f.readme}
	if f.Placed() && len(f.source) <= provision.MaxTemplateFile && fit(f.source) {
		about.File = string(f.source)
	}
	return about
}

// Script says which commands a script template runs. A command is a list of words, and
// its first is a path: within the template (./provision.sh), or absolute, which the
// agent's policy may refuse.
type Script struct {
	// Lines says that it speaks the protocol in lines. Otherwise it is asked once, by one
	// JSON document, and answers once.
	Lines bool
	// Command is the one command of Lines; the others are those of actions, and
	// HealthCheck may be nil.
	Command, Provision, Terminate, HealthCheck []string
	// Idempotent says that it can be asked again for the same machine.
	Idempotent bool
	// NoCredentials says that it makes no passwords, so that what it writes for people can
	// be shown at once.
	NoCredentials bool
	Timeout       time.Duration
}

// Manual says what a person does.
type Manual struct {
	Instructions string // path of a Markdown file within the template, without ./
	Expires      time.Duration
	Outputs      []Output
}

// Output is a value that a person fills in.
type Output struct {
	Name, Description string
	Type              string // string, number or bool
	Sensitive         bool
}

// InMachine are commands that run in a machine.
type InMachine struct {
	Run []string
	By  string // ssh or agent; "": as the pool can
}

// Step is a stage of a run that people see.
type Step struct{ ID, Label string }

// Health says how a machine's health is checked: by at most one of TCP, HTTP, SSH and
// Command. With none of them the template's script is asked.
type Health struct {
	TCP, SSH int // ports
	HTTP     string
	Port     int // of HTTP
	Command  []string

	Interval, Timeout            time.Duration
	HealthyAfter, UnhealthyAfter int // results in a row
}

// ByCommand reports whether a command of the template asks, its script included.
func (h *Health) ByCommand() bool { return h.TCP == 0 && h.SSH == 0 && h.HTTP == "" }

// HasMachines reports whether Machines can answer any.
func (f *File) HasMachines() bool { return f.machine != nil }

// Placed reports whether machines of it get places in pools.
func (f *File) Placed() bool {
	return f.machine != nil && (f.Kind == ByMachine || f.PlacementVariable != "")
}

// Read reads tendril.hcl in a template's directory; without it, the File is
// Terraform's. What is wrong with it is a Failure with CodeTemplateInvalid that names
// each problem with its line. The commands and the instructions it names must be files
// of the directory.
func Read(dir string) (*File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the template's directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	source, err := readFile(root, Name, maxFile)
	f := &File{Kind: Terraform}
	if err == nil {
		f, err = parse(source, root)
	} else if errors.Is(err, errMissing) {
		err = nil
	} else {
		err = provision.Fail(provision.CodeTemplateInvalid, Name+" "+err.Error(), err)
	}
	if err != nil {
		return nil, err
	}
	// A template without one, or with one that can't be shown, is a template all the same.
	if text, err := readFile(root, readme, provision.MaxReadme); err == nil && fit(text) {
		f.readme = string(text)
	}
	return f, nil
}

// readme is the file in which a template says to people what it is for.
const readme = "README.md"

// fit reports whether a text can be stored.
func fit(text []byte) bool { return utf8.Valid(text) && !bytes.ContainsRune(text, 0) }

// Parse is Read for the content alone: the files it names are not checked.
func Parse(source []byte) (*File, error) { return parse(source, nil) }

var errMissing = errors.New("does not exist")

// readFile reads a regular file that is not behind a link out of the directory. Its
// errors go on after the file's name.
func readFile(root *os.Root, name string, most int) ([]byte, error) {
	// Opening a pipe or a device could block or worse, so look first.
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errMissing
	case err != nil:
		return nil, errors.New("can't be read, or is a link out of the template's directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, errors.New("can't be read, or is a link out of the template's directory")
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("can't be read: %w", err)
	case len(data) > most:
		return nil, fmt.Errorf("is too large: at most %d KiB are read", most>>10)
	}
	return data, nil
}

// reader reads one file and gathers what is wrong with it.
type reader struct {
	problems
	name    string
	file    *File
	root    *os.Root // of the template's directory; nil: files are not checked
	catches int      // how deep it is in try and can
}

const heading = Name + " is not valid:"

func parse(source []byte, root *os.Root) (*File, error) {
	f := &File{Kind: Terraform, source: source, references: map[string]hcl.Range{}, limit: longest}
	f.meter.reset(f.limit)
	r := &reader{name: Name, file: f, root: root}
	if len(source) > maxFile {
		return nil, provision.Fail(provision.CodeTemplateInvalid, fmt.Sprintf("%s is too large: at most %d KiB are read", Name, maxFile>>10), nil)
	}
	if err := tfvars.CheckNesting(Name, source); err != nil {
		return nil, provision.Fail(provision.CodeTemplateInvalid, heading+"\n"+err.Error(), nil)
	}
	tokens, _ := hclsyntax.LexConfig(source, Name, hcl.InitialPos) // the parser reports its diagnostics
	if r.checkTokens(tokens); len(r.list) == 0 {
		parsed, diags := hclsyntax.ParseConfig(source, Name, hcl.InitialPos)
		r.diagnose(diags, hcl.Range{Filename: Name, Start: hcl.InitialPos, End: hcl.InitialPos})
		if body, ok := parsed.Body.(*hclsyntax.Body); ok && !diags.HasErrors() {
			r.readFile(body)
		}
	}
	if err := r.failure(heading, map[string][]byte{Name: source}); err != nil {
		return nil, err
	}
	return f, nil
}

func (r *reader) readFile(body *hclsyntax.Body) {
	f := r.file
	b := r.block(body, shape{
		what: Name, arguments: []string{"title", "description", "icon"},
		blocks: []string{"provisioner", "placement", "step", "health"}, many: []string{"step"},
		labels: map[string]string{"provisioner": "script", "step": "clone"},
		hints:  map[string]string{"steps": `write one block a step, as step "clone" { label = "…" }`, "machine": "it belongs in provisioner", "after": "it belongs in provisioner"},
	})
	f.Title, f.Description, f.Icon = b.text("title", 100), b.prose("description", 4000), b.text("icon", 40)
	if f.Icon != "" && !word.MatchString(f.Icon) {
		b.problem("icon", "icon has lowercase letters, digits and dashes")
	}
	if p := b.one("provisioner"); p != nil {
		r.readProvisioner(p)
	}
	if p := b.one("placement"); p != nil {
		r.readPlacement(p)
	}
	if h := b.one("health"); h != nil {
		r.readHealth(h.Body)
	} else if f.Script != nil && len(f.Script.HealthCheck) > 0 {
		r.readHealth(&hclsyntax.Body{}) // as often as is usual
	}
	r.readSteps(b.all("step"))
	if f.Kind == Terraform {
		r.checkTerraform(b)
	}
}

// checkTerraform refuses what does nothing for a template that Terraform carries out.
func (r *reader) checkTerraform(b *block) {
	f := r.file
	for _, step := range b.all("step") {
		r.add(step.DefRange(), "Terraform reports its own steps: leave this block out, or name another provisioner")
	}
	if p := b.one("placement"); p != nil && f.PlacementVariable == "" {
		r.add(p.DefRange(), "placement needs the argument variable: the name of the Terraform variable that gets each machine's node and address")
	}
	if f.PlacementVariable != "" && f.machine == nil {
		r.add(b.one("placement").DefRange(), `placement needs the machines to place: add provisioner "terraform" { machine { … } }`)
	}
	if f.machine != nil && f.PlacementVariable == "" {
		r.add(f.machine.at, `Terraform makes its machines itself: a machine block needs placement { variable = "…" }, which gets their places`)
	}
}

func (r *reader) readProvisioner(p *hclsyntax.Block) {
	f := r.file
	kinds := []string{string(Terraform), string(ByScript), string(ByHand), string(ByMachine)}
	f.Kind = Kind(p.Labels[0])
	s := shape{what: fmt.Sprintf("provisioner %q", f.Kind), blocks: []string{"machine"}}
	made := []string{"pre_provision_commands", "post_provision_commands", "skip_post_provision"}
	switch f.Kind {
	case Terraform:
	case ByScript:
		s.arguments = append([]string{"speak", "command", "provision", "terminate", "health_check", "idempotent", "credentials", "timeout"}, made...)
		s.blocks = []string{"machine", "after"}
	case ByHand:
		s.arguments, s.blocks, s.many = []string{"instructions", "expires"}, []string{"machine", "after", "output"}, []string{"output"}
		s.labels = map[string]string{"output": "address"}
	case ByMachine:
		s.arguments, s.blocks = made, []string{"machine", "after"}
	default:
		r.add(p.LabelRanges[0], "there is no provisioner %q%s", f.Kind, provision.DidYouMean(string(f.Kind), kinds))
		f.Kind = ""
		return
	}
	b := r.block(p.Body, s)
	switch f.Kind {
	case ByScript:
		r.readScript(b)
	case ByHand:
		r.readManual(b)
	}
	f.Before, f.After, f.SkipAfter = b.list("pre_provision_commands"), b.list("post_provision_commands"), b.flag("skip_post_provision")
	if m := b.one("machine"); m != nil {
		r.readMachine(m)
	} else if f.Kind == ByMachine {
		r.add(p.DefRange(), `provisioner "machine" needs a machine block`)
	}
	if a := b.one("after"); a != nil {
		r.readAfter(a)
	}
}

func (r *reader) readScript(b *block) {
	s := &Script{Idempotent: b.flag("idempotent"), NoCredentials: b.has("credentials") && !b.flag("credentials"), Timeout: b.seconds("timeout", 300, 1, 86_400)}
	r.file.Script = s
	actions := map[string]*[]string{"provision": &s.Provision, "terminate": &s.Terminate, "health_check": &s.HealthCheck}
	switch speak := b.text("speak", 20); {
	case b.has("speak") && speak != "once" && speak != "lines":
		b.problem("speak", `speak is "once" (one JSON document in, one out) or "lines" (tendril-provisioner/1)`)
		return
	case speak == "once":
		b.need("provision", "terminate")
		for name, argv := range actions {
			*argv = b.command(name)
		}
		if b.has("command") {
			b.problem("command", `command is for speak = "lines": here each action has its own, provision and terminate`)
		}
	case speak == "lines":
		s.Lines = true
		b.need("command")
		s.Command = b.command("command")
		for name := range actions {
			if b.has(name) {
				b.problem(name, `%s is for speak = "once": here command carries out every action`, name)
			}
		}
	default:
		b.need("speak")
	}
}

func (r *reader) readManual(b *block) {
	b.need("instructions")
	m := &Manual{Instructions: b.file("instructions"), Expires: 72 * time.Hour}
	r.file.Manual = m
	if b.has("expires") {
		var err error
		text := b.text("expires", 40)
		if m.Expires, err = time.ParseDuration(text); text != "" && (err != nil || m.Expires < time.Minute || m.Expires > 90*24*time.Hour) {
			b.problem("expires", `expires must be a time from 1m to 2160h, such as "72h"`)
		}
	}
	for _, block := range b.all("output") {
		o := r.block(block.Body, shape{what: "output", arguments: []string{"description", "type", "sensitive"}})
		out := Output{Name: block.Labels[0], Description: o.prose("description", 1000), Type: "string", Sensitive: o.flag("sensitive")}
		if o.has("type") {
			if out.Type = o.keyword("type"); !slices.Contains([]string{"string", "number", "bool"}, out.Type) {
				o.problem("type", "type is string, number or bool, without quotes")
			}
		}
		if out.Sensitive && out.Type != "string" {
			o.problem("sensitive", "a sensitive output is a string: what is sealed must be long enough to be masked in logs")
		}
		if !hclsyntax.ValidIdentifier(out.Name) || len(out.Name) > maxIdentifier {
			r.add(block.LabelRanges[0], "an output's name has letters, digits, dashes and underscores, and %d characters at most", maxIdentifier)
		}
		if slices.ContainsFunc(m.Outputs, func(o Output) bool { return o.Name == out.Name }) {
			r.add(block.LabelRanges[0], "there is an output %q already", out.Name)
		}
		m.Outputs = append(m.Outputs, out)
	}
	b.atMost("output", 100)
}

func (r *reader) readAfter(block *hclsyntax.Block) {
	b := r.block(block.Body, shape{what: "after", arguments: []string{"run", "by"}})
	b.need("run")
	a := &InMachine{Run: b.list("run")}
	if b.has("by") {
		if a.By = b.text("by", 20); a.By != "ssh" && a.By != "agent" {
			b.problem("by", `by is "ssh" or "agent"`)
		}
	}
	r.file.InMachine = a
}

func (r *reader) readPlacement(block *hclsyntax.Block) {
	b := r.block(block.Body, shape{what: "placement", arguments: []string{"node", "avoid", "spread", "together", "variable"}})
	f := r.file
	if b.has("variable") {
		f.PlacementVariable = b.text("variable", maxIdentifier)
		switch {
		case f.Kind != Terraform:
			b.problem("variable", "variable is for provisioner \"terraform\": other provisioners place their machines themselves")
		case !hclsyntax.ValidIdentifier(f.PlacementVariable):
			b.problem("variable", `variable is a variable's name in quotes, such as "places"`)
		default:
			r.refer(f.PlacementVariable, b.at("variable"))
		}
	}
	for _, name := range []string{"node", "avoid", "spread", "together"} {
		b.expression(name, false)
	}
	f.placement = block.Body
}

func (r *reader) readSteps(blocks []*hclsyntax.Block) {
	f := r.file
	for _, block := range blocks {
		b := r.block(block.Body, shape{what: "step", arguments: []string{"label"}})
		b.need("label")
		s := Step{ID: block.Labels[0], Label: b.text("label", 200)}
		if !word.MatchString(s.ID) || len(s.ID) > maxIdentifier {
			r.add(block.LabelRanges[0], "a step's id has lowercase letters, digits, dashes and underscores, and %d characters at most", maxIdentifier)
		}
		if slices.ContainsFunc(f.Steps, func(other Step) bool { return other.ID == s.ID }) {
			r.add(block.LabelRanges[0], "there is a step %q already", s.ID)
		}
		f.Steps = append(f.Steps, s)
	}
	if len(blocks) > 50 {
		r.add(blocks[50].DefRange(), "at most 50 steps are allowed")
	}
}

func (r *reader) readHealth(body *hclsyntax.Body) {
	b := r.block(body, shape{what: "health", arguments: []string{"tcp", "http", "ssh", "command", "port", "interval", "timeout", "healthy_after", "unhealthy_after"}})
	h := &Health{
		TCP: b.number("tcp", 0, 1, 65_535), SSH: b.number("ssh", 0, 1, 65_535), HTTP: b.text("http", 1000), Command: b.command("command"),
		Interval: b.seconds("interval", 300, 10, 86_400), Timeout: b.seconds("timeout", 10, 1, 30),
		HealthyAfter: b.number("healthy_after", 1, 1, 100), UnhealthyAfter: b.number("unhealthy_after", 3, 1, 100),
	}
	r.file.Health = h
	var ways []string
	for _, way := range []string{"tcp", "http", "ssh", "command"} {
		if b.has(way) {
			ways = append(ways, way)
		}
	}
	switch {
	case len(ways) == 0 && r.file.Script != nil && (r.file.Script.Lines || len(r.file.Script.HealthCheck) > 0): // it is asked
	case len(ways) == 0 && r.file.Kind == ByScript:
		r.add(b.body.SrcRange, "health needs one of tcp, http, ssh and command, or the provisioner's health_check")
	case len(ways) == 0:
		r.add(b.body.SrcRange, "health needs one of tcp, http, ssh and command")
	case len(ways) > 1:
		b.problem(ways[1], "health can check in one way only: %s", strings.Join(ways, " or "))
	case h.HTTP != "" && (!strings.HasPrefix(h.HTTP, "/") || strings.ContainsAny(h.HTTP, " \\") || strings.HasPrefix(h.HTTP, "//")):
		b.problem("http", `http is a path, such as "/healthz": the address is the machine's`)
	case b.has("http"):
		h.Port = b.number("port", 80, 1, 65_535)
	}
	if b.has("port") && !b.has("http") {
		b.problem("port", "port is for http: tcp and ssh have theirs as value")
	}
	if h.Timeout > h.Interval {
		r.add(b.at("timeout"), "timeout must not be longer than interval")
	}
}

// CheckVariables says which variables the file uses that the template doesn't declare.
func (f *File) CheckVariables(declared []provision.Variable) error {
	var p problems
	names := make([]string, len(declared))
	for i, v := range declared {
		names[i] = v.Name
	}
	for name, at := range f.references {
		if !slices.Contains(names, name) {
			p.add(at, "the template declares no variable %q%s", name, provision.DidYouMean(name, names))
		}
	}
	return p.failure(heading, map[string][]byte{Name: f.source})
}

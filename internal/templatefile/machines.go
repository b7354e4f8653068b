package templatefile

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// maxMachines is how many a template can have.
const maxMachines = 1000

// Machine is a machine that a template wants. What it doesn't say is zero.
type Machine struct {
	// Key is each.key; "" without for_each.
	Key string
	// Name is the machine's identity within its workspace: a DNS label.
	Name                 string
	Pool, Image, Address string
	Cores                int
	Memory               int // MiB
	Disk                 int // GiB
	Labels               map[string]string
	// Options are what only one kind of pool has, by that kind.
	Options map[string]Options
}

// Options are a block such as proxmox { … }.
type Options struct {
	Value cty.Value // an object, without marks
	// Sensitive are the paths within Value of what must not be shown, in order.
	Sensitive []cty.Path
}

// Placement is where machines may go.
type Placement struct {
	Node             string // the one to take
	Avoid            []string
	Spread, Together bool
}

// machineBlock is the block that each run evaluates.
type machineBlock struct {
	at      hcl.Range
	body    *hclsyntax.Body
	forEach hclsyntax.Expression // nil: one machine
	options []*hclsyntax.Block
}

var (
	// cloud_init is for every kind of pool.
	optionKinds      = []string{"cloud_init", "proxmox", "libvirt", "ironic", "static"}
	machineArguments = []string{"for_each", "name", "pool", "image", "cores", "memory", "disk", "address", "labels"}
)

func (r *reader) readMachine(found *hclsyntax.Block) {
	b := r.block(found.Body, shape{
		what: "machine", arguments: machineArguments, blocks: optionKinds,
		hints: map[string]string{"count": "machines have names, never numbers: write for_each = toset([…]) and name = each.key", "after": "it belongs in provisioner, next to machine"},
	})
	b.need("name")
	if r.file.Kind == ByMachine {
		b.need("pool")
	}
	m := &machineBlock{at: found.DefRange(), body: found.Body}
	b.expression("for_each", false)
	if attribute := found.Body.Attributes["for_each"]; attribute != nil {
		m.forEach = attribute.Expr
	}
	for _, name := range machineArguments[1:] {
		b.expression(name, m.forEach != nil)
	}
	for _, options := range found.Body.Blocks {
		o := &block{r: r, body: options.Body, what: options.Type}
		for _, inner := range options.Body.Blocks {
			r.add(inner.DefRange(), "%s has arguments alone: write %s = { … }", options.Type, inner.Type)
		}
		for name := range options.Body.Attributes {
			o.expression(name, m.forEach != nil)
		}
		m.options = append(m.options, options)
	}
	r.file.machine = m
}

// evaluate is the value of an expression that has the meter.
func (f *File) evaluate(expr hclsyntax.Expression, ctx *hcl.EvalContext) (value cty.Value, diags hcl.Diagnostics) {
	defer func() {
		switch found := recover().(type) {
		case nil:
		case exceeded:
			value, diags = cty.DynamicVal, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: found.text, Subject: &found.at}}
		default: // a defect of a library, which must not end the agent's process
			at := expr.Range()
			value, diags = cty.DynamicVal, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "this can't be evaluated", Subject: &at}}
		}
	}()
	return expr.Value(ctx)
}

// evaluation is one reading of the file with a run's variables.
type evaluation struct {
	problems
	file *File
	vars map[string]cty.Value
	all  cty.Value // vars as an object
	// sensitive are the variables whose value is, or has a part that is.
	sensitive map[string]bool
	// places says that only what decides about the place of a machine counts.
	places bool
	// each is what it goes through at present: its key and value; its key is "" and its
	// value NilVal otherwise.
	key   string
	value cty.Value
}

func newEvaluation(f *File, vars map[string]cty.Value) *evaluation {
	e := &evaluation{file: f, vars: vars, all: cty.ObjectVal(vars), sensitive: map[string]bool{}}
	for name, value := range vars {
		e.sensitive[name] = value.ContainsMarked()
	}
	return e
}

// begin locks the file, for the meter is in its tree. The caller unlocks it.
func (f *File) begin(vars map[string]cty.Value) *evaluation {
	f.mu.Lock()
	f.meter.reset(f.limit)
	e := newEvaluation(f, vars)
	names := slices.Collect(maps.Keys(vars))
	for name, at := range f.references {
		if _, ok := vars[name]; !ok {
			e.add(at, "the template declares no variable %q%s", name, provision.DidYouMean(name, names))
		}
	}
	return e
}

func (e *evaluation) failure(heading string) error {
	return e.problems.failure(heading, map[string][]byte{Name: e.file.source})
}

// spent says that there is no point in going on.
func (e *evaluation) spent() bool { return e.file.meter.left < 0 || len(e.list) > maxProblems }

// report notes a problem of an expression, with the element it is of.
func (e *evaluation) report(expr hcl.Expression, at hcl.Range, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if e.value != cty.NilVal {
		text = fmt.Sprintf("each.key %q: %s", shortened(e.key), text)
	}
	e.list = append(e.list, problem{at: at, text: text, given: len(expr.Variables()) > 0})
}

// shortened cuts a value to what a message can carry.
func shortened(text string) string {
	const longest = 80
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// eval is the value of an expression, with its marks; ok is false where there is an
// error or nothing.
func (e *evaluation) eval(expr hclsyntax.Expression) (value cty.Value, ok bool) {
	ctx := &hcl.EvalContext{Variables: map[string]cty.Value{"var": e.all}, Functions: functions}
	if e.value != cty.NilVal {
		ctx.Variables["each"] = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(e.key), "value": e.value})
	}
	value, diags := e.file.evaluate(expr, ctx)
	hide := diags.HasErrors() && e.isSensitive(expr)
	for i, diag := range diags { // a loop can have one for each element
		if diag.Severity != hcl.DiagError || i > maxProblems {
			continue
		}
		at, text := expr.Range(), diagnosis(diag)
		if diag.Subject != nil {
			at = *diag.Subject
		}
		if hide && diag.Detail != "" { // which may repeat the value
			text = diag.Summary + ": the reason is not shown, because a value is sensitive"
		}
		e.report(expr, at, "%s", text)
	}
	if diags.HasErrors() || value.IsNull() {
		return cty.NilVal, false
	}
	if !value.IsWhollyKnown() {
		e.report(expr, expr.Range(), "this is not known before the run")
		return cty.NilVal, false
	}
	return value, true
}

// isSensitive says whether an expression uses a sensitive value.
func (e *evaluation) isSensitive(expr hcl.Expression) bool {
	for _, used := range expr.Variables() {
		if used.RootName() == "each" && e.value != cty.NilVal && e.value.ContainsMarked() {
			return true
		}
		if step, ok := used[min(1, len(used)-1)].(hcl.TraverseAttr); ok && used.RootName() == "var" && e.sensitive[step.Name] {
			return true
		}
	}
	return false
}

// argument is the value of an argument of a type, which is shown to people; ok is false
// where there is none.
func (e *evaluation) argument(body *hclsyntax.Body, name string, ty cty.Type, wants string) (value cty.Value, ok bool) {
	attribute := body.Attributes[name]
	if attribute == nil {
		return cty.NilVal, false
	}
	value, ok = e.eval(attribute.Expr)
	switch {
	case !ok:
		return cty.NilVal, false
	case value.ContainsMarked():
		e.report(attribute.Expr, attribute.Expr.Range(), "%s uses a sensitive value, but everyone who can see the run sees it: use a variable that is not sensitive", name)
		return cty.NilVal, false
	}
	value, err := convert.Convert(value, ty)
	if err != nil || !noNulls(value) {
		e.report(attribute.Expr, attribute.Expr.Range(), "%s must be %s", name, wants)
		return cty.NilVal, false
	}
	return value, true
}

// noNulls says that no element is null.
func noNulls(value cty.Value) bool {
	if value.CanIterateElements() {
		for it := value.ElementIterator(); it.Next(); {
			if _, element := it.Element(); element.IsNull() {
				return false
			}
		}
	}
	return true
}

func (e *evaluation) text(body *hclsyntax.Body, name string, most int) string {
	value, ok := e.argument(body, name, cty.String, "a text")
	if !ok {
		return ""
	}
	text := value.AsString()
	if wrong := checkLine(text, most); wrong != "" {
		e.report(body.Attributes[name].Expr, body.Attributes[name].Expr.Range(), "%s %s", name, wrong)
	}
	return text
}

// checkLine says what is wrong with a name or a word.
func checkLine(text string, most int) string {
	switch {
	case strings.TrimSpace(text) == "":
		return "must not be empty"
	case len(text) > most:
		return fmt.Sprintf("is too long: at most %d bytes", most)
	case strings.ContainsFunc(text, unicode.IsControl):
		return "must be one line without control characters"
	}
	return ""
}

func (e *evaluation) number(body *hclsyntax.Body, name string, least, most int) (number int) {
	value, ok := e.argument(body, name, cty.Number, "a number")
	if !ok {
		return 0
	}
	if err := gocty.FromCtyValue(value, &number); err != nil || number < least || number > most {
		e.report(body.Attributes[name].Expr, body.Attributes[name].Expr.Range(), "%s must be a whole number from %d to %d", name, least, most)
		return 0
	}
	return number
}

const invalidVariables = "tendril.hcl can't be evaluated with these variables:"

// Machines are the machines that the template wants with these variables, in the order
// of their keys. vars has every variable that the template declares, sensitive ones
// marked with tfvars.Sensitive. Problems are a Failure: with CodeVariablesInvalid where
// all depend on variables, else with CodeTemplateInvalid.
func (f *File) Machines(vars map[string]cty.Value) ([]Machine, error) {
	if f.machine == nil {
		return nil, nil
	}
	return f.machines(vars, false)
}

func (f *File) machines(vars map[string]cty.Value, places bool) ([]Machine, error) {
	e := f.begin(vars)
	defer f.mu.Unlock()
	e.places = places
	var machines []Machine
	if len(e.list) == 0 {
		machines = e.machines()
	}
	if err := e.failure(invalidVariables); err != nil {
		return nil, err
	}
	return machines, nil
}

func (e *evaluation) machines() (machines []Machine) {
	m := e.file.machine
	named := map[string]string{}
	add := func() {
		machine := e.machine()
		if before, twice := named[machine.Name]; twice && machine.Name != "" {
			name := m.body.Attributes["name"].Expr
			e.report(name, name.Range(), "the machine %q exists already, for each.key %q: use each.key in the name", machine.Name, shortened(before))
		}
		named[machine.Name] = e.key
		machines = append(machines, machine)
	}
	if m.forEach == nil {
		add()
		return machines
	}
	over, ok := e.forEach()
	if !ok {
		return nil
	}
	for it := over.ElementIterator(); it.Next() && !e.spent(); {
		key, value := it.Element()
		if over.Type().IsSetType() {
			key = value
		}
		e.key, e.value = key.AsString(), value
		add()
	}
	return machines
}

// forEach is what the machines are made over: a set of texts, or a map.
func (e *evaluation) forEach() (over cty.Value, ok bool) {
	expr := e.file.machine.forEach
	wrong := func(format string, args ...any) (cty.Value, bool) {
		e.report(expr, expr.Range(), "for_each "+format, args...)
		return cty.NilVal, false
	}
	over, ok = e.eval(expr)
	if !ok {
		if len(e.list) == 0 {
			return wrong("is null: give a set of texts, or a map")
		}
		return over, false
	}
	ty := over.Type()
	const names = ", but machines have names, never numbers: write toset(…) around a list of texts"
	switch {
	case over.IsMarked():
		return wrong("uses a sensitive value, but everyone who can see the run sees it: use a variable that is not sensitive")
	case ty.IsTupleType() || ty.IsListType():
		return wrong("is a list" + names)
	case ty == cty.Number:
		return wrong("is a number" + names)
	case ty.IsSetType() && ty.ElementType() != cty.String && over.LengthInt() > 0:
		return wrong("is a set of %s, and must be one of texts", ty.ElementType().FriendlyName())
	case !ty.IsSetType() && !ty.IsMapType() && !ty.IsObjectType():
		return wrong("must be a set of texts, or a map")
	case over.LengthInt() > maxMachines:
		return wrong("has %d elements: at most %d machines are allowed", over.LengthInt(), maxMachines)
	case ty.IsSetType() && !noNulls(over):
		return wrong("has an element that is null")
	}
	return over, true
}

var dnsLabel = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// machine is the one of the present key.
func (e *evaluation) machine() Machine {
	body := e.file.machine.body
	m := Machine{
		Key: e.key, Name: e.text(body, "name", maxText), Pool: e.text(body, "pool", maxIdentifier), Image: e.text(body, "image", 255), Address: e.text(body, "address", 64),
		Cores: e.number(body, "cores", 1, 1024), Memory: e.number(body, "memory", 1, 16<<20),
		Labels: e.labels(body), Options: map[string]Options{},
	}
	if !e.places {
		m.Disk = e.number(body, "disk", 1, 1<<20)
	}
	at := func(name string, format string, args ...any) {
		e.report(body.Attributes[name].Expr, body.Attributes[name].Expr.Range(), format, args...)
	}
	before := len(e.list)
	switch {
	case m.Name != "" && !dnsLabel.MatchString(m.Name):
		at("name", "%q is not a valid machine name: use lowercase letters, digits and dashes, with a letter or digit at both ends, and 63 characters at most", shortened(m.Name))
	case m.Name == "" && before == 0:
		at("name", "name is null, and a machine needs one")
	}
	if m.Pool == "" && e.file.Kind == ByMachine && len(e.list) == 0 {
		at("pool", "pool is null, and a machine needs one")
	}
	if m.Address != "" {
		if address, err := netip.ParseAddr(m.Address); err != nil || address.Zone() != "" {
			at("address", "%q is not an IP address", shortened(m.Address))
		}
	}
	for _, block := range e.file.machine.options {
		if e.places {
			break
		}
		m.Options[block.Type] = e.options(block.Body)
	}
	return m
}

const maxLabels = 64

func (e *evaluation) labels(body *hclsyntax.Body) map[string]string {
	value, ok := e.argument(body, "labels", cty.Map(cty.String), "a map of texts")
	if !ok {
		return nil
	}
	expr, labels := body.Attributes["labels"].Expr, map[string]string{}
	if value.LengthInt() > maxLabels {
		e.report(expr, expr.Range(), "at most %d labels are allowed", maxLabels)
		return nil
	}
	for it := value.ElementIterator(); it.Next(); {
		key, text := it.Element()
		labels[key.AsString()] = text.AsString()
		wrong := checkLine(key.AsString(), 63)
		if wrong == "" && text.AsString() != "" {
			wrong = checkLine(text.AsString(), 255)
		}
		if wrong != "" {
			e.report(expr, expr.Range(), "label %q %s", shortened(key.AsString()), wrong)
		}
	}
	return labels
}

// options are the arguments of a block that only one kind of pool understands.
func (e *evaluation) options(body *hclsyntax.Body) Options {
	values := map[string]cty.Value{}
	for _, name := range slices.Sorted(maps.Keys(body.Attributes)) {
		if value, ok := e.eval(body.Attributes[name].Expr); ok {
			values[name] = value
		}
	}
	value, marked := cty.ObjectVal(values).UnmarkDeepWithPaths()
	o := Options{Value: value}
	for _, m := range marked {
		o.Sensitive = append(o.Sensitive, m.Path)
	}
	slices.SortFunc(o.Sensitive, func(a, b cty.Path) int { return strings.Compare(fmt.Sprintf("%#v", a), fmt.Sprintf("%#v", b)) })
	return o
}

// Placement is what the placement block says with these variables; nil without one. Its
// errors are like those of Machines.
func (f *File) Placement(vars map[string]cty.Value) (*Placement, error) {
	if f.placement == nil {
		return nil, nil
	}
	e := f.begin(vars)
	defer f.mu.Unlock()
	p := &Placement{}
	if len(e.list) == 0 {
		p.Node, p.Avoid = e.text(f.placement, "node", 255), e.texts(f.placement, "avoid")
		p.Spread, p.Together = e.flag(f.placement, "spread"), e.flag(f.placement, "together")
		if p.Spread && p.Together {
			expr := f.placement.Attributes["together"].Expr
			e.report(expr, expr.Range(), "spread and together exclude each other")
		}
		if slices.Contains(p.Avoid, p.Node) && p.Node != "" {
			expr := f.placement.Attributes["avoid"].Expr
			e.report(expr, expr.Range(), "avoid names %q, which is the node to take", shortened(p.Node))
		}
	}
	if err := e.failure(invalidVariables); err != nil {
		return nil, err
	}
	return p, nil
}

// Want is the place that a machine needs; p may be nil. servers says that the pool has machines that
// exist, as provision.HasServers has it: labels choose them, and no image.
func (p *Placement) Want(m Machine, servers bool) provision.PlaceWanted {
	const group = "all" // of the workspace's machines
	want := provision.PlaceWanted{Name: m.Name, Pool: m.Pool, Cores: m.Cores, Memory: m.Memory, Image: m.Image, Address: m.Address}
	if servers {
		want.Image, want.Labels = "", m.Labels
	}
	if p == nil {
		return want
	}
	want.Node, want.Avoid = p.Node, p.Avoid
	if p.Spread {
		want.Spread = group
	}
	if p.Together {
		want.Together = group
	}
	return want
}

// Places are the places that the template's machines need, as a run asks for them. Variables
// may have no known value where they don't decide about a place. servers says whether a pool
// has machines that exist. Its errors are like those of Machines.
func (f *File) Places(vars map[string]cty.Value, servers func(pool string) bool) ([]provision.PlaceWanted, error) {
	if !f.Placed() {
		return nil, nil
	}
	machines, err := f.machines(vars, true)
	if err != nil {
		return nil, err
	}
	placement, err := f.Placement(vars)
	if err != nil {
		return nil, err
	}
	var wants []provision.PlaceWanted
	for _, m := range machines {
		if f.enrolls() && m.Cores == 0 && m.Memory == 0 {
			continue // it is a server, which has no place but is one
		}
		if m.Pool == "" || m.Cores == 0 || m.Memory == 0 {
			return nil, provision.Fail(provision.CodeVariablesInvalid, fmt.Sprintf("The machine %s needs pool, cores and memory: its place is chosen by them.", m.Name), nil)
		}
		want := placement.Want(m, f.Kind == ByMachine && servers(m.Pool))
		want.Keep = f.Kind == Terraform
		wants = append(wants, want)
	}
	return wants, nil
}

// enrolls reports whether machines of it can be servers that are made known to their pool.
func (f *File) enrolls() bool {
	return f.Kind == ByMachine && slices.ContainsFunc(f.machine.options, func(b *hclsyntax.Block) bool { return b.Body.Attributes["enroll"] != nil })
}

func (e *evaluation) flag(body *hclsyntax.Body, name string) bool {
	value, ok := e.argument(body, name, cty.Bool, "true or false")
	return ok && value.True()
}

func (e *evaluation) texts(body *hclsyntax.Body, name string) (texts []string) {
	value, ok := e.argument(body, name, cty.List(cty.String), "a list of texts")
	if !ok {
		return nil
	}
	for it := value.ElementIterator(); it.Next(); {
		_, element := it.Element()
		texts = append(texts, element.AsString())
		if wrong := checkLine(element.AsString(), 255); wrong != "" {
			e.report(body.Attributes[name].Expr, body.Attributes[name].Expr.Range(), "each element of %s %s", name, wrong)
			return nil
		}
	}
	return texts
}

// Instructions are the Markdown of a manual template with these variables, each ${…} in
// it evaluated; "" for other templates. dir is the template's directory.
func (f *File) Instructions(dir string, vars map[string]cty.Value) (string, error) {
	if f.Manual == nil {
		return "", nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("open the template's directory: %w", err)
	}
	defer func() { _ = root.Close() }()
	name := f.Manual.Instructions
	source, err := readFile(root, name, maxInstructions)
	if err != nil {
		return "", provision.Fail(provision.CodeTemplateInvalid, name+" "+err.Error(), err)
	}
	// A document of its own: it has its own meter and its own references.
	doc := &File{references: map[string]hcl.Range{}, source: source}
	doc.meter.reset(longest)
	r := &reader{name: name, file: doc}
	text := r.render(source, vars)
	if err := r.failure(name+" is not valid:", map[string][]byte{name: source}); err != nil {
		return "", err
	}
	return text, nil
}

func (r *reader) render(source []byte, vars map[string]cty.Value) string {
	// Text outside of ${…} does not nest, whatever it looks like: what follows a quote is
	// checked as the template that it is.
	quoted := append(append([]byte("<<EOT\n"), source...), "\nEOT\n"...)
	if err := tfvars.CheckNesting(r.name, quoted); err != nil {
		r.add(hcl.Range{Filename: r.name, Start: hcl.InitialPos, End: hcl.InitialPos}, "%v", err)
		return ""
	}
	tokens, _ := hclsyntax.LexTemplate(source, r.name, hcl.InitialPos) // the parser reports its diagnostics
	if r.checkTokens(tokens); len(r.list) > 0 {
		return ""
	}
	parsed, diags := hclsyntax.ParseTemplate(source, r.name, hcl.InitialPos)
	if r.diagnose(diags, hcl.Range{Filename: r.name, Start: hcl.InitialPos, End: hcl.InitialPos}); diags.HasErrors() {
		return ""
	}
	r.checkReferences(parsed, false)
	names := slices.Collect(maps.Keys(vars))
	for name, at := range r.file.references {
		if _, ok := vars[name]; !ok {
			r.add(at, "the template declares no variable %q%s", name, provision.DidYouMean(name, names))
		}
	}
	expr := r.prepare(parsed)
	if len(r.list) > 0 {
		return ""
	}
	e := newEvaluation(r.file, vars)
	value, ok := e.eval(expr)
	r.list = append(r.list, e.list...)
	if !ok {
		return ""
	}
	if value.ContainsMarked() {
		r.add(expr.Range(), "the instructions use a sensitive value, but everyone who can see the run sees them")
		return ""
	}
	text, err := convert.Convert(value, cty.String)
	if err != nil {
		r.add(expr.Range(), "the instructions must evaluate to a text")
		return ""
	}
	return text.AsString()
}

package terraform

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/provision"
)

// Bounds on what is kept for an error message, in bytes.
const (
	maxErrorText = 8 << 10 // of stderr, from the first "Error:" on
	maxTailText  = 2 << 10 // the end of stderr, for an engine that crashed
	// maxTail is how much of that end is looked at for secrets before it is cut.
	maxTail    = 8 << 10
	maxMessage = 8 << 10 // of a message as a whole
)

// hiding hides secrets in a text; nil hides nothing.
type hiding func(string) string

func (h hiding) in(text string) string {
	if h == nil {
		return text
	}
	return h(text)
}

// diagnostics collects what an engine says is wrong: events where it speaks
// JSON, else the "Error:" blocks of its stderr. Bounded.
type diagnostics struct {
	hide  hiding // secrets, before anything is cut
	mu    sync.Mutex
	first *diagnostic // the first error of the events
	count int         // how many errors the events had
	block []byte      // stderr from the first "Error:" on
	tail  []byte      // the end of stderr
}

// add notes one diagnostic of the events.
func (d *diagnostics) add(diag diagnostic) {
	if diag.Severity != "error" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count++; d.first == nil {
		diag.Detail = truncate(d.hide.in(diag.Detail), maxErrorText)
		diag.Summary = truncate(d.hide.in(diag.Summary), maxErrorText)
		d.first = &diag
	}
}

// addStderr notes a line of stderr.
func (d *diagnostics) addStderr(line []byte) {
	line = colour.ReplaceAll(line, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.block) > 0 || strings.HasPrefix(plain(string(line[:min(len(line), 64)])), "Error: ") {
		if room := maxErrorText - len(d.block); room > 0 {
			shown := d.hide.in(string(line))
			d.block = append(d.block, shown[:min(len(shown), room)]...)
		}
	}
	d.tail = append(d.tail, line[max(0, len(line)-maxTail):]...)
	if len(d.tail) > 2*maxTail { // not with each line
		d.tail = append(d.tail[:0], d.tail[len(d.tail)-maxTail:]...)
	}
}

// colour is what terminals turn into colours.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// failure is the error of a command that ended badly.
func (d *diagnostics) failure(kind, command string, code provision.Code, cause error) *provision.Failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, more := d.first, d.count-1
	if first == nil {
		first, more = parseBlocks(string(d.block))
	}
	if first == nil {
		said := d.hide.in(string(d.tail))
		said = strings.TrimSpace(strings.ToValidUTF8(said[max(0, len(said)-maxTailText):], ""))
		if said == "" {
			said = "it gave no reason"
		}
		return provision.Fail(code, fmt.Sprintf("%s %s failed (%s): %s", kind, command, cause, said), cause)
	}
	if lock := parseLock(*first); lock != nil {
		return provision.Fail(provision.CodeStateLocked, lock.message(kind, command), cause)
	}
	if why, stale := staleness(first.Summary); command == "apply" && stale {
		return provision.Fail(provision.CodePlanStale, fmt.Sprintf(
			"The plan can no longer be applied: %s since it was made. Nothing was changed. Deploy again to have a new plan made.", why), cause)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s failed", kind, command)
	if first.Address != "" {
		fmt.Fprintf(&b, " for %s", first.Address)
	}
	if place := first.place(); place != "" {
		fmt.Fprintf(&b, " on %s", place)
	}
	fmt.Fprintf(&b, ": %s", first.Summary)
	if detail := strings.TrimSpace(first.Detail); detail != "" {
		fmt.Fprintf(&b, ": %s", detail)
	}
	// What is kept of stderr may end within a character.
	message := truncate(strings.ToValidUTF8(b.String(), ""), maxMessage)
	switch {
	case more == 1:
		message += "\n(and 1 more error, see the log)"
	case more > 1:
		message += fmt.Sprintf("\n(and %d more errors, see the log)", more)
	}
	return provision.Fail(code, message, cause)
}

// plain strips the frame that the engine draws around diagnostics.
func plain(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if framed, ok := strings.CutPrefix(line, "│"); ok {
		return strings.TrimPrefix(framed, " ")
	}
	return line
}

// placeLine is the second paragraph of a diagnostic: "  on main.tf line 3, in …:".
var placeLine = regexp.MustCompile(`^ *on (.+?) line (\d+)`)

// initPreface is the title of a note that init prints before the real errors.
const initPreface = "encountered problems during initialisation"

// parseBlocks reads "Error:" blocks and returns the first that says something,
// and how many there are beside it.
func parseBlocks(block string) (first *diagnostic, more int) {
	var all []*diagnostic
	var current *diagnostic
	for line := range strings.Lines(block) {
		line = plain(line)
		if summary, ok := strings.CutPrefix(line, "Error: "); ok {
			current = &diagnostic{Severity: "error", Summary: summary}
			all = append(all, current)
			continue
		}
		if strings.HasPrefix(line, "╵") || strings.HasPrefix(line, "╷") {
			continue
		}
		current.addLine(line)
	}
	if len(all) > 1 && strings.Contains(all[0].Summary, initPreface) {
		all = all[1:]
	}
	if len(all) == 0 {
		return nil, 0
	}
	return all[0], len(all) - 1
}

// snippetLine is a quoted line of the template, "   3: resource …", or what
// stands with it.
var snippetLine = regexp.MustCompile(`^ *\d+: |^ {4}[├│]`)

// addLine adds a line of plain text to the diagnostic.
func (d *diagnostic) addLine(line string) {
	if d.Range == nil && strings.TrimSpace(d.Detail) == "" {
		if at := placeLine.FindStringSubmatch(line); at != nil {
			d.Range = &srcSpan{Filename: at[1]}
			_, _ = fmt.Sscan(at[2], &d.Range.Start.Line) // digits, by the pattern
			return
		}
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "with "); ok && strings.HasPrefix(line, "  ") {
			d.Address = strings.TrimSuffix(address, ",")
			return
		}
	}
	if snippetLine.MatchString(line) {
		return
	}
	d.Detail += line + "\n"
}

// truncate cuts text to at most limit bytes, at a character, and says so.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + " … (shortened)"
}

// diagnostic is one error or warning of the engine, as its machine-readable
// output has it. Filled from plain stderr it holds summary, detail and place.
type diagnostic struct {
	Severity string   `json:"severity"`
	Summary  string   `json:"summary"`
	Detail   string   `json:"detail"`
	Address  string   `json:"address"`
	Range    *srcSpan `json:"range"`
	Snippet  *snippet `json:"snippet"`
}

type srcSpan struct {
	Filename string `json:"filename"`
	Start    struct {
		Line int `json:"line"`
	} `json:"start"`
}

type snippet struct {
	Context   *string `json:"context"`
	Code      string  `json:"code"`
	StartLine int     `json:"start_line"`
	Values    []struct {
		Traversal string `json:"traversal"`
		Statement string `json:"statement"`
	} `json:"values"`
}

// place says where the diagnostic points, "main.tf line 3", or "".
func (d diagnostic) place() string {
	if d.Range == nil || d.Range.Filename == "" {
		return ""
	}
	return fmt.Sprintf("%s line %d", d.Range.Filename, d.Range.Start.Line)
}

// text is the diagnostic as the engine prints it for people: framed, in red or yellow.
func (d diagnostic) text() string {
	title, frame := "Error: ", red
	if d.Severity == "warning" {
		title, frame = "Warning: ", yellow
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s%s%s%s%s\n", bold, frame, title, reset+bold, d.Summary, reset)
	if d.Address != "" || d.place() != "" {
		b.WriteByte('\n')
	}
	if d.Address != "" {
		fmt.Fprintf(&b, "  with %s", d.Address)
		if d.place() != "" {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	if d.place() != "" {
		fmt.Fprintf(&b, "  on %s", d.place())
		if d.Snippet != nil && d.Snippet.Context != nil {
			fmt.Fprintf(&b, ", in %s", *d.Snippet.Context)
		}
		b.WriteString(":\n")
	}
	if d.Snippet != nil {
		d.Snippet.writeTo(&b)
	}
	if detail := strings.TrimRight(d.Detail, "\n"); detail != "" {
		fmt.Fprintf(&b, "\n%s\n", detail)
	}
	var framed strings.Builder
	framed.WriteString(frame + "╷" + reset + "\n")
	for l := range strings.Lines(b.String()) {
		framed.WriteString(frame + "│" + reset + " " + l)
	}
	framed.WriteString(frame + "╵" + reset + "\n")
	return framed.String()
}

func (s *snippet) writeTo(b *strings.Builder) {
	if s.Code == "" {
		return
	}
	for i, line := range strings.Split(s.Code, "\n") {
		fmt.Fprintf(b, "%4d: %s\n", s.StartLine+i, line)
	}
	for _, v := range s.Values {
		fmt.Fprintf(b, "    %s %s\n", v.Traversal, v.Statement)
	}
}

// staleness reports whether the title of an error says that a saved plan does
// not fit the state any more, and what has happened to that.
func staleness(summary string) (why string, stale bool) {
	switch {
	case strings.HasPrefix(summary, "Saved plan is stale"):
		return "the state has moved on", true
	case strings.HasPrefix(summary, "Saved plan does not match the given state"):
		return "the state was replaced by another one", true
	}
	return "", false
}

package templatefile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"

	"github.com/tendril-run/tendril/internal/provision"
)

// problem is one thing that is wrong, and where.
type problem struct {
	at   hcl.Range
	text string
	// given says that it depends on the values of a run's variables.
	given bool
}

// problems gathers what is wrong with a file, so that all of it is said at once.
type problems struct {
	list []problem
}

func (p *problems) add(at hcl.Range, format string, args ...any) {
	p.list = append(p.list, problem{at: at, text: fmt.Sprintf(format, args...)})
}

func (p *problems) diagnose(diags hcl.Diagnostics, otherwise hcl.Range) {
	for _, diag := range diags {
		if diag.Severity != hcl.DiagError {
			continue
		}
		at := otherwise
		if diag.Subject != nil {
			at = *diag.Subject
		}
		p.add(at, "%s", diagnosis(diag))
	}
}

// diagnosis is what HCL says, in one line.
func diagnosis(diag *hcl.Diagnostic) string {
	text := diag.Summary
	if diag.Detail != "" {
		text += ": " + strings.Join(strings.Fields(diag.Detail), " ")
	}
	return text
}

const (
	maxProblems = 50
	maxMessage  = 500 // bytes of one
	maxLine     = 160 // characters of a line that is shown
)

// failure is all of it as an error; nil where nothing is wrong. sources are the files by
// name.
func (p *problems) failure(heading string, sources map[string][]byte) error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b problem) int {
		return cmp.Or(strings.Compare(a.at.Filename, b.at.Filename), a.at.Start.Byte-b.at.Start.Byte)
	})
	list := slices.CompactFunc(p.list, func(a, b problem) bool { return a.at == b.at && a.text == b.text })
	code := provision.CodeVariablesInvalid
	var text strings.Builder
	text.WriteString(heading)
	for i, one := range list {
		if !one.given {
			code = provision.CodeTemplateInvalid
		}
		if i < maxProblems {
			one.write(&text, sources[one.at.Filename])
		}
	}
	if more := len(list) - maxProblems; more > 0 {
		fmt.Fprintf(&text, "\n… and %d more", more)
	}
	return provision.Fail(code, text.String(), nil)
}

// write adds the problem with its line and a caret below where it is.
func (p problem) write(text *strings.Builder, source []byte) {
	message := p.text
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	fmt.Fprintf(text, "\n%s:%d:%d: %s", p.at.Filename, p.at.Start.Line, p.at.Start.Column, message)
	if p.at.Start.Byte > len(source) || len(source) == 0 {
		return
	}
	start := strings.LastIndexByte(string(source[:p.at.Start.Byte]), '\n') + 1
	line, _, _ := strings.Cut(string(source[start:]), "\n")
	line = strings.ToValidUTF8(strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", " "), "�")
	before := utf8.RuneCount(source[start:p.at.Start.Byte])
	if before >= maxLine {
		return
	}
	if cut := []rune(line); len(cut) > maxLine {
		line = string(cut[:maxLine]) + "…"
	}
	marked := 1
	if p.at.End.Line == p.at.Start.Line && p.at.End.Byte > p.at.Start.Byte && p.at.End.Byte <= len(source) {
		marked = utf8.RuneCount(source[p.at.Start.Byte:p.at.End.Byte])
	}
	marked = max(1, min(marked, utf8.RuneCountInString(line)-before))
	number := fmt.Sprintf("%5d", p.at.Start.Line)
	fmt.Fprintf(text, "\n%s | %s\n%s | %s%s", number, line, strings.Repeat(" ", len(number)), strings.Repeat(" ", before), strings.Repeat("^", marked))
}

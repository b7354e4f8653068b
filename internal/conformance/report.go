package conformance

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/printable"
)

// Status is how a case ended.
type Status string

// How a case may end.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Report is what a suite found.
type Report struct {
	Form    Form         `json:"form"`
	Command []string     `json:"command"`
	Cases   []CaseReport `json:"cases"`
	Passed  int          `json:"passed"`
	Failed  int          `json:"failed"`
	Skipped int          `json:"skipped"`
}

// CaseReport is what one case found.
type CaseReport struct {
	Name         string   `json:"name"`
	Status       Status   `json:"status"`
	Milliseconds int64    `json:"milliseconds"`
	Why          string   `json:"why,omitempty"` // of one that was skipped
	Problem      *Problem `json:"problem,omitempty"`
}

// Problem is why a case failed.
type Problem struct {
	// Sent is the last request.
	Sent string `json:"sent"`
	// Came are the lines of the answer, and Stderr the end of what the program said there.
	Came   []string `json:"came"`
	Stderr string   `json:"stderr,omitempty"`
	// Wrong says what is wrong, Want what is wanted, and Action what to do.
	Wrong  string `json:"wrong"`
	Want   string `json:"want"`
	Action string `json:"action"`
	// SameAs is the case that failed before for the same reason.
	SameAs string `json:"same_as,omitempty"`
}

func (r *Report) add(c CaseReport) {
	for _, before := range r.Cases {
		if c.Problem != nil && before.Problem != nil && before.Problem.Wrong == c.Problem.Wrong && c.Problem.SameAs == "" {
			c.Problem.SameAs = before.Name
		}
	}
	r.Cases = append(r.Cases, c)
	switch c.Status {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
}

// The most that is shown of a line, and of an answer.
const (
	shownBytes = 400
	shownLines = 12
)

// WriteText writes one case for people.
func (c CaseReport) WriteText(w io.Writer) error {
	var b strings.Builder
	switch c.Status {
	case Passed:
		fmt.Fprintf(&b, "✓ %s (%s)\n", c.Name, time.Duration(c.Milliseconds)*time.Millisecond)
	case Skipped:
		fmt.Fprintf(&b, "– %s: %s\n", c.Name, c.Why)
	case Failed:
		fmt.Fprintf(&b, "✗ %s\n", c.Name)
		p := c.Problem
		block(&b, "wrong", p.Wrong)
		if p.SameAs != "" {
			block(&b, "", "as in the case "+strconv.Quote(p.SameAs))
			break
		}
		block(&b, "sent", p.Sent)
		block(&b, "came", strings.Join(p.Came, "\n"))
		block(&b, "stderr", p.Stderr)
		block(&b, "want", p.Want)
		block(&b, "do", p.Action)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func block(b *strings.Builder, name, text string) {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		if name != "came" {
			return
		}
		text = "nothing"
	}
	for line := range strings.SplitSeq(printable.Text(text), "\n") {
		fmt.Fprintf(b, "    %-7s%s\n", name, line)
		name = ""
	}
}

// Summary is the report in a sentence.
func (r Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
}

// shortened cuts a line to what is shown.
func shortened(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if len(line) <= shownBytes {
		return line
	}
	return strings.ToValidUTF8(line[:shownBytes], "") + fmt.Sprintf("… (%d bytes)", len(line))
}

// shownOf are the lines of an answer that are shown: the first and the last ones.
func shownOf(output string) (lines []string) {
	for line := range strings.Lines(output) {
		lines = append(lines, shortened(line))
	}
	if len(lines) > shownLines {
		left := len(lines) - shownLines
		head := append([]string{}, lines[:shownLines/2]...)
		lines = append(append(head, fmt.Sprintf("… %d more lines", left)), lines[len(lines)-shownLines/2:]...)
	}
	return lines
}

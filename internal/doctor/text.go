package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/printable"
)

// Style is how a report is written for people.
type Style struct {
	// Width is where lines are broken; 0 is nowhere.
	Width int
	// Colour marks verdicts by colour beside their words.
	Colour bool
}

// labels are the words for verdicts, those first that matter least.
var labels = map[Status]struct{ word, colour string }{
	OK:      {"ok", "\x1b[32m"},
	Warn:    {"warn", "\x1b[33m"},
	Fail:    {"FAIL", "\x1b[1;31m"},
	Skipped: {"skip", "\x1b[2m"},
}

const (
	labelWidth, nameWidth = 4, 13
	indent                = labelWidth + 2 + nameWidth + 2
	// leastText is the narrowest column that is worth breaking lines for.
	leastText = 24
)

// WriteText writes the report as a table, and what to do below each line.
// Without a configuration there is nothing else to look at, and no word of it.
func (r Report) WriteText(w io.Writer, s Style) error {
	var b strings.Builder
	for i, check := range r.Checks {
		if i > 0 && r.Checks[0].Status == Fail {
			break
		}
		label := labels[check.Status]
		fmt.Fprintf(&b, "%s  %-*s  ", s.paint(fmt.Sprintf("%-*s", labelWidth, label.word), label.colour), nameWidth, check.Name)
		s.wrap(&b, printable.Text(check.Message), "")
		if check.Action != "" {
			b.WriteString(strings.Repeat(" ", indent))
			s.wrap(&b, printable.Text(check.Action), "→ ")
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// summary counts the verdicts.
func (r Report) summary() string {
	parts := []string{fmt.Sprintf("%d ok", r.Count(OK))}
	if n := r.Count(Warn); n > 0 {
		parts = append(parts, counted(n, "warning", "warnings"))
	}
	if n := r.Count(Fail); n > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", n))
	}
	if n := r.Count(Skipped); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not looked at", n))
	}
	return strings.Join(parts, ", ")
}

func (s Style) paint(text, colour string) string {
	if !s.Colour {
		return text
	}
	return colour + text + "\x1b[0m"
}

// wrap writes a text whose first line begins at the indent, and its further
// lines below it.
func (s Style) wrap(b *strings.Builder, text, mark string) {
	room := s.Width - indent
	column := 0
	write := func(word string) {
		b.WriteString(word)
		column += utf8.RuneCountInString(word)
	}
	write(mark)
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case s.Width > 0 && room >= leastText && column+1+utf8.RuneCountInString(word) > room:
			b.WriteString("\n" + strings.Repeat(" ", indent+utf8.RuneCountInString(mark)))
			column = utf8.RuneCountInString(mark)
		default:
			write(" ")
		}
		write(word)
	}
	b.WriteByte('\n')
}

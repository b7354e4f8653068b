package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// format is the value of -o.
type format string

// formatFlag is the flag -o of a verb that prints these formats.
type formatFlag struct {
	is  *format
	may []string
}

func (f formatFlag) String() string {
	if f.is == nil { // of a flag that is only looked at
		return ""
	}
	return string(*f.is)
}

// Type implements pflag.Value.
func (f formatFlag) Type() string { return strings.Join(f.may, "|") }

// Set implements pflag.Value.
func (f formatFlag) Set(text string) error {
	if !slices.Contains(f.may, text) {
		last := len(f.may) - 1
		return wrongUsage("must be %s or %s", strings.Join(f.may[:last], ", "), f.may[last])
	}
	*f.is = format(text)
	return nil
}

// addFormat adds -o, with formats beside text and json if the verb has such.
func addFormat(a *app, cmd *cobra.Command, more ...string) {
	a.format = "text"
	cmd.Flags().VarP(formatFlag{&a.format, append([]string{"text", "json"}, more...)}, "output", "o", "how to print the answer")
}

// formatted is a verb that has -o.
func formatted(a *app, cmd *cobra.Command) *cobra.Command {
	addFormat(a, cmd)
	return cmd
}

// printer prints what was asked for, and says things to the person.
type printer struct {
	out    terminal // what was asked for: logs, ids, tables
	err    terminal // what is said about it
	format format   // -o, of the verb that runs
}

// json reports whether a program reads the answer.
func (p *printer) json() bool { return p.format == "json" }

// say writes one message to the person.
func (p *printer) say(format string, args ...any) {
	_, _ = io.WriteString(p.err, p.err.fit(fmt.Sprintf(format, args...))+"\n") // nobody is left to tell
}

// print writes a line of what was asked for.
func (p *printer) print(format string, args ...any) error {
	_, err := io.WriteString(p.out, p.out.fit(fmt.Sprintf(format, args...))+"\n")
	return err
}

func (p *printer) printJSON(value any) error {
	var document bytes.Buffer
	encoder := json.NewEncoder(&document)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := p.out.Write(printable.JSON(document.Bytes()))
	return err
}

// answer prints what was done, if it was: as JSON, or in a sentence.
func (p *printer) answer(err error, value any, sentence string, args ...any) error {
	switch {
	case err != nil:
		return err
	case p.json():
		return p.printJSON(value)
	}
	return p.print(sentence, args...)
}

// pairs prints names and what they stand for.
func (p *printer) pairs(rows ...[]string) error { return p.print("%s", printable.Table(0, rows...)) }

// listing prints a list that was asked for: as JSON, as a table whose heading's columns tabs part, or,
// where there is nothing, a sentence to the person.
func listing[T any](p *printer, list []T, err error, none, heading string, cells func(T) []any) error {
	switch {
	case err != nil:
		return err
	case p.json():
		return p.printJSON(list)
	case len(list) == 0:
		p.say("%s", none)
		return nil
	}
	rows := [][]string{strings.Split(heading, "\t")}
	for _, entry := range list {
		var row []string
		for _, cell := range cells(entry) {
			row = append(row, fmt.Sprint(cell))
		}
		rows = append(rows, row)
	}
	width := 0
	if p.out.tty {
		width = p.out.width()
	}
	return p.print("%s", printable.Table(width, rows...))
}

// span is a duration as people write it: 7 days, 24h, 90m.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	text := d.String()
	for _, none := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, none) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// at is a time as people read it; "-" for none.
func at(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// ago is how long ago something was, as a column of a table has it: the first part
// of what seconds would say.
func ago(d time.Duration) string {
	parts := strings.Fields(seconds(max(0, d)))
	return parts[0] + " " + parts[1]
}

// seconds is a duration as people read it.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// terminal is where output goes, and whether a person's eyes are there.
type terminal struct {
	io.Writer
	tty   bool
	color bool       // SGR sequences are welcome, if it is a TTY
	width func() int // in columns; 0 when not known
}

// The escape sequences that this program writes, to a TTY only.
const (
	red       = "\x1b[31m"
	green     = "\x1b[32m"
	yellow    = "\x1b[33m"
	dim       = "\x1b[2m"
	reset     = "\x1b[0m"
	clearLine = "\r\x1b[K"
)

// paint wraps text in an SGR sequence where colours are welcome.
func (t terminal) paint(sequence, text string) string {
	if !t.tty || !t.color || sequence == "" {
		return text
	}
	return sequence + text + reset
}

// fit makes somebody else's text fit to be shown here: without any escape
// sequence, or with colours alone where these are welcome.
func (t terminal) fit(text string) string {
	if t.tty && t.color {
		return printable.Colours(text)
	}
	return printable.Text(text)
}

// longestHeld is how much of an unfinished line is held back on a TTY.
const longestHeld = 16 << 10

// screen shows a log, and on a TTY a status line below it that is redrawn and
// never becomes part of the log. Elsewhere there is no status. The lines of each
// stream stay whole. It is for one goroutine.
type screen struct {
	terminal
	streams []*held
	status  string
	drawn   bool
}

// held is what a stream has of a line that has not ended yet.
type held struct {
	stream provision.Stream
	text   string
	style  printable.Style // in which it begins
}

func newScreen(t terminal) *screen { return &screen{terminal: t} }

// write shows a piece of the log.
func (s *screen) write(stream provision.Stream, text string) error {
	h := s.unfinished(stream)
	h.text += text
	var lines []string
	for {
		line, rest, ok := strings.Cut(h.text, "\n")
		if !ok {
			break
		}
		lines = append(lines, s.styled(h, line)+"\n")
		h.text = rest
	}
	if len(h.text) > longestHeld {
		part, rest := cutLine(h.text)
		line := s.styled(h, part)
		if s.tty {
			line += "\n" // for the status line
		}
		lines, h.text = append(lines, line), rest
	}
	return s.draw(lines)
}

// cutLine cuts a long line, but not within what may be an escape sequence.
func cutLine(text string) (part, rest string) {
	if at := strings.LastIndexByte(text, '\x1b'); at > 0 && len(text)-at < longestHeld/4 {
		return text[:at], text[at:]
	}
	return text, ""
}

// show replaces the status line.
func (s *screen) show(status string) error {
	if !s.tty || status == s.status {
		return nil
	}
	s.status = status
	return s.draw(nil)
}

// close shows what is unfinished and takes the status line away.
func (s *screen) close() error {
	var lines []string
	for _, h := range s.streams {
		if h.text == "" {
			continue
		}
		if last := len(lines) - 1; last >= 0 && !s.tty {
			lines[last] += "\n"
		}
		lines = append(lines, s.styled(h, h.text))
		if s.tty {
			lines[len(lines)-1] += "\n"
		}
	}
	s.streams, s.status = nil, ""
	return s.draw(lines)
}

func (s *screen) unfinished(stream provision.Stream) *held {
	for _, h := range s.streams {
		if h.stream == stream {
			return h
		}
	}
	h := &held{stream: stream}
	s.streams = append(s.streams, h)
	return h
}

func (s *screen) styled(h *held, line string) string {
	var pieces []printable.Piece
	pieces, h.style = printable.Line(line, h.style)
	line = printable.Join(pieces, s.tty && s.color)
	switch h.stream {
	case provision.Stderr:
		return s.paint(red, line)
	case provision.System:
		return s.paint(dim, line)
	default:
		return line
	}
}

// draw puts lines above the status line, in one write, so that nothing is seen
// half done.
func (s *screen) draw(lines []string) error {
	var b bytes.Buffer
	if s.drawn {
		b.WriteString(clearLine)
	}
	for _, line := range lines {
		b.WriteString(line)
	}
	s.drawn = s.status != ""
	if s.drawn {
		b.WriteString(s.paint(dim, s.fitting(s.status)))
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := s.Write(b.Bytes())
	return err
}

// fitting cuts a text so that it cannot wrap: a wrapped line would not be
// cleared whole.
func (s *screen) fitting(text string) string {
	width := 80
	if s.width != nil && s.width() > 0 {
		width = s.width()
	}
	if utf8.RuneCountInString(text) < width {
		return text
	}
	return string([]rune(text)[:max(0, width-2)]) + "…"
}

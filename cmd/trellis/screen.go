package main

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

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

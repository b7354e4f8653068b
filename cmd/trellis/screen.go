package main

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
)

// longestHeld is how much of an unfinished line is held back on a TTY.
const longestHeld = 16 << 10

// screen shows a log, and on a TTY a status line below it that is redrawn and
// never becomes part of the log. Elsewhere the log's bytes pass as they are and
// there is no status. It is for one goroutine.
type screen struct {
	terminal
	streams []*held // on a TTY: what has no end of line yet
	status  string
	drawn   bool
}

// held is the unfinished line of one stream.
type held struct {
	stream provision.Stream
	text   string
}

func newScreen(t terminal) *screen { return &screen{terminal: t} }

// write shows a piece of the log.
func (s *screen) write(stream provision.Stream, text string) error {
	if !s.tty {
		_, err := s.Write([]byte(text))
		return err
	}
	h := s.unfinished(stream)
	h.text += text
	var lines []string
	for {
		line, rest, ok := strings.Cut(h.text, "\n")
		if !ok {
			break
		}
		lines = append(lines, s.styled(stream, line))
		h.text = rest
	}
	if len(h.text) > longestHeld {
		lines = append(lines, s.styled(stream, h.text))
		h.text = ""
	}
	return s.draw(lines)
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
	if !s.tty {
		return nil
	}
	var lines []string
	for _, h := range s.streams {
		if h.text != "" {
			lines = append(lines, s.styled(h.stream, h.text))
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

func (s *screen) styled(stream provision.Stream, line string) string {
	line = s.forTerminal(line)
	switch stream {
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
		b.WriteString(line + "\n")
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

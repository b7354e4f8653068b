package main

import (
	"io"
	"regexp"
	"strings"
	"unicode"
)

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

// escapes matches terminal escape sequences (ECMA-48): CSI, then OSC and its
// kin up to their terminator, then the short ones.
var escapes = regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]?")

// sgr matches the sequences that only colour.
var sgr = regexp.MustCompile("^\x1b\\[[0-9;:]*m$")

// forTerminal makes one line of somebody else's text fit to be shown: colours
// stay where they are welcome; whatever else would move the cursor, set a title
// or write the clipboard goes. A line that was overwritten (a progress bar)
// shows as it was left.
func (t terminal) forTerminal(line string) string {
	line = strings.TrimSuffix(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	coloured := false
	line = escapes.ReplaceAllStringFunc(line, func(sequence string) string {
		if t.color && sgr.MatchString(sequence) {
			coloured = true
			return sequence
		}
		return ""
	})
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\x1b' {
			return -1
		}
		return r
	}, line)
	if coloured {
		line += reset
	}
	return line
}

// plain takes control characters out of somebody else's text, line ends apart,
// when it goes to a TTY.
func plain(text string, tty bool) string {
	if !tty {
		return text
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, text)
}

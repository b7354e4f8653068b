package main

import (
	"io"

	"github.com/tendril-run/tendril/internal/printable"
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

// fit makes somebody else's text fit to be shown here: without any escape
// sequence, or with colours alone where these are welcome.
func (t terminal) fit(text string) string {
	if t.tty && t.color {
		return printable.Colours(text)
	}
	return printable.Text(text)
}

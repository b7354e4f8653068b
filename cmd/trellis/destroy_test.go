package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		yes, tty bool
		typed    string
		goes     bool
	}{
		{yes: true, goes: true},
		{tty: true, typed: "acme/prod\n", goes: true},
		{tty: true, typed: "acme/prod", goes: true}, // Ctrl-D after it
		{tty: true, typed: "yes\n"},
		{tty: true, typed: ""},
		{typed: "acme/prod\n"},
	} {
		var said bytes.Buffer
		a := &app{in: strings.NewReader(tt.typed), printer: printer{err: terminal{Writer: &said, tty: tt.tty}}}
		err := confirm(a, tt.yes, "acme/prod", "This destroys everything.")
		if (err == nil) != tt.goes {
			t.Errorf("confirm(%v) on a TTY %v with %q = %v, want to go on %v", tt.yes, tt.tty, tt.typed, err, tt.goes)
		}
		if _, wrong := errors.AsType[*usageError](err); wrong == tt.tty && !tt.goes {
			t.Errorf("confirm with %q on a TTY %v = %v, want wrong usage where nobody can be asked", tt.typed, tt.tty, err)
		}
	}
}

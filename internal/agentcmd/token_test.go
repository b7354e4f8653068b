package agentcmd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
)

// A token that cannot be read leaves the last one; each change is told once.
func TestTokens(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	text, err := "tnd_first", error(nil)
	tokens := &tokens{
		read: func() (config.Secret, error) { return config.NewSecret(text), err }, newest: config.NewSecret(text),
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	for _, step := range []struct {
		text  string
		err   error
		want  string
		lines int // of the log, so far
	}{
		{"tnd_first", nil, "tnd_first", 0},
		{"", errors.New("no such file"), "tnd_first", 1},
		{"", errors.New("no such file"), "tnd_first", 1},
		{"tnd_second", nil, "tnd_second", 2},
		{"tnd_second", nil, "tnd_second", 2},
		{"", errors.New("no such file"), "tnd_second", 3},
	} {
		text, err = step.text, step.err
		if got := tokens.now(); got != step.want || strings.Count(log.String(), "\n") != step.lines {
			t.Errorf("now() = %q after %q, %v, want %q and %d lines in the log:\n%s", got, text, err, step.want, step.lines, &log)
		}
	}
	if strings.Contains(log.String(), "tnd_") {
		t.Errorf("the log has a token:\n%s", &log)
	}
}

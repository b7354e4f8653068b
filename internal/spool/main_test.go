package spool

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSpool returns an empty spool as the agent makes one.
func newSpool(tb testing.TB) *os.File {
	tb.Helper()
	f, err := os.OpenFile(filepath.Join(tb.TempDir(), "spool"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func write(tb testing.TB, w *Writer, s provision.Stream, text string) {
	tb.Helper()
	if n, err := w.Stream(s).Write([]byte(text)); n != len(text) || err != nil {
		tb.Fatalf("Write(%.40q) = %d, %v, want %d, nil", text, n, err, len(text))
	}
}

func closeWriter(tb testing.TB, w *Writer) {
	tb.Helper()
	if err := w.Close(); err != nil {
		tb.Fatalf("Close() = %v, want nil", err)
	}
}

// spooled returns the whole lines of a spool, decoded by encoding/json alone;
// those that are no JSON are left out.
func spooled(tb testing.TB, f *os.File) []wire {
	tb.Helper()
	content, err := os.ReadFile(f.Name())
	if err != nil {
		tb.Fatal(err)
	}
	var out []wire
	for line := range bytes.Lines(content) {
		var w wire
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &w) == nil {
			out = append(out, w)
		}
	}
	return out
}

// shape writes records down in a line: 1:STDOUT"text"; with ! where a chunk
// ends, and #1 or #1? for updates.
func shape(records []wire) string {
	var b strings.Builder
	for _, r := range records {
		line, err := json.Marshal(r.Text)
		if err != nil {
			panic(err)
		}
		switch {
		case r.Update != 0:
			b.WriteString("#")
			b.WriteString(string(rune('0' + r.Update)))
			if r.Ack {
				b.WriteString("?")
			}
		case r.Stream == "":
			b.WriteString(string(rune('0'+r.Chunk)) + ":")
		default:
			b.WriteString(string(rune('0'+r.Chunk)) + ":" + string(r.Stream) + string(line))
		}
		if r.End {
			b.WriteString("!")
		}
		b.WriteString(" ")
	}
	return strings.TrimSuffix(b.String(), " ")
}

// textOf joins the text of a stream's records, or of all for "".
func textOf(records []wire, s provision.Stream) string {
	var b strings.Builder
	for _, r := range records {
		if s == "" || r.Stream == s {
			b.WriteString(r.Text)
		}
	}
	return b.String()
}

// deadline bounds waits for something that must happen soon.
const deadline = time.Minute

func processing(stage provision.Stage) provision.Report {
	return provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: stage}}
}

func ended(status provision.Status) provision.Report { return provision.Report{Status: status} }

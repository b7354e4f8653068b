package delivery

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSpool returns an empty spool as the agent makes one.
func newSpool(tb testing.TB) *os.File {
	tb.Helper()
	return open(tb, "spool")
}

// newTail returns an empty tail as the agent makes one.
func newTail(tb testing.TB) spool.Tail {
	tb.Helper()
	return spool.Tail{open(tb, "tail0"), open(tb, "tail1")}
}

func open(tb testing.TB, name string) *os.File {
	tb.Helper()
	f, err := os.OpenFile(filepath.Join(tb.TempDir(), name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func newLimited(tb testing.TB, total int64) (*spool.Writer, *os.File, spool.Tail) {
	tb.Helper()
	file, tail := newSpool(tb), newTail(tb)
	w := spool.NewWriter(file, nil)
	w.Limit(total, tail)
	return w, file, tail
}

func write(tb testing.TB, w *spool.Writer, s provision.Stream, text string) {
	tb.Helper()
	if n, err := w.Stream(s).Write([]byte(text)); n != len(text) || err != nil {
		tb.Fatalf("Write(%.40q) = %d, %v, want %d, nil", text, n, err, len(text))
	}
}

func closeWriter(tb testing.TB, w *spool.Writer) {
	tb.Helper()
	if err := w.Close(); err != nil {
		tb.Fatalf("Close() = %v, want nil", err)
	}
}

func processing(stage provision.Stage) provision.Report {
	return provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: stage}}
}

func ended(status provision.Status) provision.Report { return provision.Report{Status: status} }

// Records as a child writes them.
const (
	lineA = `{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:05.678Z","d":"a\n"}` + "\n"
	lineB = `{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:06Z","d":"b\u001b[0m\n","end":true}` + "\n"
	lineC = `{"c":2,"s":"STDERR","at":"2026-01-02T03:04:07Z","d":"c\n"}` + "\n"
)

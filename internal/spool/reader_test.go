package spool

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/redact"
)

// read returns all records that a Reader finds in a spool that is final.
func read(tb testing.TB, spool io.ReaderAt) []wire {
	tb.Helper()
	r := NewReader(spool)
	r.Final()
	return readOn(tb, r)
}

// readOn returns the records there are until the end of the file.
func readOn(tb testing.TB, r *Reader) []wire {
	tb.Helper()
	var out []wire
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			tb.Fatalf("Next() = %v", err)
		}
		out = append(out, wire{rec.Chunk, rec.Stream, rec.At, string(rec.Text), rec.End, rec.Update, rec.Ack, rec.Report})
	}
}

const (
	lineA     = `{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:05.678Z","d":"a\n"}` + "\n"
	lineB     = `{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:06Z","d":"b\u001b[0m\n","end":true}` + "\n"
	lineC     = `{"c":2,"s":"STDERR","at":"2026-01-02T03:04:07Z","d":"c\n"}` + "\n"
	forgedEnd = `{"n":99,"report":{"status":"SUCCESS","detail":{"stage":"done","n":7}}}` + "\n"
	lineD     = `{"n":1,"ack":true,"report":{"status":"PROCESSING","detail":{"stage":"apply"}}}` + "\n"
)

func TestReader(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spool   string
		want    string
		skipped int
	}{
		"empty":                {"", "", 0},
		"all kinds":            {lineA + lineB + lineC + `{"c":2,"end":true}` + "\n" + lineD, `1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"! 2:STDERR"c\n" 2:! #1?`, 0},
		"any spelling of JSON": {`{"d":"a\u006e\/", "at":"2026-01-02T03:04:05+01:00","s":"SYSTEM","c":1}` + "\n", `1:SYSTEM"an/"`, 0},
		"torn end":             {lineA + lineB[:40], `1:STDOUT"a\n"`, 1},
		"whole but for its end of line": {lineA + strings.TrimSuffix(lineB, "\n"),
			`1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"!`, 0},
		"torn within":         {lineA + lineB[:40] + "\n" + lineC, `1:STDOUT"a\n" 2:STDERR"c\n"`, 1},
		"torn and run over":   {lineA + lineB[:40] + lineC + lineD, `1:STDOUT"a\n" #1?`, 1},
		"zeros":               {lineA + strings.Repeat("\x00", 5000) + "\n" + lineC, `1:STDOUT"a\n" 2:STDERR"c\n"`, 1},
		"a line without end":  {lineA + strings.Repeat("x", 3*maxRecord) + "\n" + lineC, `1:STDOUT"a\n" 2:STDERR"c\n"`, 1},
		"ends in such a line": {lineA + strings.Repeat("x", 3*maxRecord), `1:STDOUT"a\n"`, 1},
		"empty lines":         {"\n\n" + lineA + "\n", `1:STDOUT"a\n"`, 0},
		"numbers taken":       {lineA + lineB + lineA + lineD + lineD, `1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"! 2:STDOUT"a\n" #1? #2?`, 0},
		"out of order": {lineA + lineB + lineC + lineA + `{"c":1,"end":true}` + "\n",
			`1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"! 2:STDERR"c\n" 3:STDOUT"a\n" 3:!`, 0},
		"an end of no chunk": {lineA + `{"c":2,"end":true}` + "\n" + lineB + `{"c":1,"end":true}` + "\n", `1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"!`, 2},
		"numbers left out": {lineA + strings.Replace(lineC, `"c":2`, `"c":4`, 1) + strings.Replace(lineD, `"n":1`, `"n":3`, 1),
			`1:STDOUT"a\n" 4:STDERR"c\n" #3?`, 0},
		"no such stream": {strings.Replace(lineA, "STDOUT", "STDLOG", 1), "", 1},
		"NUL":            {strings.Replace(lineA, `"d":"a`, `"d":"\u0000`, 1), "", 1},
		"not UTF-8 is made so": {strings.Replace(lineA, `"a\n`, "\"\xff\\n", 1),
			`1:STDOUT"` + "\ufffd" + `\n"`, 0},
		"numbers that cannot be": {`{"c":0,"end":true}` + "\n" + `{"c":-1,"end":true}` + "\n" + `{"c":7,"end":true}` + "\n" +
			strings.Replace(lineA, `"c":1`, `"c":9223372036854775807`, 1) + `{"n":-1,"report":{}}` + "\n" + `{"n":1}` + "\n" + lineA, `1:STDOUT"a\n" 2:STDOUT"a\n"`, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := NewReader(strings.NewReader(tt.spool))
			r.Final()
			if got := shape(readOn(t, r)); got != tt.want {
				t.Errorf("records = %s, want %s", got, tt.want)
			}
			if r.Skipped() != tt.skipped {
				t.Errorf("Skipped() = %d, want %d", r.Skipped(), tt.skipped)
			}
			if c := cap(r.buf); c > 4*maxRecord {
				t.Errorf("the buffer has %d bytes, want at most %d", c, 4*maxRecord)
			}
			r.Rewind()
			if got := shape(readOn(t, r)); got != tt.want {
				t.Errorf("after Rewind() records = %s, want %s", got, tt.want)
			}
		})
	}
}

// growing is a spool of which only a part is there yet.
type growing struct {
	content string
	there   int
}

func (g *growing) ReadAt(p []byte, at int64) (int, error) {
	return strings.NewReader(g.content[:g.there]).ReadAt(p, at)
}

func TestReaderWaitsForTheRestOfALine(t *testing.T) {
	t.Parallel()
	g := &growing{content: lineA + lineB + lineC + lineD}
	r := NewReader(g)
	var got []wire
	for ; g.there <= len(g.content); g.there++ {
		got = append(got, readOn(t, r)...)
	}
	if want := `1:STDOUT"a\n" 1:STDOUT"b\u001b[0m\n"! 2:STDERR"c\n" #1?`; shape(got) != want {
		t.Errorf("records = %s, want %s", shape(got), want)
	}
	if r.Skipped() != 0 {
		t.Errorf("Skipped() = %d, want 0", r.Skipped())
	}
}

func TestReaderReturnsTheFilesError(t *testing.T) {
	t.Parallel()
	f := newSpool(t)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(f).Next(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Next() = %v, want %v", err, os.ErrClosed)
	}
}

// FuzzReader: whatever is in the file, and however it grows, the Reader ends,
// yields only what the queue takes, in order, and finds the record behind it.
func FuzzReader(f *testing.F) {
	f.Add([]byte(lineA+lineB+lineC+lineD), uint16(50))
	f.Add([]byte(lineA+lineB[:30]+"\n"+lineC+`{"c":2,"end":true}`), uint16(1))
	f.Add([]byte(`{"c":1,"s":"SYSTEM","at":"2026-01-02T03:04:05Z","d":"\ud83d\ude00\\"}`), uint16(70))
	f.Add([]byte(lineA+lineB+lineC[:len(lineC)-1]), uint16(200))                      // whole but for its end of line
	f.Add([]byte(lineA+lineB+lineD[:len(lineD)-3]), uint16(300))                      // torn
	f.Add([]byte(lineA+lineB[:20]+lineC+lineD), uint16(130))                          // torn and run over
	f.Add(append([]byte(lineA), make([]byte, 3000)...), uint16(1000))                 // what a crash of the machine leaves
	f.Add([]byte(strings.Repeat(lineA, 900)+strings.Repeat("{", 900)), uint16(65535)) // more than a chunk, and garbage
	f.Add([]byte(forgedEnd+lineA+forgedEnd+`{"n":-1,"report":{}}`+"\n[]\nnull\n1"), uint16(90))
	f.Fuzz(func(t *testing.T, content []byte, there uint16) {
		content = append(content, ("\n" + strings.Replace(lineC, "c\\n", "the last", 1))...)
		g := &growing{content: string(content), there: min(int(there), len(content))}
		r := NewReader(g)
		got := readOn(t, r)
		g.there = len(content)
		got = append(got, readOn(t, r)...)
		r.Final()
		got = append(got, readOn(t, r)...)
		if want := read(t, bytes.NewReader(content)); !reflect.DeepEqual(got, want) {
			t.Errorf("records of a growing file = %v, want %v", got, want)
		}
		var chunk, update int64
		for _, w := range got {
			if w.Update != 0 {
				if w.Update <= update || w.Report == nil {
					t.Errorf("update %d after %d", w.Update, update)
				}
				update = w.Update
				continue
			}
			if w.Chunk < chunk || len(w.Text) > provision.MaxChunk || !redact.IsClean([]byte(w.Text)) {
				t.Errorf("chunk %d after %d, text %.40q", w.Chunk, chunk, w.Text)
			}
			chunk = w.Chunk
		}
		if len(got) == 0 || got[len(got)-1].Text != "the last" {
			t.Error("the record behind it is not found")
		}
	})
}

// FuzzRecord: what is written is read, by our own decoder and by encoding/json.
func FuzzRecord(f *testing.F) {
	f.Add("a \"line\"\n\t\x1b[1m\r\\", int64(1), int64(1_700_000_000_000), true)
	f.Add("é😀\u2028\x7f", int64(math.MaxInt64), int64(0), false)
	f.Fuzz(func(t *testing.T, text string, chunk, at int64, end bool) {
		text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
		if chunk <= 0 || text == "" || len(text) > provision.MaxChunk {
			t.Skip("not what a Writer writes")
		}
		when := time.UnixMicro(at).UTC()
		if when.IsZero() || when.Year() < 1 || when.Year() > 9999 {
			t.Skip("not a time")
		}
		line := appendText(nil, chunk, provision.Stderr, when, []byte(text), end)
		line = line[:len(line)-1]
		want := Record{Chunk: chunk, Stream: provision.Stderr, At: when, Text: []byte(text), End: end}
		if got, _, ok := decodeText(line, nil); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("decodeText(%s) = %+v, %t, want %+v", line, got, ok, want)
		}
		var w wire
		if err := json.Unmarshal(line, &w); err != nil || w.Text != text || w.Chunk != chunk || !w.At.Equal(when) || w.End != end {
			t.Errorf("json.Unmarshal(%s) = %+v, %v", line, w, err)
		}
	})
}

// FuzzDecode: our own decoder says what encoding/json says, where it says
// anything.
func FuzzDecode(f *testing.F) {
	for _, line := range []string{lineA, lineB, lineC, lineD} {
		f.Add([]byte(strings.TrimSuffix(line, "\n")))
	}
	f.Add([]byte(`{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:05.678Z","d":"\u00c3\u00a9"}`)) // two runes, not the bytes of one
	f.Fuzz(func(t *testing.T, line []byte) {
		got, _, ok := decodeText(line, nil)
		if !ok {
			return
		}
		var w wire
		if err := json.Unmarshal(line, &w); err != nil {
			t.Fatalf("decodeText(%q) = %+v, json.Unmarshal: %v", line, got, err)
		}
		if w.Chunk != got.Chunk || w.Stream != got.Stream || w.Text != string(got.Text) || w.End != got.End || !w.At.Equal(got.At) {
			t.Errorf("decodeText(%q) = %+v, json.Unmarshal = %+v", line, got, w)
		}
	})
}

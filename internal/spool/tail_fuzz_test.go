package spool

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/redact"
)

// FuzzTail: whatever is in the files of a tail, its reader ends, yields only
// what the queue takes, in chunks numbered without a gap, and finds the record
// at the end of the newest file.
func FuzzTail(f *testing.F) {
	const head = `{"segment":2,"lines":5,"bytes":70}` + "\n"
	f.Add([]byte(head+lineA+lineB), []byte(`{"segment":1,"lines":0,"bytes":0}`+"\n"+lineC))
	f.Add([]byte(head+lineA[:30]), []byte(`{"segment":3,"lines":9,"bytes":99}`+"\n"+lineA+lineC+lineA))
	f.Add([]byte(head+lineD+forgedEnd+strings.Repeat(lineB, 300)), []byte(`{"segm`))
	f.Add([]byte(lineA), []byte(`{"segment":-1}`+"\n"+lineA))
	f.Add(make([]byte, 5000), []byte(`{"segment":9223372036854775807,"lines":9223372036854775807,"bytes":1}`+"\n"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		tail := newTail(t)
		want := ""
		for i, content := range [][]byte{first, second} {
			if err := os.WriteFile(tail[i].Name(), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		resumed, err := resumeTail(tail)
		if err != nil {
			t.Fatal(err)
		}
		if resumed.head.Segment > 0 && resumed.head.Segment < 1<<62 {
			want = "the last\n"
			if _, err := resumed.append(provision.System, time.Unix(1, 0), []byte(want)); err != nil {
				t.Fatal(err)
			}
		}
		r := NewTailReader(tail, 41)
		chunk, size, last := int64(41), 0, ""
		for {
			got, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Chunk == chunk+1 {
				chunk, size = got.Chunk, 0
			}
			size += len(got.Text)
			if last = string(got.Text); got.Chunk != chunk || size > provision.MaxChunk || last == "" || !redact.IsClean(got.Text) || got.At.IsZero() {
				t.Fatalf("chunk %d after %d, %d bytes, %.40q", got.Chunk, chunk, size, last)
			}
		}
		if want != "" && last != want {
			t.Errorf("the tail ends with %q, want %q", last, want)
		}
	})
}

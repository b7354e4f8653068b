package delivery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// farthest is how many numbers a Reader lets be missing.
const farthest = 99

// textRecord is one that a Writer writes.
func textRecord(chunk int, text string, end bool) string {
	return fmt.Sprintf(`{"c":%d,"s":"STDOUT","at":"2026-01-02T03:04:05Z","d":%q,"end":%t}`, chunk, text, end) + "\n"
}

// TestPumpFillsALargeGap: what fills a gap in the numbers goes into calls as the
// database takes them, however full the batch was before.
func TestPumpFillsALargeGap(t *testing.T) {
	t.Parallel()
	small, large := "x\n", strings.Repeat("x", provision.MaxChunk-1)+"\n"
	for name, tt := range map[string]struct {
		before int // chunks
		text   string
	}{
		"a batch but one":          {provision.MaxBatchChunks - 1, small},
		"a batch":                  {provision.MaxBatchChunks, small},
		"as much text as may be":   {provision.MaxBatch / provision.MaxChunk, large},
		"all but one of its parts": {provision.MaxBatch/provision.MaxChunk - 1, large},
	} {
		for _, gap := range []int{1, 2, farthest} {
			t.Run(fmt.Sprintf("%s, %d missing", name, gap), func(t *testing.T) {
				t.Parallel()
				var content strings.Builder
				for n := range tt.before {
					end := n+1 < tt.before // the last one is open when the gap is met
					content.WriteString(textRecord(n+1, tt.text, end))
				}
				content.WriteString(textRecord(tt.before+gap+1, "y\n", true))
				content.WriteString(`{"n":1,"report":{"status":"SUCCESS"}}` + "\n")
				file := newSpool(t)
				if _, err := file.WriteString(content.String()); err != nil {
					t.Fatal(err)
				}
				q := &memQueue{}
				d := run(t, NewPump(q, uuid.New(), file, PumpOptions{}))
				want := strings.Repeat(tt.text, tt.before) + strings.Repeat(damaged, gap) + "y\n"
				if q.text() != want || len(q.chunks) != tt.before+gap+1 {
					t.Errorf("stored %d bytes in %d chunks, want %d in %d", len(q.text()), len(q.chunks), len(want), tt.before+gap+1)
				}
				if d.Result == nil || d.Bytes != int64(len(want)) {
					t.Errorf("Run() = %+v, want SUCCESS and %d bytes", d, len(want))
				}
			})
		}
	}
}

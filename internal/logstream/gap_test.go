package logstream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

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
		for _, gap := range []int{1, 2, maxGap - 1} {
			t.Run(fmt.Sprintf("%s, %d missing", name, gap), func(t *testing.T) {
				t.Parallel()
				at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				var content []byte
				for n := range tt.before {
					end := n+1 < tt.before // the last one is open when the gap is met
					content = appendText(content, int64(n+1), provision.Stdout, at, []byte(tt.text), end)
				}
				content = appendText(content, int64(tt.before+gap+1), provision.Stdout, at, []byte("y\n"), true)
				content, err := appendUpdate(content, 1, false, time.Time{}, ended(provision.Success))
				if err != nil {
					t.Fatal(err)
				}
				spool := newSpool(t)
				if _, err := spool.Write(content); err != nil {
					t.Fatal(err)
				}
				q := &memQueue{}
				d := run(t, NewPump(q, uuid.New(), spool, PumpOptions{}))
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

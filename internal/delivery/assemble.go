package delivery

import (
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// damaged stands for a chunk of which the spool holds no readable record: the
// database takes numbers without a gap only.
const damaged = "Lines are missing here: the spool is damaged.\n"

// assembler makes chunks of the records of a spool and collects those that the
// database has not stored yet.
type assembler struct {
	// want is the number of the first chunk that is still to be collected.
	want  int64
	batch []provision.LogChunk // chunks want-len(batch) … want-1
	bytes int                  // the text of batch

	number int64 // the last chunk seen
	open   bool
	stream provision.Stream
	at     time.Time
	text   []byte
}

// add takes a text or close record.
func (a *assembler) add(r spool.Record) {
	if r.Stream != "" && r.Chunk != a.number {
		a.close()
		for a.number++; a.number < r.Chunk; a.number++ {
			a.collect(provision.LogChunk{Stream: provision.System, Text: damaged, EmittedAt: r.At})
		}
		a.open, a.stream, a.at = true, r.Stream, r.At
	}
	if a.number >= a.want {
		a.text = append(a.text, r.Text...)
	}
	if r.End {
		a.close()
	}
}

// close ends the chunk that is open.
func (a *assembler) close() {
	if a.open {
		a.collect(provision.LogChunk{Stream: a.stream, Text: string(a.text), EmittedAt: a.at})
		a.open, a.text = false, a.text[:0]
	}
}

// collect puts the chunk a.number into the batch, unless it is stored already.
func (a *assembler) collect(c provision.LogChunk) {
	if a.number < a.want {
		return
	}
	a.batch = append(a.batch, c)
	a.bytes += len(c.Text)
	a.want = a.number + 1
}

// full reports whether another chunk might make the batch too large for a call.
func (a *assembler) full() bool {
	return len(a.batch) >= provision.MaxBatchChunks || a.bytes > provision.MaxBatch-provision.MaxChunk
}

// first returns the number of the batch's first chunk.
func (a *assembler) first() int64 { return a.want - int64(len(a.batch)) }

// handOver gives away as much of the batch as a call may carry: where numbers
// are missing it grows beyond that. The next one, in the memory of next, begins
// where that ends.
func (a *assembler) handOver(next []provision.LogChunk) []provision.LogChunk {
	n, bytes := 0, 0
	for ; n < min(len(a.batch), provision.MaxBatchChunks); n++ {
		if bytes += len(a.batch[n].Text); bytes > provision.MaxBatch {
			bytes -= len(a.batch[n].Text)
			break
		}
	}
	batch, rest := a.batch[:n], a.batch[n:]
	a.batch, a.bytes = append(next[:0], rest...), a.bytes-bytes
	clear(rest) // let go of the text
	return batch
}

// stored drops what the database has: all before next.
func (a *assembler) stored(next int64) {
	n := min(max(next-a.first(), 0), int64(len(a.batch)))
	for _, c := range a.batch[:n] {
		a.bytes -= len(c.Text)
	}
	kept := copy(a.batch, a.batch[n:])
	clear(a.batch[kept:]) // let go of the text
	a.batch = a.batch[:kept]
	a.want = max(a.want, next)
}

// rewind forgets all that was seen; the reader starts again.
func (a *assembler) rewind(next int64) {
	clear(a.batch)
	*a = assembler{want: next, batch: a.batch[:0], text: a.text[:0]}
}

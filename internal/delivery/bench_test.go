package delivery

import (
	"bytes"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// output is what terraform prints, as a pipe hands it over: 32 KB.
func output() []byte {
	line := []byte("module.vpc.aws_subnet.private[3]: Creation complete after 2s [id=subnet-0a1b2c3d4e5f]\n")
	return bytes.Repeat(line, 32<<10/len(line))
}

func BenchmarkPump(b *testing.B) {
	const size = 32 << 20
	file := newSpool(b)
	w := spool.NewWriter(file, nil)
	block := output()
	for written := 0; written < size; written += len(block) {
		if _, err := w.Stream(provision.Stdout).Write(block); err != nil {
			b.Fatal(err)
		}
	}
	closeWriter(b, w)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := NewPump(&discard{}, uuid.New(), file, PumpOptions{}).Run(b.Context(), nil, closed()); err != nil {
			b.Fatal(err)
		}
	}
}

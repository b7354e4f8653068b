package spool

import (
	"bytes"
	"os"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// output is what terraform prints, as a pipe hands it over: 32 KB.
func output() []byte {
	line := []byte("module.vpc.aws_subnet.private[3]: Creation complete after 2s [id=subnet-0a1b2c3d4e5f]\n")
	return bytes.Repeat(line, 32<<10/len(line))
}

func BenchmarkWriter(b *testing.B) {
	for name, block := range map[string][]byte{"blocks": output(), "lines": output()[:87], "gathered": output()[:87]} {
		b.Run(name, func(b *testing.B) {
			spool := newSpool(b)
			w := NewWriter(spool, nil)
			if name == "gathered" {
				w.Gather()
			}
			w.Mask("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "correct horse battery staple")
			stdout := w.Stream(provision.Stdout)
			b.SetBytes(int64(len(block)))
			size := 0
			for b.Loop() {
				if _, err := stdout.Write(block); err != nil {
					b.Fatal(err)
				}
				if size += len(block); size > 64<<20 { // keep the file small
					size = 0
					if err := os.Truncate(spool.Name(), 0); err != nil {
						b.Fatal(err)
					}
				}
			}
			closeWriter(b, w)
		})
	}
}

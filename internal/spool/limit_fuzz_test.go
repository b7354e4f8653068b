package spool

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// fuzzLimit is small enough for a fuzzer to go beyond.
const fuzzLimit = 256 << 10

// FuzzLimit prints the same with a limit and without. What the unlimited log
// says is right; the other begins like it, shows pieces of it in their order,
// ends like it, each byte under the name of its stream, and is no larger than
// its limit; and it is the same where it stays below half of that.
func FuzzLimit(f *testing.F) {
	f.Add("a line of the log\n", uint16(30), []byte{9, 0, 255, 3, 200, 1, 255, 255, 128}, "line")
	f.Add("no end of a line ", uint16(500), []byte{255, 255, 255, 255, 255, 7}, "end of")
	f.Add("é😀\x00\xff\xe2\x82", uint16(900), []byte{250, 1, 250, 2, 250, 3, 250}, "\xe2\x82")
	f.Add("\n", uint16(2000), []byte{255, 1, 255, 1, 255, 1, 255, 1, 255, 1, 255, 1, 255, 1}, "")
	f.Add("x", uint16(65000), []byte{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "xxx")
	f.Add("half a secr", uint16(2), []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}, "secrhalf")
	f.Fuzz(func(t *testing.T, unit string, times uint16, steps []byte, secret string) {
		if len(unit) > 60 || len(steps) > 40 || len(secret) > 100 {
			return // too slow to be worth a fuzzer's time
		}
		block := []byte(strings.Repeat(unit, 1+int(times)))
		block = block[:min(len(block), 80<<10)]
		synctest.Test(t, func(t *testing.T) {
			whole := unlimited(t, block, steps, secret)
			spool, tail := newSpool(t), newTail(t)
			w := NewWriter(spool, nil)
			w.Limit(fuzzLimit, tail)
			printInSteps(t, w, block, steps, secret)
			wantPartsOf(t, stored(t, spool, tail), whole)
		})
	})
}

// unlimited returns what a log without a limit has.
func unlimited(t *testing.T, block, steps []byte, secret string) []provision.LogChunk {
	spool := newSpool(t)
	printInSteps(t, NewWriter(spool, nil), block, steps, secret)
	return stored(t, spool, Tail{})
}

// printInSteps writes a part of the block for each step, on one stream or the
// other, and lets some time pass after some.
func printInSteps(t *testing.T, w *Writer, block, steps []byte, secret string) {
	w.Mask(secret)
	for i, step := range steps {
		stream := provision.Stdout
		if step%3 == 0 {
			stream = provision.Stderr
		}
		write(t, w, stream, string(block[:len(block)*int(step)/255]))
		if i%4 == 3 {
			time.Sleep(time.Duration(step) * 20 * time.Millisecond)
			synctest.Wait()
		}
	}
	closeWriter(t, w)
}

// tagged is text with, for each byte, the stream it is of.
type tagged struct{ text, streams []byte }

func (g *tagged) add(c provision.LogChunk) {
	g.text = append(g.text, c.Text...)
	g.streams = append(g.streams, bytes.Repeat([]byte(c.Stream[3:4]), len(c.Text))...)
}

// at reports whether other is found in g at a place.
func (g *tagged) at(i int, other tagged) bool {
	end := i + len(other.text)
	return i >= 0 && end <= len(g.text) && bytes.Equal(g.text[i:end], other.text) && bytes.Equal(g.streams[i:end], other.streams)
}

// find returns the first place from i on where other is, or -1.
func (g *tagged) find(i int, other tagged) int {
	for i <= len(g.text)-len(other.text) {
		next := bytes.Index(g.text[i:], other.text)
		if next < 0 {
			break
		}
		if i += next; g.at(i, other) {
			return i
		}
		i++
	}
	return -1
}

func wantPartsOf(t *testing.T, log, whole []provision.LogChunk) {
	t.Helper()
	var all, part tagged
	var pieces []tagged // between SYSTEM lines
	var size int
	ends := false
	for _, c := range whole {
		all.add(c)
	}
	for _, c := range log {
		size += len(c.Text)
		if c.Stream != provision.System {
			part.add(c)
			continue
		}
		pieces = append(pieces, part)
		part = tagged{}
		ends = strings.Contains(c.Text, "left out")
	}
	pieces = append(pieces, part)
	if len(pieces) == 1 {
		if !slices.Equal(part.text, all.text) || !slices.Equal(part.streams, all.streams) {
			t.Fatalf("a log of %d bytes is not the %d printed", len(part.text), len(all.text))
		}
		return
	}
	if !all.at(0, pieces[0]) || len(pieces[0].text) < fuzzLimit/16 {
		t.Fatalf("the log begins with %d bytes that are not those printed first", len(pieces[0].text))
	}
	place := len(pieces[0].text)
	for _, piece := range pieces[1 : len(pieces)-1] {
		if place = all.find(place, piece); place < 0 {
			t.Fatalf("a sample of %d bytes, %.60q, was not printed there", len(piece.text), piece.text)
		}
		place += len(piece.text)
	}
	if !ends || len(part.text) == 0 || !all.at(len(all.text)-len(part.text), part) {
		t.Fatalf("the log ends with %d bytes, %.60q, that are not those printed last", len(part.text), part.text)
	}
	if most := fuzzLimit + 32<<10; size > most {
		t.Fatalf("the log has %d bytes, want at most %d", size, most)
	}
}

package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/redact"
)

// Record is one line of the spool. It is an update when Update is not zero,
// else text of a chunk when Stream is set, else only says that a chunk is
// complete.
type Record struct {
	// Chunk is the number of the chunk, from 1.
	Chunk  int64
	Stream provision.Stream
	At     time.Time
	// Text is masked, valid UTF-8 without NUL; it is overwritten by the next
	// call of Reader.Next.
	Text []byte
	// End says that the chunk is complete.
	End bool

	// Update is the number of the update, from 1. At is when it was written; an
	// older child does not say.
	Update int64
	// Ack says that the child waits for the database's answer, which it knows
	// by the number Asked: the one in the spool, whatever Update has become.
	Ack    bool
	Asked  int64
	Report *provision.Report
}

// maxRecord is the longest line a Reader accepts. The largest record is an
// update with a detail of provision.MaxDetail bytes.
const maxRecord = provision.MaxDetail + 64<<10

// wire is a record as JSON. Which of the three it is shows by its keys: n for
// an update, s for text, neither for the end of a chunk.
type wire struct {
	Chunk  int64             `json:"c,omitempty"`
	Stream provision.Stream  `json:"s,omitempty"`
	At     time.Time         `json:"at,omitzero"`
	Text   string            `json:"d,omitempty"`
	End    bool              `json:"end,omitempty"`
	Update int64             `json:"n,omitempty"`
	Ack    bool              `json:"ack,omitempty"`
	Report *provision.Report `json:"report,omitempty"`
}

// The punctuation of a text record, shared by its encoder and its decoder.
const (
	beforeChunk  = `{"c":`
	beforeStream = `,"s":"`
	beforeAt     = `","at":"`
	beforeText   = `","d":"`
	afterText    = `"}`
	afterLast    = `","end":true}`
	afterClose   = `,"end":true}`
)

// appendText appends the record of a piece of text. By hand, because it is on
// the way of every byte that is logged.
func appendText(line []byte, chunk int64, stream provision.Stream, at time.Time, text []byte, end bool) []byte {
	line = append(line, beforeChunk...)
	line = strconv.AppendInt(line, chunk, 10)
	line = append(line, beforeStream...)
	line = append(line, stream...)
	line = append(line, beforeAt...)
	line = at.UTC().AppendFormat(line, time.RFC3339Nano)
	line = append(line, beforeText...)
	line = appendEscaped(line, text)
	if end {
		line = append(line, afterLast...)
	} else {
		line = append(line, afterText...)
	}
	return append(line, '\n')
}

// appendClose appends the record that ends a chunk.
func appendClose(line []byte, chunk int64) []byte {
	line = append(line, beforeChunk...)
	line = strconv.AppendInt(line, chunk, 10)
	line = append(line, afterClose...)
	return append(line, '\n')
}

// appendUpdate appends the record of an update.
func appendUpdate(line []byte, n int64, ack bool, at time.Time, report provision.Report) ([]byte, error) {
	encoded, err := json.Marshal(wire{Update: n, Ack: ack, At: at.UTC(), Report: &report})
	if err != nil {
		return line, err
	}
	line = append(line, withoutNUL(encoded)...)
	return append(line, '\n'), nil
}

const hex = "0123456789abcdef"

// appendEscaped appends valid UTF-8 as the inside of a JSON string.
func appendEscaped(line, text []byte) []byte {
	for {
		n := plainRun(text)
		line = append(line, text[:n]...)
		if n == len(text) {
			return line
		}
		switch b := text[n]; b {
		case '"', '\\':
			line = append(line, '\\', b)
		case '\n':
			line = append(line, '\\', 'n')
		case '\r':
			line = append(line, '\\', 'r')
		case '\t':
			line = append(line, '\\', 't')
		default:
			line = append(line, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		}
		text = text[n+1:]
	}
}

// plain reports whether a byte stands for itself in a JSON string.
func plain(b byte) bool { return b >= ' ' && b != '"' && b != '\\' }

// plainRun returns how many bytes at the start of p do. It looks at eight at a
// time: of a word, each byte less than ' ', and each that becomes 0 by XOR with
// what is looked for, borrows from its top bit.
func plainRun(p []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(p); i += 8 {
		word := binary.LittleEndian.Uint64(p[i:])
		quote, slash := word^ones*'"', word^ones*'\\'
		if ((word-ones*' ')&^word|(quote-ones)&^quote|(slash-ones)&^slash)&tops != 0 {
			break
		}
	}
	for i < len(p) && plain(p[i]) {
		i++
	}
	return i
}

// withoutNUL replaces each \u0000 in JSON, which the database's jsonb refuses,
// by \ufffd, in place.
func withoutNUL(encoded []byte) []byte {
	for i := 0; i+5 < len(encoded); i++ {
		if encoded[i] != '\\' {
			continue
		}
		if string(encoded[i+1:i+6]) == "u0000" {
			copy(encoded[i+2:], "fffd")
		}
		i++ // what follows a backslash is escaped: it starts nothing
	}
	return encoded
}

// valid reports whether the record is one a Writer would write, of which the
// queue can be told.
func (r *Record) valid() bool {
	switch {
	case r.Update != 0:
		return r.Update > 0 && r.Report != nil && r.Chunk == 0 && r.Stream == ""
	case r.Chunk <= 0 || r.Report != nil || r.Ack:
		return false
	case r.Stream == "":
		return r.End && len(r.Text) == 0
	default:
		return known(r.Stream) && !r.At.IsZero() && len(r.Text) > 0 && len(r.Text) <= provision.MaxChunk && redact.IsClean(r.Text)
	}
}

var errNoRecord = errors.New("not a record of a spool")

// decode reads one line, without its newline. The record's text is appended to
// buf, which is returned for the next call.
func decode(line, buf []byte) (Record, []byte, error) {
	if r, out, ok := decodeText(line, buf[:0]); ok {
		return r, out, nil
	}
	var w wire
	if err := json.Unmarshal(line, &w); err != nil {
		return Record{}, buf, fmt.Errorf("%w: %w", errNoRecord, err)
	}
	r := Record{Chunk: w.Chunk, Stream: w.Stream, At: w.At, End: w.End, Update: w.Update, Ack: w.Ack, Report: w.Report}
	buf = append(buf[:0], w.Text...)
	r.Text = buf
	if !r.valid() {
		return Record{}, buf, errNoRecord
	}
	return r, buf, nil
}

func known(s provision.Stream) bool {
	return s == provision.Stdout || s == provision.Stderr || s == provision.System
}

// decodeText reads a text record exactly as appendText writes it. Anything
// else is not ok, and left to encoding/json.
func decodeText(line, buf []byte) (Record, []byte, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(beforeChunk))
	if !ok {
		return Record{}, buf, false
	}
	number, rest, ok1 := bytes.Cut(rest, []byte(beforeStream))
	stream, rest, ok2 := bytes.Cut(rest, []byte(beforeAt))
	at, rest, ok3 := bytes.Cut(rest, []byte(beforeText))
	if !ok1 || !ok2 || !ok3 {
		return Record{}, buf, false
	}
	var r Record
	var err1, err2 error
	r.Chunk, err1 = strconv.ParseInt(string(number), 10, 64)
	err2 = r.At.UnmarshalText(at) // as strict as for encoding/json
	r.Stream = intern(stream)
	if rest, r.End = bytes.CutSuffix(rest, []byte(afterLast)); !r.End {
		rest, ok = bytes.CutSuffix(rest, []byte(afterText))
	}
	if !ok || r.Stream == "" || err1 != nil || err2 != nil || number[0] < '1' || number[0] > '9' {
		return Record{}, buf, false
	}
	buf, ok = unescape(rest, buf)
	r.Text = buf
	return r, buf, ok && r.valid()
}

// intern returns a stream's name without allocating it; "" if it is unknown.
func intern(name []byte) provision.Stream {
	for _, s := range [...]provision.Stream{provision.Stdout, provision.Stderr, provision.System} {
		if string(name) == string(s) {
			return s
		}
	}
	return ""
}

// unescape undoes appendEscaped. Escapes that appendEscaped does not write are
// not ok.
func unescape(in, out []byte) ([]byte, bool) {
	for {
		n := plainRun(in)
		out = append(out, in[:n]...)
		if in = in[n:]; len(in) == 0 {
			return out, true
		}
		if in[0] != '\\' || len(in) == 1 {
			return out, false
		}
		length := 2
		switch in[1] {
		case '"', '\\':
			out = append(out, in[1])
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			if length = 6; len(in) < length || in[2] != '0' || in[3] != '0' {
				return out, false
			}
			high, low := strings.IndexByte(hex, in[4]), strings.IndexByte(hex, in[5])
			if high < 0 || high > 1 || low < 0 {
				return out, false
			}
			out = append(out, byte(high<<4|low))
		default:
			return out, false
		}
		in = in[length:]
	}
}

// lineSlack is how far a chunk goes beyond provision.ChunkTarget to end with
// the line it is in, in bytes.
const lineSlack = 2 << 10

// cut returns how much of text goes into a chunk that holds size bytes, and
// whether the chunk is full then. It cuts at the end of the line that reaches
// the target where that is near, else at the end of the rune. A full chunk is
// smaller than ChunkTarget + lineSlack + utf8.UTFMax, far below MaxChunk.
func cut(text []byte, size int) (n int, full bool) {
	room := provision.ChunkTarget - size
	if len(text) < room {
		return len(text), false
	}
	near := text[:min(len(text), room+lineSlack)]
	if i := bytes.IndexByte(near[room-1:], '\n'); i >= 0 {
		return room + i, true
	}
	n = room
	for n < len(text) && !utf8.RuneStart(text[n]) {
		n++
	}
	return n, true
}

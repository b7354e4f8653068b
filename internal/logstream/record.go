package logstream

import (
	"encoding/binary"
	"encoding/json"
	"strconv"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
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

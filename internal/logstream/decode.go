package logstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
)

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
		return known(r.Stream) && !r.At.IsZero() && len(r.Text) > 0 && len(r.Text) <= provision.MaxChunk && isClean(r.Text)
	}
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

package protocol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tendril-run/tendril/provisioner"
)

// lineReader takes a program's output apart, within the limits.
type lineReader struct {
	from  *bufio.Reader
	count int
	bytes int64
}

func newLineReader(from io.Reader) *lineReader {
	return &lineReader{from: bufio.NewReaderSize(from, 32<<10)}
}

// next returns a line without its end. A carriage return before that is part of the end.
// The error is a [ViolationError] with no request and line, or the reader's.
func (r *lineReader) next() ([]byte, error) {
	var text []byte
	for {
		part, err := r.from.ReadSlice('\n')
		if r.bytes += int64(len(part)); r.bytes > provisioner.MaxConversation {
			return nil, &ViolationError{Kind: TooMuch, Problem: fmt.Sprintf("stdout has more than %d MiB in all", provisioner.MaxConversation>>20), Action: "send fewer messages, and write logs to stderr"}
		}
		if len(text)+len(part) > provisioner.MaxLine {
			return nil, &ViolationError{Kind: LineTooLong, Problem: fmt.Sprintf("the line has more than %d MiB", provisioner.MaxLine>>20), Action: "end each message with a line end, and send large values in parts"}
		}
		text = append(text, part...) // ReadSlice keeps its own
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			if len(text) > 0 && errors.Is(err, io.EOF) {
				return nil, &ViolationError{Kind: HalfLine, Problem: "stdout ended in the middle of a line", Action: "end each message with a line end, and flush stdout before you exit"}
			}
			return nil, err
		}
		if r.count++; r.count > provisioner.MaxMessages {
			return nil, &ViolationError{Kind: TooManyMessages, Problem: fmt.Sprintf("stdout has more than %d messages", provisioner.MaxMessages), Action: "send step and log less often"}
		}
		return bytes.TrimSuffix(text[:len(text)-1], []byte("\r")), nil
	}
}

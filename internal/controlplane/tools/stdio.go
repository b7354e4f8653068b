package tools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// MostMessage is how many bytes one message of a client may have.
const MostMessage = 1 << 20

// Serve answers one client over a pair of streams, a message a line, until the input ends
// or the context does. It closes the input then, if that can be closed, to have its reader
// end.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.alive, cancel)()
	answers := &lineWriter{to: out}
	reader, filtered := io.Pipe()
	filter := &lineFilter{from: in, to: filtered, answers: answers}
	var filtering sync.WaitGroup
	filtering.Go(filter.run)
	defer func() {
		_ = reader.Close()
		if closer, ok := in.(io.Closer); ok {
			_ = closer.Close()
			filtering.Wait()
		}
	}()
	err := s.mcp.Run(ctx, &mcp.IOTransport{Reader: reader, Writer: answers, MaxLineLength: 2 * MostMessage})
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) {
		return nil
	}
	return err
}

// lineWriter writes whole messages, from several goroutines.
type lineWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lineWriter) Write(message []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(message)
}

// Close leaves the stream to whoever opened it.
func (w *lineWriter) Close() error { return nil }

// lineFilter passes on messages that are JSON and not too long, and answers the others:
// one of those would end the session.
type lineFilter struct {
	from    io.Reader
	to      *io.PipeWriter
	answers *lineWriter
}

func (f *lineFilter) run() {
	reader := bufio.NewReaderSize(f.from, 64<<10)
	for {
		line, long, err := readLine(reader)
		line = bytes.TrimSpace(line)
		switch {
		case long:
			f.refuse(-32600, fmt.Sprintf("the message has more than %d bytes, which is the most: send less at once", MostMessage))
		case len(line) == 0:
		case !json.Valid(line):
			f.refuse(-32700, "the message is not JSON: send one JSON-RPC message a line")
		default:
			if _, wrong := f.to.Write(append(line, '\n')); wrong != nil {
				return // nobody reads any more
			}
		}
		if err != nil {
			_ = f.to.CloseWithError(err) // io.EOF at the end
			return
		}
	}
}

// refuse answers a message that could not be read, so without its id.
func (f *lineFilter) refuse(code int, message string) {
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": message}})
	if err != nil {
		return
	}
	_, _ = f.answers.Write(append(answer, '\n')) // a client that is gone ends the session anyway
}

// readLine reads a line; long is true when it had more bytes than a message may have, and
// was skipped.
func readLine(r *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !long {
			line = append(line, part...)
		}
		if len(line) > MostMessage {
			line, long = nil, true
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

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
	answers := newLineWriter(out)
	reader, filtered := io.Pipe()
	filter := &lineFilter{from: in, to: filtered, answers: answers, over: ctx.Done()}
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

// lineWriter writes whole messages, from several goroutines, and knows which requests are
// not answered yet.
type lineWriter struct {
	mu     sync.Mutex
	to     io.Writer
	open   map[string]bool // the ids of those requests
	closed bool            // no more come
	idle   chan struct{}   // closed once no more come and all are answered
}

func newLineWriter(to io.Writer) *lineWriter {
	return &lineWriter{to: to, open: map[string]bool{}, idle: make(chan struct{})}
}

// envelope is what tells messages apart.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// passed notes a message of the client.
func (w *lineWriter) passed(message []byte) {
	var e envelope
	_ = json.Unmarshal(message, &e) // params of another form are of no request that is cancelled
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Method == "notifications/cancelled":
		delete(w.open, string(e.Params.RequestID))
	case e.Method != "" && len(e.ID) > 0:
		w.open[string(e.ID)] = true
	}
}

// noMore says that the client has sent its last message. The channel is closed once all of
// them are answered.
func (w *lineWriter) noMore() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.settle()
	return w.idle
}

// settle closes idle when it is time. w.mu must be held.
func (w *lineWriter) settle() {
	if w.closed && len(w.open) == 0 {
		select {
		case <-w.idle:
		default:
			close(w.idle)
		}
	}
}

// Write writes one message.
func (w *lineWriter) Write(message []byte) (int, error) {
	var e envelope
	_ = json.Unmarshal(message, &e) // what is no object answers nothing
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.to.Write(message)
	if e.Method == "" && len(e.ID) > 0 {
		delete(w.open, string(e.ID))
		w.settle()
	}
	return n, err
}

// Close does nothing: the caller opened the stream and closes it.
func (w *lineWriter) Close() error { return nil }

// lineFilter passes on messages that are JSON and not too long, and answers the others:
// one of those would end the session.
type lineFilter struct {
	from    io.Reader
	to      *io.PipeWriter
	answers *lineWriter
	over    <-chan struct{} // nobody waits for answers any more
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
			f.answers.passed(line)
			if _, wrong := f.to.Write(append(line, '\n')); wrong != nil {
				return // nobody reads any more
			}
		}
		if err != nil {
			// The end of the input ends the session, and with it what is not answered.
			select {
			case <-f.answers.noMore():
			case <-f.over:
			}
			_ = f.to.CloseWithError(err)
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

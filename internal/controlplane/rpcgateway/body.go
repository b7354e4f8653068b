package rpcgateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// readBody reads a request's body. Bodies are held in memory: done gives up
// what this one was counted for.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) (body []byte, done func(), no *refusal) {
	counted := &countedReader{from: http.MaxBytesReader(w, r.Body, g.options.MaxBody), budget: g.bodies}
	done = counted.giveUp
	if r.ContentLength > g.options.MaxBody {
		return nil, done, tooLarge(g.options.MaxBody)
	}
	var read bytes.Buffer
	_, err := read.ReadFrom(counted)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return nil, done, tooLarge(g.options.MaxBody)
	case errors.Is(err, errBudget):
		return nil, done, sqlRefusal("PT503", "too many bytes under way at once", "busy", "try again")
	case err != nil:
		// It came too slowly, or not all of it: usually nobody is left to tell.
		return nil, done, &refusal{status: http.StatusRequestTimeout, body: postgrest.NewError("PT408", "the request did not arrive", "body_incomplete", "try again")}
	}
	return read.Bytes(), done, nil
}

func tooLarge(limit int64) *refusal {
	return &refusal{status: http.StatusRequestEntityTooLarge, header: map[string]string{"Connection": "close"},
		body: postgrest.NewError("PT413", fmt.Sprintf("the request has more than the %d bytes allowed", limit), postgrest.BodyTooLarge,
			"have trellis serve take larger ones: --max-body")}
}

var errBudget = errors.New("the budget for bodies is used up")

// countedReader counts what it reads against a budget, as it comes: who only
// announces a large body holds nothing.
type countedReader struct {
	from   io.Reader
	budget *semaphore.Weighted
	held   int64
}

// Read implements io.Reader.
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if n > 0 {
		if !c.budget.TryAcquire(int64(n)) {
			return 0, errBudget
		}
		c.held += int64(n)
	}
	return n, err
}

func (c *countedReader) giveUp() { c.budget.Release(c.held) }

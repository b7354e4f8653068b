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
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, share *share) (body []byte, done func(), no *refusal) {
	counted := &countedReader{from: http.MaxBytesReader(w, r.Body, g.options.MaxBody), budgets: [2]*semaphore.Weighted{share.bytes, g.bodies}}
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

// countedReader counts what it reads against budgets, as it comes: who only
// announces a large body holds nothing.
type countedReader struct {
	from    io.Reader
	budgets [2]*semaphore.Weighted // its address's, and that of all
	held    int64
}

// Read implements io.Reader.
func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if n > 0 {
		if !c.budgets[0].TryAcquire(int64(n)) {
			return 0, errBudget
		}
		if !c.budgets[1].TryAcquire(int64(n)) {
			c.budgets[0].Release(int64(n))
			return 0, errBudget
		}
		c.held += int64(n)
	}
	return n, err
}

func (c *countedReader) giveUp() {
	for _, budget := range c.budgets {
		budget.Release(c.held)
	}
}

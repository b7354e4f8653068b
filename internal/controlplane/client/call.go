package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// mostAnswer bounds a JSON answer: a page of 100 pieces of a log, 64 KiB
	// each and escaped, is the largest.
	mostAnswer = 64 << 20
	// attempts is how often a call is made when its answer is lost, or the
	// server says that it is busy.
	attempts  = 4
	mostRetry = 10 * time.Second // the longest Retry-After that is waited for
)

// call is one request.
type call struct {
	doing  string // for errors
	method string
	path   []string // its segments below /api/v1, not escaped
	query  url.Values
	body   any    // sent as JSON; nil for none
	raw    []byte // sent as it is
	accept string // application/json when empty
	limit  time.Duration
}

// repeatable reports whether a call may be made again when nobody knows what
// became of it: a POST has a key by which the server knows a repeat.
func (c call) repeatable() bool { return c.method != http.MethodDelete }

// ask makes a call and decodes its answer; T is struct{} where there is none.
func ask[T any](ctx context.Context, c *Client, call call) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(call.limit, callLimit))
	defer cancel()
	response, err := c.send(ctx, call)
	if err != nil {
		return answer, err
	}
	defer func() { _ = response.Body.Close() }()
	switch into := any(&answer).(type) {
	case *struct{}:
		return answer, nil
	case *[]byte:
		if *into, err = bounded(response.Body, mostBytes); err != nil {
			return answer, c.away(ctx, call.doing, err)
		}
		return answer, nil
	}
	data, err := bounded(response.Body, mostAnswer)
	if err != nil {
		return answer, c.away(ctx, call.doing, err)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return answer, &store.UnreachableError{Doing: call.doing, Err: fmt.Errorf("%s answers something else than a Tendril server would (%s)", c.base.Host, response.Header.Get("Content-Type"))}
	}
	return answer, nil
}

// bounded reads all of a body that may have so many bytes.
func bounded(body io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(body, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("the answer has more than %d MiB", most>>20)
	}
	return data, err
}

// send makes a call, again where that may help, and returns an answer of the
// 200s. Its error is a *store.RefusedError or a *store.UnreachableError, or the
// context's own.
func (c *Client) send(ctx context.Context, call call) (*http.Response, error) {
	body := call.raw
	if call.body != nil {
		var err error
		if body, err = json.Marshal(call.body); err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
	}
	key := uuid.NewString()
	for attempt := 1; ; attempt++ {
		response, err := c.once(ctx, call, body, key)
		if err == nil && response.StatusCode/100 == 2 {
			return response, nil
		}
		wait := c.timing.retry << (2 * (attempt - 1))
		if err == nil {
			if after, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && after > 0 {
				wait = min(time.Duration(after)*time.Second, mostRetry)
			}
			err = c.refusal(call.doing, response)
			_ = response.Body.Close()
			if !passing(response.StatusCode) || attempt == attempts || !call.repeatable() {
				return nil, err
			}
		} else if refused, ok := errors.AsType[*store.RefusedError](err); ok {
			return nil, refused
		} else {
			_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
			// What is refused at once is refused again.
			once := untrusted || errors.Is(err, syscall.ECONNREFUSED)
			if err = c.away(ctx, call.doing, err); once || ctx.Err() != nil || attempt == attempts || !call.repeatable() {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, c.away(ctx, call.doing, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// passing reports whether a status is of something that passes.
func passing(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// once makes a call once.
func (c *Client) once(ctx context.Context, call call, body []byte, key string) (*http.Response, error) {
	u := c.base.JoinPath("api", "v1")
	for _, segment := range call.path {
		if strings.Trim(segment, ".") == "" { // a path could not have it
			return nil, &store.RefusedError{Code: code(http.StatusNotFound), Reason: "not_found", Message: fmt.Sprintf("nothing is named %q", segment)}
		}
		u = u.JoinPath(url.PathEscape(segment)) // a workspace's name has slashes
	}
	u.RawQuery = call.query.Encode()
	request, err := http.NewRequestWithContext(ctx, call.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	h := request.Header
	h.Set("Accept", cmp.Or(call.accept, "application/json"))
	h.Set("User-Agent", "trellis/"+cmp.Or(c.options.Version, "dev"))
	if c.options.Token != "" {
		h.Set("Authorization", "Bearer "+c.options.Token)
	}
	switch {
	case call.raw != nil:
		h.Set("Content-Type", "application/octet-stream")
	case call.body != nil:
		h.Set("Content-Type", "application/json")
	}
	if call.method == http.MethodPost {
		h.Set("Idempotency-Key", key)
	}
	return c.http.Do(request)
}

// list asks for the pages of a list until it has most of its items.
func list[T any](ctx context.Context, c *Client, call call, most int) ([]T, error) {
	type page struct {
		Items []T    `json:"items"`
		Next  string `json:"next_cursor"`
	}
	query := url.Values{}
	for name, values := range call.query {
		query[name] = values
	}
	call.query = query
	found := []T{}
	for {
		query.Set("limit", strconv.Itoa(min(mostPage, most-len(found))))
		next, err := ask[page](ctx, c, call)
		if err != nil {
			return nil, err
		}
		found = append(found, next.Items...)
		// A page of a filtered list may be empty before the end.
		if next.Next == "" || next.Next == query.Get("cursor") || len(found) >= most {
			return found, nil
		}
		query.Set("cursor", next.Next)
	}
}

// whole asks for a list that comes in one page.
func whole[T any](ctx context.Context, c *Client, doing string, query url.Values, path ...string) ([]T, error) {
	answer, err := ask[struct {
		Items []T `json:"items"`
	}](ctx, c, call{doing: doing, method: http.MethodGet, path: path, query: query})
	if answer.Items == nil {
		answer.Items = []T{} // as JSON, a list
	}
	return answer.Items, err
}

const (
	mostPage  = 200    // items of one page, as the server has it
	mostItems = 10_000 // of a list that is wanted whole
)

// inOrg is the query of what is made in an organisation.
func (c *Client) inOrg() url.Values {
	if c.options.Org == "" {
		return nil
	}
	return url.Values{"org": {c.options.Org}}
}

func get[T any](ctx context.Context, c *Client, doing string, path ...string) (T, error) {
	return ask[T](ctx, c, call{doing: doing, method: http.MethodGet, path: path})
}

func post[T any](ctx context.Context, c *Client, doing string, body any, path ...string) (T, error) {
	return ask[T](ctx, c, call{doing: doing, method: http.MethodPost, path: path, body: body})
}

func (c *Client) remove(ctx context.Context, doing string, query url.Values, path ...string) error {
	_, err := ask[struct{}](ctx, c, call{doing: doing, method: http.MethodDelete, path: path, query: query})
	return err
}

package redfish

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// client is a user of a service.
type client struct {
	t              *testing.T
	s              *Server
	user, password string
	token          string // in place of a user
	match          string // the tag that a change is for
}

// answer is what a service answers.
type answer struct {
	status int
	header http.Header
	body   map[string]any // of JSON
}

func (c client) send(method, path string, body any) answer {
	c.t.Helper()
	text := []byte(nil)
	switch body := body.(type) {
	case nil:
	case string:
		text = []byte(body)
	default:
		var err error
		if text, err = json.Marshal(body); err != nil {
			c.t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(c.t.Context(), method, c.s.URL()+path, bytes.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		request.Header.Set("X-Auth-Token", c.token)
	} else if c.user != "" {
		request.SetBasicAuth(c.user, c.password)
	}
	if c.match != "" {
		request.Header.Set("If-Match", c.match)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	got := answer{status: response.StatusCode, header: response.Header}
	if len(said) > 0 && got.header.Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(said, &got.body); err != nil {
			c.t.Fatalf("%s %s answers no JSON: %v: %q", method, path, err, said)
		}
	}
	return got
}

// do expects a status.
func (c client) do(method, path string, body any, want int) map[string]any {
	c.t.Helper()
	got := c.send(method, path, body)
	if got.status != want {
		c.t.Fatalf("%s %s = %d, want %d: %v", method, path, got.status, want, got.body)
	}
	return got.body
}

func (c client) get(path string) map[string]any {
	c.t.Helper()
	return c.do(http.MethodGet, path, nil, http.StatusOK)
}

// at is a value deep in an answer.
func at(in map[string]any, path ...string) any {
	for _, each := range path[:len(path)-1] {
		in, _ = in[each].(map[string]any)
	}
	return in[path[len(path)-1]]
}

func text(in map[string]any, path ...string) string {
	found, _ := at(in, path...).(string)
	return found
}

func number(in map[string]any, path ...string) int {
	found, _ := at(in, path...).(float64)
	return int(found)
}

func list(in map[string]any, path ...string) (all []map[string]any) {
	found, _ := at(in, path...).([]any)
	for _, each := range found {
		item, _ := each.(map[string]any)
		all = append(all, item)
	}
	return all
}

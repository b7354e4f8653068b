// Package recorded holds both sides of the wire to what PostgREST does. It
// cannot be run here, so what it answers is written down from its
// documentation and the specifications that its own tests are.
//
//	documented.json  exchanges that PostgREST's documentation and specifications
//	                 give, on functions of documented.sql
//	agent.json       what an agent says and hears, in the order of one story that
//	                 begins in the database of world.sql
//	failures.json    answers of PostgREST and of what stands before it on
//	                 Supabase when a call does not get as far as the function
//
// A source that begins with "by:" is no quotation: it follows from the rule named.
// Where documents name another schema, it is "public" here, and paths begin as
// on Supabase.
//
// It is read by tests only, and must know neither of the sides.
package recorded

import (
	"embed"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
)

//go:embed *.json *.sql
var files embed.FS

// Exchange is one request and its answer.
type Exchange struct {
	Name   string `json:"name"`
	Source string `json:"source"` // where PostgREST's documents say so
	// Call names the method of queue.Queue whose exchange this is; "" for none.
	Call     string   `json:"call"`
	Request  Request  `json:"request"`
	Response Response `json:"response"`
}

// Request is what a client sends.
type Request struct {
	Method string            `json:"method"` // "": POST
	Path   string            `json:"path"`
	Header map[string]string `json:"header"` // besides Content-Type: application/json
	Body   json.RawMessage   `json:"body"`
	Text   string            `json:"text"` // the body, where it is no JSON
}

// Response is what it gets.
type Response struct {
	Status int               `json:"status"`
	Header map[string]string `json:"header"` // "" for one that must not be there
	Body   json.RawMessage   `json:"body"`   // nil: empty
	Text   string            `json:"text"`   // the body, where it is no JSON
}

// Payload is the request's body as it is sent.
func (r Request) Payload() []byte { return payload(r.Body, r.Text) }

// Payload is the response's body as it is sent.
func (r Response) Payload() []byte { return payload(r.Body, r.Text) }

func payload(body json.RawMessage, text string) []byte {
	if text != "" {
		return []byte(text)
	}
	return body
}

// Documented returns the exchanges of documented.json, and the SQL that makes
// their functions.
func Documented(t testing.TB) (exchanges []Exchange, functions string) {
	t.Helper()
	return read(t, "documented.json"), text(t, "documented.sql")
}

// Agent returns the exchanges of agent.json, and the SQL that makes the world
// they begin in out of an empty, migrated database.
func Agent(t testing.TB) (exchanges []Exchange, world string) {
	t.Helper()
	return read(t, "agent.json"), text(t, "world.sql")
}

// Failures returns the answers of failures.json.
func Failures(t testing.TB) []Exchange {
	t.Helper()
	return read(t, "failures.json")
}

func text(t testing.TB, file string) string {
	t.Helper()
	content, err := files.ReadFile(file)
	if err != nil {
		t.Fatalf("recorded: %v", err)
	}
	return string(content)
}

func read(t testing.TB, file string) []Exchange {
	t.Helper()
	var exchanges []Exchange
	if err := json.Unmarshal([]byte(text(t, file)), &exchanges); err != nil {
		t.Fatalf("recorded: %s: %v", file, err)
	}
	return exchanges
}

// Same says how two JSON texts differ in what they mean, nil if they do not.
// An object may have fields that want has not: later versions add some.
func Same(got, want []byte) error {
	var g, w any
	if err := json.Unmarshal(want, &w); err != nil {
		return fmt.Errorf("want %s: %w", want, err)
	}
	if err := json.Unmarshal(got, &g); err != nil {
		return fmt.Errorf("got %q, want %s", got, want)
	}
	if !covers(g, w) {
		return fmt.Errorf("got %s, want %s", got, want)
	}
	return nil
}

func covers(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for name, value := range want {
			if field, there := fields[name]; !there || !covers(field, value) {
				return false
			}
		}
		return true
	case []any:
		elements, ok := got.([]any)
		if !ok || len(elements) != len(want) {
			return false
		}
		for i := range want {
			if !covers(elements[i], want[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(got, want)
	}
}

package provisioner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// toProgram and fromProgram have an empty message of each type.
var (
	toProgram = []func() Message{
		func() Message { return &Describe{} }, func() Message { return &Plan{} }, func() Message { return &Apply{} },
		func() Message { return &Destroy{} }, func() Message { return &Refresh{} }, func() Message { return &Power{} },
		func() Message { return &Rebuild{} }, func() Message { return &Health{} }, func() Message { return &Cancel{} },
		func() Message { return &Detach{} }, func() Message { return &Ack{} },
	}
	fromProgram = []func() Message{
		func() Message { return &Log{} }, func() Message { return &Step{} }, func() Message { return &Change{} },
		func() Message { return &Intent{} }, func() Message { return &Machine{} }, func() Message { return &Output{} },
		func() Message { return &State{} }, func() Message { return &Result{} },
	}
)

// ToProgram returns an empty message of each type that a program reads.
func ToProgram() []Message { return empty(toProgram) }

// FromProgram returns an empty message of each type that a program writes.
func FromProgram() []Message { return empty(fromProgram) }

func empty(makers []func() Message) (all []Message) {
	for _, make := range makers {
		all = append(all, make())
	}
	return all
}

// UnknownTypeError is the error of a line whose type is not part of the protocol.
type UnknownTypeError struct{ Type string }

func (e *UnknownTypeError) Error() string {
	if e.Type == "" {
		return `the line has no field "type"`
	}
	return fmt.Sprintf("the message type %.64q is not part of %s", e.Type, Protocol)
}

// Encode returns a message as a line, with its end.
func Encode(m Message) ([]byte, error) {
	m = complete(m)
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(m); err != nil {
		return nil, fmt.Errorf("write the message %s as JSON: %w", m.Type(), err)
	}
	fields := line.Bytes()[1:] // after the brace
	separator := `",`
	if fields[0] == '}' {
		separator = `"`
	}
	return append([]byte(`{"type":"`+m.Type()+separator), fields...), nil
}

// complete returns a message in which programs find a list or an object where there is
// nothing.
func complete(m Message) Message {
	switch m := m.(type) {
	case *Plan:
		return &Plan{m.complete()}
	case *Apply:
		return &Apply{m.complete(), m.Plan, orEmpty(m.Changes), m.Resume}
	case *Destroy:
		return &Destroy{m.complete(), m.Plan, orEmpty(m.Changes), m.Resume}
	case *Refresh:
		return &Refresh{m.complete()}
	case *Power:
		return &Power{m.complete(), m.Machine, m.Action}
	case *Rebuild:
		return &Rebuild{m.complete(), m.Machine, m.Resume}
	case *Health:
		return &Health{m.complete(), m.Machine}
	}
	return m
}

func (w Work) complete() Work {
	if w.Variables == nil {
		w.Variables = map[string]json.RawMessage{}
	}
	w.Machines = orEmpty(w.Machines)
	return w
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// DecodeRequest reads a line that a program was sent. The error is an [UnknownTypeError] for a
// type that this version doesn't have.
func DecodeRequest(line []byte) (Message, error) { return decode(line, toProgram) }

// DecodeMessage reads a line that a program wrote. The error is an [UnknownTypeError] for a type
// that this version doesn't have. It quotes nothing of the line, which may have secrets.
func DecodeMessage(line []byte) (Message, error) { return decode(line, fromProgram) }

func decode(line []byte, makers []func() Message) (Message, error) {
	var header struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &header); err != nil {
		return nil, plain(err)
	}
	at := slices.IndexFunc(makers, func(make func() Message) bool { return make().Type() == header.Type })
	if at < 0 {
		return nil, &UnknownTypeError{header.Type}
	}
	m := makers[at]()
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("the message %s: %w", header.Type, plain(err))
	}
	return m, nil
}

// plain says without words of Go what is wrong with a document.
func plain(err error) error {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	where := "the line"
	if kind.Field != "" {
		where = fmt.Sprintf("the field %q", strings.TrimPrefix(kind.Field, "Work.")) // which is no field on the wire
	}
	want := "object"
	switch kind.Type.Kind().String() {
	case "string":
		want = "string"
	case "bool":
		want = "boolean"
	case "int":
		want = "whole number"
	case "float64":
		want = "number"
	case "slice":
		want = "list"
	}
	got, _, _ := bytes.Cut([]byte(kind.Value), []byte(" "))
	return fmt.Errorf("%s is of the type %s, want %s", where, got, want)
}

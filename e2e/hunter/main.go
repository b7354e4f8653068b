// Command hunter is what a hostile template runs in a test: it looks for values
// that are none of its business and tries to write, signal and trace what is
// not its own. It says what it got, and tries everything in vain or not.
//
// It is told what to look for in a form that is not the value itself, so that
// it does not find its own question.
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Order is what the hunter is told, Haul what it comes back with.
type (
	Order struct {
		Values map[string]string `json:"values"` // name → hidden value
		Trees  []string          `json:"trees"`  // whose files are read
		Write  []string          `json:"write"`  // directories that are tried to write to
		Signal []int             `json:"signal"` // processes that are tried to reach
	}
	Haul struct {
		// Found has "NAME in WHERE".
		Found []string `json:"found"`
		// Did has what should not have worked.
		Did []string `json:"did"`
		// Looked counts what was read, by kind, to show that it was looked.
		Looked map[string]int `json:"looked"`
	}
)

type hunter struct {
	values map[string][]byte
	haul   Haul
	seen   map[string]bool
}

// Hidden turns a value into a form that does not hold it, and back.
func Hidden(value []byte) []byte {
	out := make([]byte, len(value))
	for i, b := range value {
		out[i] = ^b
	}
	return out
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "hunter:", err)
		os.Exit(1)
	}
}

func run(order, haul string) error {
	text, err := os.ReadFile(order) //nolint:gosec // the test says which
	if err != nil {
		return err
	}
	var o Order
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	h := &hunter{values: map[string][]byte{}, seen: map[string]bool{}, haul: Haul{Looked: map[string]int{}}}
	for name, hidden := range o.Values {
		value, err := base64.StdEncoding.DecodeString(hidden)
		if err != nil {
			return err
		}
		h.values[name] = Hidden(value)
	}
	h.look("env", "its own environment", []byte(strings.Join(os.Environ(), "\n")))
	h.processes()
	for _, pid := range o.Signal {
		h.reach(pid)
	}
	for _, dir := range o.Write {
		h.write(dir)
	}
	h.descriptors()
	for _, tree := range o.Trees {
		h.files(tree)
	}
	text, err = json.Marshal(h.haul)
	if err != nil {
		return err
	}
	return os.WriteFile(haul, text, 0o600) //nolint:gosec // the test says which
}

// look searches what was read.
func (h *hunter) look(kind, where string, content []byte) {
	h.haul.Looked[kind]++
	for name, value := range h.values {
		if !bytes.Contains(content, value) {
			continue
		}
		if hit := name + " in " + kind + " " + where; !h.seen[hit] {
			h.seen[hit] = true
			h.haul.Found = append(h.haul.Found, hit)
		}
	}
}

func (h *hunter) did(format string, args ...any) {
	h.haul.Did = append(h.haul.Did, fmt.Sprintf(format, args...))
}

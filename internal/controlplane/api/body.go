package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/danielgtaylor/huma/v2"
)

// A field is known by its name to the letter. Without this a second one that is
// written otherwise ("Operation") would be looked at by nobody, and count.
func init() { huma.ValidateStrictCasing = true }

// formats are how bodies are read and answers written: JSON.
func formats() map[string]huma.Format {
	f := huma.DefaultJSONFormat
	f.Unmarshal = readJSON
	return map[string]huma.Format{"application/json": f, "json": f}
}

// readJSON reads a body. Its errors say where in the body, and never what stands
// there: that may be a secret.
func readJSON(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if broken, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("%s: %w", at(data, broken.Offset), broken)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s: a number that is too large, or a value of another type than is needed", at(data, wrong.Offset))
	}
	return err
}

// at is the place of the last of so many bytes, as editors count.
func at(data []byte, read int64) string {
	before := data[:min(max(0, read-1), int64(len(data)))]
	return fmt.Sprintf("line %d, column %d", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
}

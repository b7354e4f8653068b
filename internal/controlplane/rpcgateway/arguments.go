package rpcgateway

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// maxNesting is how deep JSON may be. The database recurses into it on a stack
// that ends, which would be its error and not the client's.
const maxNesting = 512

// arguments are the fields of a request's body, not yet read further. What is
// JSON but no object has none: PostgREST has it so. The last of several of one
// name counts, as in the database.
func parseArguments(body []byte) (map[string]json.RawMessage, *refusal) {
	if len(body) == 0 {
		return nil, nil
	}
	if !utf8.Valid(body) || tooDeep(body) || !json.Valid(body) {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	if body := bytes.TrimLeft(body, " \t\r\n"); body[0] != '{' {
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	return fields, nil
}

// tooDeep looks at brackets only; whether they match is not asked here.
func tooDeep(body []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// names are those of the arguments, in order.
func names(fields map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(fields)) }

// value is a JSON value as the text that an argument's type is read from, nil
// for NULL: what json_to_record makes of it.
func (a argument) value(raw json.RawMessage) ([]byte, *refusal) {
	switch {
	case bytes.Equal(raw, []byte("null")):
		return nil, nil
	case a.json:
		return raw, nil
	case a.array && raw[0] == '[':
		return a.arrayLiteral(raw)
	case a.array && raw[0] != '"':
		return nil, sqlRefusal("22P02", "expected JSON array", "", `See the value of key "`+a.name+`".`)
	}
	text, no := scalar(raw)
	if a.array && no == nil && (bytes.Count(text, []byte("{")) > 1 || bytes.HasPrefix(text, []byte("["))) {
		// No function takes more than a list, and too many dimensions are the
		// database's error.
		return nil, sqlRefusal("22P02", "malformed array literal", "", `See the value of key "`+a.name+`".`)
	}
	return text, no
}

// scalar is a string's text, and of anything else the JSON.
func scalar(raw json.RawMessage) ([]byte, *refusal) {
	if raw[0] != '"' {
		return raw, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	if strings.ContainsRune(text, 0) {
		return nil, sqlRefusal("22P05", "unsupported Unicode escape sequence", `\u0000 cannot be converted to text.`, "")
	}
	return []byte(text), nil
}

// arrayLiteral writes a JSON array as PostgreSQL reads it, each element quoted.
func (a argument) arrayLiteral(raw json.RawMessage) ([]byte, *refusal) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	var literal bytes.Buffer
	literal.WriteByte('{')
	for i, element := range elements {
		if i > 0 {
			literal.WriteByte(',')
		}
		if bytes.Equal(element, []byte("null")) {
			literal.WriteString("NULL")
			continue
		}
		text, no := scalar(element)
		if no != nil {
			return nil, no
		}
		literal.WriteByte('"')
		for _, c := range text {
			if c == '"' || c == '\\' {
				literal.WriteByte('\\')
			}
			literal.WriteByte(c)
		}
		literal.WriteByte('"')
	}
	literal.WriteByte('}')
	return literal.Bytes(), nil
}

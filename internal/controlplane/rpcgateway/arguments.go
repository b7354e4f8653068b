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

const (
	// maxNesting is how deep JSON may be. The database recurses into it on a
	// stack that ends, which would be its error and not the client's.
	maxNesting = 512
	// maxListed is how many arguments, and elements of lists among them, there
	// may be: each is taken apart here, for which nobody has shown a token yet.
	maxListed = 10_000
	// maxValues is how many values there may be at all: they take the database
	// many times their size. A mebibyte of JSON, the most that a report may
	// have, holds no more.
	maxValues = 1 << 19
)

// arguments are the fields of a request's body, not yet read further. What is
// JSON but no object has none: PostgREST has it so. It takes the first object
// of an array and ignores the others; here an array is refused unless it is empty. The
// last of several values of one name counts, as in the database.
func parseArguments(body []byte) (map[string]json.RawMessage, *refusal) {
	if len(body) == 0 {
		return nil, nil
	}
	if no := checkShape(body); no != nil {
		return nil, no
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	const space = " \t\r\n"
	switch body := bytes.TrimLeft(body, space); {
	case body[0] == '[' && bytes.TrimLeft(body[1:], space)[0] != ']':
		return nil, badRequest(postgrest.CodeBadBody, "The body is an array: arguments are the fields of one object")
	case body[0] != '{':
		return nil, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, badRequest(postgrest.CodeBadBody, "Empty or invalid json")
	}
	return fields, nil
}

// checkShape counts brackets and commas; whether they match is not asked here.
func checkShape(body []byte) *refusal {
	depth, listed, values, quoted := 0, 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return badRequest(postgrest.CodeBadBody, "Empty or invalid json")
			}
		case c == '}' || c == ']':
			depth--
		case c == ',':
			if values++; depth <= 2 {
				listed++
			}
			if listed > maxListed || values > maxValues {
				return sqlRefusal("PT413", "the request has too many values", "too_many_values", "")
			}
		}
	}
	return nil
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

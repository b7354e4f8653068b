package tfvars

import (
	"bytes"
	"encoding/json"
	"strings"
)

// What a database stores of a default: its parser gives up at some depth, and
// its numbers end somewhere.
const (
	maxStoredDepth  = 100
	maxStoredNumber = 300 // digits
	maxStoredText   = 4000
)

// Fit makes of declared variables what can be stored and shown, in about limit
// bytes of JSON: it leaves out defaults that are too much, then descriptions,
// then variables. A variable without its default is no more required than
// before.
func Fit(list []Variable, limit int) []Variable {
	fitting := make([]Variable, 0, len(list))
	for _, v := range list {
		if !storable(v.Default) {
			v.Default = nil
		}
		v.Description = clip(v.Description)
		v.Type = clip(v.Type)
		fitting = append(fitting, v)
	}
	for _, leaveOut := range []func(*Variable){
		func(v *Variable) {
			if len(v.Default) > 1000 {
				v.Default = nil
			}
		},
		func(v *Variable) { v.Default = nil },
		func(v *Variable) { v.Description = "" },
	} {
		if size(fitting) <= limit {
			return fitting
		}
		for i := range fitting {
			leaveOut(&fitting[i])
		}
	}
	for len(fitting) > 0 && size(fitting) > limit {
		fitting = fitting[:len(fitting)*3/4]
	}
	return fitting
}

func clip(text string) string {
	if len(text) > maxStoredText {
		text = strings.ToValidUTF8(text[:maxStoredText], "") + "…"
	}
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

// storable reports whether a database takes a default.
func storable(value json.RawMessage) bool {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return true // its end
		}
		switch token := token.(type) {
		case json.Delim:
			if depth++; token == '}' || token == ']' {
				depth -= 2
			}
		case json.Number:
			if len(token) > maxStoredNumber || strings.ContainsAny(token.String(), "eE") {
				return false
			}
		case string:
			if strings.Contains(token, "\x00") {
				return false
			}
		}
		if depth > maxStoredDepth {
			return false
		}
	}
}

func size(list []Variable) int {
	encoded, err := json.Marshal(list)
	if err != nil { // of plain structures: cannot happen
		return 1 << 30
	}
	return len(encoded) + bytes.Count(encoded, []byte(",")) + bytes.Count(encoded, []byte(":"))
}

package pool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// maxSettings bounds a template's block of settings, in bytes; maxShown a server's text in a
// message, in characters.
const (
	maxSettings = 64 << 10
	maxShown    = 600
)

// ReadSettings reads a template's block for a driver into a struct, whose fields have the members'
// names in their json tags. No block and null change nothing. The first error names the setting: a
// member without a field, with the nearest name, or a value of another kind.
func ReadSettings(driver string, raw json.RawMessage, into any) error {
	if len(raw) > maxSettings {
		return fmt.Errorf("%s: the block has %d bytes, and at most %d are read", driver, len(raw), maxSettings)
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return readBlock(driver, raw, reflect.ValueOf(into).Elem())
}

func readBlock(where string, raw json.RawMessage, into reflect.Value) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return fmt.Errorf("%s: write a block, { … }", where)
	}
	var known []string
	fields := map[string]reflect.Value{}
	for i := range into.NumField() {
		name := into.Type().Field(i).Tag.Get("json")
		known = append(known, name)
		fields[name] = into.Field(i)
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		field, ok := fields[name]
		if !ok {
			return fmt.Errorf("%s: unknown setting %q%s", where, Clean(name), provision.DidYouMean(name, known))
		}
		if err := readSetting(where+": "+name, members[name], field); err != nil {
			return err
		}
	}
	return nil
}

func readSetting(where string, raw json.RawMessage, into reflect.Value) error {
	t := into.Type()
	switch {
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		if string(raw) == "null" {
			return nil
		}
		into.Set(reflect.New(t.Elem()))
		return readBlock(where, raw, into.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) != nil {
			return fmt.Errorf("%s: write a list of objects", where)
		}
		into.Set(reflect.MakeSlice(t, len(all), len(all)))
		for i, one := range all {
			if err := readBlock(where, one, into.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if json.Unmarshal(raw, into.Addr().Interface()) != nil {
		return fmt.Errorf("%s: write %s", where, kindOf(t))
	}
	return nil
}

// kindOf says what to write for a setting of type t.
func kindOf(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Map {
			return "a list of objects"
		}
		return "a list of texts"
	case reflect.Map:
		if t.Elem().Kind() == reflect.String {
			return "an object of texts, such as { serial = \"…\" }"
		}
		return "an object"
	}
	return "a text"
}

// Clean returns a server's text in one line of at most 600 printable characters, for a message.
func Clean(text string) string {
	text = strings.Join(strings.Fields(printable.Text(text)), " ")
	if r := []rune(text); len(r) > maxShown {
		text = string(r[:maxShown]) + "…"
	}
	return text
}

// Package goldenjson pins the JSON of a package's types in one golden file: each type
// with every field filled, and empty, so that a field that is renamed, taken away or no
// longer left out when empty fails the test.
package goldenjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Check compares the JSON of values' types with a golden file, or writes it. What is
// filled in must also be read back as it was. Values are such as wire.Page[int]{}; what
// one has already is left as it is.
func Check(t *testing.T, file string, update bool, values ...any) {
	t.Helper()
	var got bytes.Buffer
	for _, value := range values {
		kind := reflect.TypeOf(value)
		full := reflect.New(kind)
		full.Elem().Set(reflect.ValueOf(value))
		fill(full.Elem())
		filled, err := json.MarshalIndent(full.Interface(), "", "  ")
		if err != nil {
			t.Fatalf("%s as JSON: %v", kind, err)
		}
		empty, err := json.Marshal(reflect.Zero(kind).Interface())
		if err != nil {
			t.Fatalf("an empty %s as JSON: %v", kind, err)
		}
		fmt.Fprintf(&got, "%s\n%s\nempty: %s\n\n", name(kind), filled, empty)
		back := reflect.New(kind)
		if err := json.Unmarshal(filled, back.Interface()); err != nil {
			t.Errorf("read %s: %v", kind, err)
		} else if again, _ := json.MarshalIndent(back.Interface(), "", "  "); !bytes.Equal(again, filled) {
			t.Errorf("%s is read as\n%s\nwant\n%s", kind, again, filled)
		}
	}
	if update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if g, w := line(gotLines, i), line(wantLines, i); g != w {
			t.Fatalf("%s:%d: the JSON has changed, which others rely on: got %q, want %q (-update writes it)", file, i+1, g, w)
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// Complete fails the test where a directory's package declares an exported struct that
// is none of values' types, nor one of the names that are left out.
func Complete(t *testing.T, dir string, leftOut []string, values ...any) {
	t.Helper()
	known := map[string]bool{}
	for _, name := range leftOut {
		known[name] = true
	}
	for _, value := range values {
		known[name(reflect.TypeOf(value))] = true
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() && !known[spec.Name.Name] {
				t.Errorf("%s: the type %s is in no golden file: add it to the test", file, spec.Name.Name)
			}
			return true
		})
	}
}

// name is a type's own, without what it is made of.
func name(kind reflect.Type) string {
	before, _, _ := strings.Cut(kind.Name(), "[")
	return before
}

var (
	moment = time.Date(2026, 1, 2, 3, 4, 5, 600000000, time.UTC)
	id     = uuid.MustParse("11111111-2222-4333-8444-555555555555")
)

// fill sets everything in a value to something that is not empty.
func fill(v reflect.Value) {
	if v.Kind() != reflect.Struct && !v.IsZero() {
		return
	}
	switch into := v.Addr().Interface().(type) {
	case *time.Time:
		*into = moment
		return
	case *uuid.UUID:
		*into = id
		return
	case *json.RawMessage:
		*into = json.RawMessage(`{"a":1}`)
		return
	case *any:
		*into = "anything"
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	}
}

package protocol

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	schemas "github.com/invopop/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tendril-run/tendril/provisioner"
)

var update = flag.Bool("update", false, "write docs/provisioner.schema.json")

const schemaFile = "../../docs/provisioner.schema.json"

// words are the values of the types that have only some.
var words = map[reflect.Type][]any{
	reflect.TypeFor[provisioner.Mode]():          {provisioner.ModeApply, provisioner.ModeDestroy},
	reflect.TypeFor[provisioner.PowerAction]():   {provisioner.PowerStart, provisioner.PowerStop, provisioner.PowerRestart, provisioner.PowerRescue, provisioner.PowerUnrescue},
	reflect.TypeFor[provisioner.Level]():         {provisioner.LevelDebug, provisioner.LevelInfo, provisioner.LevelWarn, provisioner.LevelError},
	reflect.TypeFor[provisioner.Action]():        {provisioner.ActionCreate, provisioner.ActionChange, provisioner.ActionReplace, provisioner.ActionDestroy, provisioner.ActionNone},
	reflect.TypeFor[provisioner.MachineStatus](): {provisioner.StatusCreating, provisioner.StatusRunning, provisioner.StatusStopped, provisioner.StatusFailed, provisioner.StatusUnknown, provisioner.StatusGone},
	reflect.TypeFor[provisioner.ResultStatus]():  {provisioner.ResultCompleted, provisioner.ResultPartial},
	reflect.TypeFor[provisioner.HealthStatus]():  {provisioner.Healthy, provisioner.Unhealthy, provisioner.HealthUnknown},
}

// generated is the JSON Schema of all messages, made from the types of package provisioner
// and their comments. A strict one refuses unknown fields.
func generated(t *testing.T, strict bool) []byte {
	t.Helper()
	comments := comments(t)
	var order []any
	defs := schemas.Definitions{}
	for _, list := range [][]provisioner.Message{provisioner.ToProgram(), provisioner.FromProgram()} {
		var oneOf []any
		for _, m := range list {
			reflector := schemas.Reflector{
				Anonymous: true, AllowAdditionalProperties: !strict, CommentMap: comments,
				Mapper: func(kind reflect.Type) *schemas.Schema {
					if enum, is := words[kind]; is {
						return &schemas.Schema{Type: "string", Enum: enum}
					}
					return nil
				},
			}
			schema := reflector.Reflect(m)
			for name, def := range schema.Definitions {
				if name != reflect.TypeOf(m).Elem().Name() {
					if _, there := defs[name]; !there {
						defs[name] = def
					}
					continue
				}
				def.Properties.Set("type", &schemas.Schema{Const: m.Type()})
				_ = def.Properties.MoveToFront("type")
				def.Required = append([]string{"type"}, def.Required...)
				defs[m.Type()] = def
			}
			oneOf = append(oneOf, map[string]any{"$ref": "#/$defs/" + m.Type()})
		}
		order = append(order, oneOf)
	}
	document := map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"$id":         "https://github.com/tendril-run/tendril/blob/main/docs/provisioner.schema.json",
		"title":       provisioner.Protocol,
		"description": "Each line of a conversation is one of these messages. docs/PROVISIONERS.md explains them. Generated from the Go package provisioner.",
		"oneOf":       []any{map[string]any{"$ref": "#/$defs/to_program"}, map[string]any{"$ref": "#/$defs/from_program"}},
	}
	all := map[string]any{"to_program": map[string]any{"description": "What a program reads on stdin.", "oneOf": order[0]}, "from_program": map[string]any{"description": "What a program writes to stdout.", "oneOf": order[1]}}
	for name, def := range defs {
		all[name] = def
	}
	document["$defs"] = all
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(document); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// comments are those of the types and fields, as the generator wants them.
func comments(t *testing.T) map[string]string {
	t.Helper()
	const path = "github.com/tendril-run/tendril/provisioner"
	set, found := token.NewFileSet(), map[string]string{}
	var files []*ast.File
	for _, name := range []string{"requests.go", "messages.go"} {
		file, err := parser.ParseFile(set, "../../provisioner/"+name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	one := func(text string) string {
		return strings.Join(strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(text)), " ")
	}
	pkg, err := doc.NewFromFiles(set, files, path)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range pkg.Types {
		found[path+"."+kind.Name] = one(kind.Doc)
		for _, spec := range kind.Decl.Specs {
			fields, is := spec.(*ast.TypeSpec).Type.(*ast.StructType)
			if !is {
				continue
			}
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					found[path+"."+kind.Name+"."+name.Name] = one(field.Doc.Text())
				}
			}
		}
	}
	return found
}

// The published schema is that of the Go types. After a change: go test
// ./internal/protocol -run TestSchema -update
func TestSchema(t *testing.T) {
	t.Parallel()
	got := generated(t, false)
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/provisioner.schema.json is not that of the Go types (%v): write it with go test ./internal/protocol -run TestSchema -update", err)
	}
	compiled(t, got, "")
}

// compiled is a part of a schema.
func compiled(t *testing.T, schema []byte, part string) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("tendril.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("tendril.json" + part)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What is sent and decoded here fits the schema, filled and empty.
func TestMessagesFitTheSchema(t *testing.T) {
	t.Parallel()
	schema := compiled(t, generated(t, true), "")
	for _, m := range append(provisioner.ToProgram(), provisioner.FromProgram()...) {
		fill(reflect.ValueOf(m).Elem())
		line, err := provisioner.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(document); err != nil {
			t.Errorf("%s\n%s", line, err)
		}
		back, err := provisioner.DecodeMessage(line)
		if err != nil {
			back, err = provisioner.DecodeRequest(line)
		}
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Errorf("%s is read as %+v, %v", line, back, err)
		}
	}
}

// fill gives every field a value.
func fill(v reflect.Value) {
	if enum, is := words[v.Type()]; is {
		v.Set(reflect.ValueOf(enum[0]))
		return
	}
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes([]byte(`{"a":[1,"b",null]}`))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), value)
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	}
}

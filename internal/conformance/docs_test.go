package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tendril-run/tendril/internal/once"
	"github.com/tendril-run/tendril/provisioner"
)

const page = "../../docs/PROVISIONERS.md"

// Every example of the specification is a message as the schema has it, without unknown
// fields, and every message has an example.
func TestDocumentedMessages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := jsonschema.NewCompiler().Compile("../../docs/provisioner.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```json\n(.*?)^```$").FindAllSubmatch(text, -1) {
		decoder := json.NewDecoder(bytes.NewReader(block[1]))
		for {
			var example json.RawMessage
			if err := decoder.Decode(&example); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in\n%s", err, block[1])
			}
			var header struct{ Type, Action string }
			_ = json.Unmarshal(example, &header)
			if header.Type == "" {
				shown["once "+header.Action] = true
				fits(t, example, &once.Request{}, &once.Response{})
				continue
			}
			shown[header.Type] = true
			document, err := jsonschema.UnmarshalJSON(bytes.NewReader(example))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(document); err != nil {
				t.Errorf("%s\n%v", example, err)
			}
			delete(document.(map[string]any), "type")
			without, _ := json.Marshal(document)
			for _, m := range append(provisioner.ToProgram(), provisioner.FromProgram()...) {
				if m.Type() == header.Type {
					fits(t, without, m)
				}
			}
		}
	}
	for _, m := range append(provisioner.ToProgram(), provisioner.FromProgram()...) {
		if !shown[m.Type()] {
			t.Errorf("%s shows no message %s", page, m.Type())
		}
	}
	for _, action := range []once.Action{once.Provision, once.Terminate, once.HealthCheck, ""} {
		if !shown["once "+string(action)] {
			t.Errorf("%s shows no document of the form once with the action %q", page, action)
		}
	}
}

// fits wants an example to have only fields of one of these types.
func fits(t *testing.T, example []byte, types ...any) {
	t.Helper()
	var problems []error
	for _, into := range types {
		decoder := json.NewDecoder(bytes.NewReader(example))
		decoder.DisallowUnknownFields()
		err := decoder.Decode(into)
		if err == nil {
			return
		}
		problems = append(problems, err)
	}
	t.Errorf("%s\n%v", example, errors.Join(problems...))
}

// The page says all codes, and the limits as they are.
func TestDocumentedWords(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{
		provisioner.CodeUnsupported, provisioner.CodeUnsupportedProtocol, provisioner.CodeInvalid, provisioner.CodeRefused, provisioner.CodeCancelled, provisioner.CodeDetached,
		provisioner.CodeNoCapacity, provisioner.CodeUnreachable, provisioner.CodeStalePlan, provisioner.CodeFailed,
	} {
		if !strings.Contains(string(text), "`"+code+"`") {
			t.Errorf("%s doesn't have the code %s", page, code)
		}
	}
	if words := len(strings.Fields(string(text))); words > 2200 {
		t.Errorf("%s has %d words, want 2200 at most", page, words)
	}
	limits := []int64{
		provisioner.MaxRequest >> 20, provisioner.MaxLine >> 20, provisioner.MaxConversation >> 20, provisioner.MaxMessages, provisioner.MaxState >> 10,
		provisioner.MaxPlan >> 10, provisioner.MaxOutput >> 10, provisioner.MaxMachines, provisioner.MaxName, provisioner.MaxText,
		int64(provisioner.DescribeTime.Seconds()), int64(provisioner.CancelTime.Seconds()), int64(provisioner.DetachTime.Seconds()), int64(provisioner.ExitTime.Seconds()),
	}
	if want := []int64{4, 1, 64, 100_000, 512, 512, 64, 1000, 256, 4096, 30, 30, 30, 5}; !slices.Equal(limits, want) {
		t.Errorf("the limits are %v, and the page says %v: change its table", limits, want)
	}
}

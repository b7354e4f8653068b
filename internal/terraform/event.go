package terraform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// message is one line of the engine's machine-readable output, see
// https://developer.hashicorp.com/terraform/internals/machine-readable-ui.
// OpenTofu's has the same fields; its module is "tofu.ui" and its version
// event says "tofu" where Terraform's says "terraform".
type message struct {
	Level   string `json:"@level"`
	Text    string `json:"@message"`
	Time    string `json:"@timestamp"`
	Type    string `json:"type"`
	UI      string `json:"ui"` // the version of this format, in version events
	hook    hook
	change  hook
	changes summary
	diag    diagnostic
	outputs map[string]OutputValue
	// dump is the whole state, printed because it could be stored nowhere. It
	// is the one part of an event that must never be shown.
	dump json.RawMessage
}

// hook is what happened to which resource.
type hook struct {
	Resource struct {
		Addr string `json:"addr"`
	} `json:"resource"`
	Action      string  `json:"action"`
	IDValue     string  `json:"id_value"`
	Elapsed     float64 `json:"elapsed_seconds"`
	Provisioner string  `json:"provisioner"`
	Output      string  `json:"output"`
}

// summary counts what an apply did.
type summary struct {
	Add       int    `json:"add"`
	Change    int    `json:"change"`
	Import    int    `json:"import"`
	Remove    int    `json:"remove"`
	Operation string `json:"operation"`
}

// OutputValue is one output of the root module, with its value also where that
// is sensitive: it is not for reports. Terraform's events leave such out; other
// engines and versions may not.
type OutputValue struct {
	Sensitive bool            `json:"sensitive"`
	Type      json.RawMessage `json:"type"`
	Value     json.RawMessage `json:"value"` // null is "null"; nil is not known
}

// errNotEvent says that a line is no event: it is to be shown as it is.
var errNotEvent = errors.New("not an event")

// errTorn says that a line looks like an event and cannot be read. It may be
// the half of an event that holds a secret, so it must not be shown.
var errTorn = errors.New("torn event")

// parse reads one line. An event whose payload cannot be read keeps its text,
// which Terraform writes for people and which holds no values of outputs. What
// looks like an event and cannot be read may be the half of one that holds
// secrets: of outputs, or a whole state.
func parse(line []byte) (message, error) {
	line = bytes.TrimSpace(line)
	if !bytes.HasPrefix(line, []byte("{")) {
		return message{}, errNotEvent
	}
	var raw struct {
		message
		Hook       json.RawMessage `json:"hook"`
		Change     json.RawMessage `json:"change"`
		Changes    json.RawMessage `json:"changes"`
		Diagnostic json.RawMessage `json:"diagnostic"`
		Outputs    json.RawMessage `json:"outputs"`
		State      json.RawMessage `json:"state"`
	}
	err := json.Unmarshal(line, &raw)
	switch {
	case err == nil && raw.Type == "" && raw.Level == "" && raw.Outputs == nil && raw.State == nil:
		return message{}, errNotEvent // some other program's JSON
	case err != nil && !mayBeEvent(line):
		return message{}, errNotEvent
	case err != nil:
		return message{}, errTorn
	}
	m := raw.message
	m.dump = raw.State
	for _, part := range []struct {
		raw  json.RawMessage
		into any
	}{
		{raw.Hook, &m.hook}, {raw.Change, &m.change}, {raw.Changes, &m.changes},
		{raw.Diagnostic, &m.diag}, {raw.Outputs, &m.outputs},
	} {
		if len(part.raw) == 0 {
			continue
		}
		if err := json.Unmarshal(part.raw, part.into); err != nil {
			m.Type = "" // shown by its text alone
			break
		}
	}
	return m, nil
}

// splitEvent splits a line that is no event where one begins within it: some
// process printed into the engine's output without ending its line. Without
// one, all of the line is text.
func splitEvent(line []byte) (text, event []byte) {
	at := bytes.Index(line, []byte(`{"@`))
	if at <= 0 {
		return line, nil
	}
	if _, err := parse(line[at:]); errors.Is(err, errNotEvent) {
		return line, nil
	}
	return append(line[:at:at], '\n'), line[at:]
}

// mayBeEvent reports whether a line that cannot be read may be part of an event.
func mayBeEvent(line []byte) bool {
	for _, key := range []string{`"@`, `"outputs"`, `"state"`} {
		if bytes.Contains(line, []byte(key)) {
			return true
		}
	}
	return false
}

// mayBeDump reports whether a torn event may be a part of a state.
func mayBeDump(line []byte) bool {
	return bytes.Contains(line, []byte("Emergency state dump")) || bytes.Contains(line, []byte(`"state":{`))
}

// maxLate is how long ago an event may have happened that is heard of now.
const maxLate = 24 * time.Hour

// time is when the engine says it happened; now if it does not say, or if it can
// only be another program that says it.
func (m message) time() time.Time {
	now := time.Now()
	at, err := time.Parse(time.RFC3339, m.Time)
	if err != nil || now.Sub(at).Abs() > maxLate {
		return now
	}
	return at
}

// checkUI refuses a format that we cannot know. Its versions are
// MAJOR.MINOR; a minor only adds.
func checkUI(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if version == "" || major == "1" {
		return nil
	}
	return fmt.Errorf("the engine speaks version %q of its machine-readable output, and this Tendril knows version 1: "+
		"use an older engine or a newer Tendril", truncate(version, 32))
}

// SGR sequences, as Terraform uses them.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// render turns an event into what Terraform would have printed for people, with
// its colours and line ends, and the stream it belongs to. An empty text prints
// nothing. What a provisioner prints has the colours that it chose.
func (m message) render() (sink int, text string) {
	switch m.Type {
	case "version", "planned_change", "resource_drift", "refresh_start", "refresh_complete", "provision_complete", "outputs":
		// People have seen the plan, outputs are for PrintOutputs, and the rest
		// says nothing.
		return toStdout, ""
	case "diagnostic":
		if m.diag.Severity == "error" {
			return toStderr, m.diag.text()
		}
		return toStdout, m.diag.text()
	case "provision_progress":
		return toStdout, m.hook.provisioned()
	case "provision_errored":
		return toStderr, m.hook.provisioner() + ": failed\n"
	case "change_summary":
		return toStdout, "\n" + line(bold+green+m.Text+reset)
	case "apply_start", "apply_progress", "apply_complete", "provision_start":
		return toStdout, line(bold + m.Text + reset)
	case "apply_errored":
		return toStderr, line(bold + m.Text + reset)
	}
	if m.dump != nil {
		return toStderr, fmt.Sprintf("%s: %d bytes, not shown\n", m.Text, len(m.dump))
	}
	if m.Level == "error" || m.Level == "warn" {
		return toStderr, line(m.Text)
	}
	return toStdout, line(m.Text)
}

// provisioned prefixes what a provisioner printed with where it came from.
func (h hook) provisioned() string {
	var b strings.Builder
	for l := range strings.SplitSeq(strings.TrimRight(h.Output, "\r\n"), "\n") {
		fmt.Fprintf(&b, "%s: %s\n", h.provisioner(), strings.TrimRight(l, "\r"))
	}
	return b.String()
}

// provisioner is the name before each line that a provisioner prints.
func (h hook) provisioner() string {
	return fmt.Sprintf("%s (%s)", h.Resource.Addr, h.Provisioner)
}

func renderOutputs(outputs map[string]OutputValue) string {
	if len(outputs) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n" + bold + green + "Outputs:" + reset + "\n\n")
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		value := outputs[name]
		if value.Sensitive {
			fmt.Fprintf(&b, "%s = <sensitive>\n", name)
			continue
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, value.Value); err != nil {
			compact.Reset()
			compact.WriteString("(unknown)")
		}
		fmt.Fprintf(&b, "%s = %s\n", name, compact.Bytes())
	}
	return b.String()
}

// line ends text with a newline; no text makes no line.
func line(text string) string {
	if text == "" {
		return ""
	}
	return text + "\n"
}

package terraform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// render turns an event into what Terraform would have printed for people,
// line ends included, and the stream it belongs to. An empty text prints
// nothing.
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
		return toStdout, "\n" + line(m.Text)
	case "apply_errored":
		return toStderr, line(m.Text)
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
	b.WriteString("\nOutputs:\n\n")
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

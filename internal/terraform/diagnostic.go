package terraform

import (
	"fmt"
	"strings"
)

// diagnostic is one error or warning of the engine, as its machine-readable
// output has it. Filled from plain stderr it holds summary, detail and place.
type diagnostic struct {
	Severity string   `json:"severity"`
	Summary  string   `json:"summary"`
	Detail   string   `json:"detail"`
	Address  string   `json:"address"`
	Range    *srcSpan `json:"range"`
	Snippet  *snippet `json:"snippet"`
}

type srcSpan struct {
	Filename string `json:"filename"`
	Start    struct {
		Line int `json:"line"`
	} `json:"start"`
}

type snippet struct {
	Context   *string `json:"context"`
	Code      string  `json:"code"`
	StartLine int     `json:"start_line"`
	Values    []struct {
		Traversal string `json:"traversal"`
		Statement string `json:"statement"`
	} `json:"values"`
}

// place says where the diagnostic points, "main.tf line 3", or "".
func (d diagnostic) place() string {
	if d.Range == nil || d.Range.Filename == "" {
		return ""
	}
	return fmt.Sprintf("%s line %d", d.Range.Filename, d.Range.Start.Line)
}

// text is the diagnostic as the engine prints it for people, without colours.
func (d diagnostic) text() string {
	var b strings.Builder
	title := "Error"
	if d.Severity == "warning" {
		title = "Warning"
	}
	fmt.Fprintf(&b, "\n%s: %s\n", title, d.Summary)
	if d.Address != "" || d.place() != "" {
		b.WriteByte('\n')
	}
	if d.Address != "" {
		fmt.Fprintf(&b, "  with %s", d.Address)
		if d.place() != "" {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	if d.place() != "" {
		fmt.Fprintf(&b, "  on %s", d.place())
		if d.Snippet != nil && d.Snippet.Context != nil {
			fmt.Fprintf(&b, ", in %s", *d.Snippet.Context)
		}
		b.WriteString(":\n")
	}
	if d.Snippet != nil {
		d.Snippet.writeTo(&b)
	}
	if detail := strings.TrimRight(d.Detail, "\n"); detail != "" {
		fmt.Fprintf(&b, "\n%s\n", detail)
	}
	return b.String()
}

func (s *snippet) writeTo(b *strings.Builder) {
	if s.Code == "" {
		return
	}
	for i, line := range strings.Split(s.Code, "\n") {
		fmt.Fprintf(b, "%4d: %s\n", s.StartLine+i, line)
	}
	for _, v := range s.Values {
		fmt.Fprintf(b, "    %s %s\n", v.Traversal, v.Statement)
	}
}

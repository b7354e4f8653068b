package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/printable"
)

// format is the value of -o.
type format string

func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "text|json" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if text != "text" && text != "json" {
		return wrongUsage("must be text or json")
	}
	*f = format(text)
	return nil
}

func addFormat(cmd *cobra.Command, f *format) {
	*f = "text"
	cmd.Flags().VarP(f, "output", "o", "how to print the answer")
}

func (a *app) printJSON(value any) error {
	var document bytes.Buffer
	encoder := json.NewEncoder(&document)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := a.out.Write(printable.JSON(document.Bytes()))
	return err
}

// answer prints what was done: as JSON, or in a sentence.
func (a *app) answer(out format, value any, sentence string, args ...any) error {
	if out == "json" {
		return a.printJSON(value)
	}
	return a.print(sentence, args...)
}

// listing prints a list: as JSON, as a table whose columns tabs part, or, where
// there is nothing, a sentence to the person.
func (a *app) listing(out format, list any, none, heading string, rows []string) error {
	switch {
	case out == "json":
		return a.printJSON(list)
	case len(rows) == 0:
		a.say("%s", none)
		return nil
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	var last []string // cells, which are for their readers to break
	for _, row := range append([]string{heading}, rows...) {
		i := strings.LastIndexByte(row, '\t') + 1
		_, _ = fmt.Fprintln(table, printable.Text(row[:i])) // to memory
		last = append(last, printable.Text(row[i:]))
	}
	_ = table.Flush() // likewise
	lines := strings.Split(text.String(), "\n")
	for i, cell := range last {
		if err := a.print("%s", a.tableLine(lines[i], cell)); err != nil {
			return err
		}
	}
	return nil
}

// tableLine is a line of a table with its last cell: below it, where a terminal has
// no room for both.
func (a *app) tableLine(line, last string) string {
	const indent = "    "
	columns := 0
	if a.out.tty {
		columns = a.out.width()
	}
	if columns == 0 || utf8.RuneCountInString(line+last) <= columns {
		return strings.TrimRight(line+last, " ")
	}
	wrapped := wordwrap.WrapString(last, uint(max(leastColumns/2, columns-len(indent))))
	return strings.TrimRight(line, " ") + "\n" + indent + strings.ReplaceAll(wrapped, "\n", "\n"+indent)
}

// row is one of a table.
func row(cells ...any) string {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = strings.NewReplacer("\t", " ", "\n", " ", "\v", " ", "\f", " ").Replace(fmt.Sprint(cell)) // all that tabwriter parts by
	}
	return strings.Join(texts, "\t")
}

// span is a duration as people write it: 7 days, 24h, 90m.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	text := d.String()
	for _, none := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, none) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// at is a time as people read it; "-" for none.
func at(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// ago is how long ago something was, as a column of a table has it: the first part
// of what seconds would say.
func ago(d time.Duration) string {
	parts := strings.Fields(seconds(max(0, d)))
	return parts[0] + " " + parts[1]
}

// seconds is a duration as people read it.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}

package printable

import (
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
)

// leastWidth is the narrowest column that a cell is broken for.
const leastWidth = 40

// oneLine has a cell be one: tabwriter parts cells by all of these.
var oneLine = strings.NewReplacer("\t", " ", "\n", " ", "\v", " ", "\f", " ")

// Table has the cells of rows in columns, two spaces apart, a row a line without a line
// end at the last. The last cell of a row goes below it where width columns have no room
// for both; 0 is any width.
func Table(width int, rows ...[]string) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	last := make([]string, len(rows)) // cells, which are for their readers to break
	for i, cells := range rows {
		for j, cell := range cells {
			if cell = Text(oneLine.Replace(cell)); j == len(cells)-1 {
				last[i] = cell
				break
			}
			_, _ = table.Write([]byte(cell + "\t")) // to memory
		}
		_, _ = table.Write([]byte("\n"))
	}
	_ = table.Flush() // likewise
	lines := strings.Split(text.String(), "\n")[:len(rows)]
	for i, cell := range last {
		lines[i] = withLast(lines[i], cell, width)
	}
	return strings.Join(lines, "\n")
}

func withLast(line, last string, width int) string {
	const indent = "    "
	if width == 0 || utf8.RuneCountInString(line+last) <= width {
		return strings.TrimRight(line+last, " ")
	}
	wrapped := wordwrap.WrapString(last, uint(max(leastWidth, width-len(indent))))
	return strings.TrimRight(line, " ") + "\n" + indent + strings.ReplaceAll(wrapped, "\n", "\n"+indent)
}

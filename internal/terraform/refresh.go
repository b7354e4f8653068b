package terraform

import (
	"bytes"
	"io"
)

// refreshing is what the engine prints for people before it looks at a resource,
// behind its address. Of one that it reads, a data source, it says something
// else. It is text, for with -json a plan would not be readable in the log.
const refreshing = ": Refreshing state..."

// countRefreshes counts the resources that a plan looks at on its way to out.
func countRefreshes(out io.Writer, on func(int)) io.Writer {
	if on == nil {
		return out
	}
	count := 0
	return writerFunc(func(lines []byte) {
		if n := bytes.Count(lines, []byte(refreshing)); n > 0 {
			count += n
			on(count)
		}
		_, _ = out.Write(lines) // its error is kept, see output
	})
}

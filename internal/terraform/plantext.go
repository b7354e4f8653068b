package terraform

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
)

// maxPlanText is how much of a plan's text is kept back, in bytes. What comes
// after it is left out: to print it would show what nobody has checked for
// secrets yet.
const maxPlanText = 64 << 20

// planBegins is the first line of what an engine prints of a plan; before it are
// the lines that say what it is looking at. An indented one is for an engine
// that has found other words.
var planBegins = regexp.MustCompile(`^(?:(?:Terraform|OpenTofu) (?:used the selected|will perform|planned the following)|An execution plan has been|` +
	`Note: Objects have changed|Changes to Outputs:|No changes\.| +(?:#|\+|-|~|<=|-/\+|\+/-) )`)

// planText keeps back what the engine prints of a plan until somebody has read
// the plan itself: that alone says which of the values shown are sensitive. An
// output may be, and the attribute that it is made of not.
//
// The text waits in a file without a name, not in memory: a plan may print more
// than a run has memory for.
type planText struct {
	out    *output
	dir    string // where the file is made
	most   int64  // bytes that are kept
	on     bool
	file   *os.File
	buffer *bufio.Writer
	kept   int64
	left   int64 // bytes that were left out
	err    error // why the text, or the rest of it, could not be kept
}

// through returns a writer that takes the engine's lines.
func (p *planText) through() io.Writer {
	return writerFunc(func(line []byte) {
		if p.on = p.on || planBegins.Match(line); !p.on {
			p.out.write(toStdout, line)
			return
		}
		p.keep(line)
	})
}

func (p *planText) keep(line []byte) {
	if p.file == nil && p.err == nil {
		if p.file, p.err = unnamedFile(p.dir); p.err == nil {
			p.buffer = bufio.NewWriterSize(p.file, 64<<10)
		}
	}
	if p.err != nil || p.kept+int64(len(line)) > p.most {
		p.left += int64(len(line))
		return
	}
	n, err := p.buffer.Write(line)
	p.kept += int64(n)
	p.left += int64(len(line) - n)
	p.err = err
}

// unnamedFile opens a file of mode 0600 that has no path any more, and that is
// gone when it is closed.
func unnamedFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, ".plan-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

func (p *planText) print() {
	if p.file != nil {
		err := p.buffer.Flush()
		if err == nil {
			_, err = p.file.Seek(0, io.SeekStart)
		}
		if err == nil {
			_, err = io.CopyBuffer(p.out.stdout(), struct{ io.Reader }{p.file}, make([]byte, 64<<10))
		}
		_ = p.file.Close() // it has been read
		p.err = errors.Join(p.err, err)
	}
	switch {
	case p.err != nil:
		p.out.write(toStdout, fmt.Appendf(nil, "\nThe plan's text could not be kept until its secrets were known, so some of it is missing here: %v\n", p.err))
	case p.left > 0:
		p.out.write(toStdout, fmt.Appendf(nil, "\nThe plan's text is longer than the %d MiB that are shown; %d bytes are left out here.\n", p.most>>20, p.left))
	}
	*p = planText{out: p.out, dir: p.dir, most: p.most}
}

// PrintPlan prints what Plan has kept back. Call it when all is known that is to
// be masked.
func (r *Runner) PrintPlan() { r.plan.print() }

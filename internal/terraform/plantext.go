package terraform

import (
	"io"
	"regexp"
)

// maxPlanText is how much of a plan's text is kept back, in bytes. Beyond that it
// is printed as it comes: a plan of that size is one that nobody reads.
const maxPlanText = 64 << 20

// planBegins is the first line of what an engine prints of a plan; before it are
// the lines that say what it is looking at. An indented one is for an engine
// that has found other words.
var planBegins = regexp.MustCompile(`^(?:(?:Terraform|OpenTofu) (?:used the selected|will perform|planned the following)|An execution plan has been|` +
	`Note: Objects have changed|Changes to Outputs:|No changes\.| +(?:#|\+|-|~|<=|-/\+|\+/-) )`)

// planText keeps back what the engine prints of a plan until somebody has read
// the plan itself: that alone says which of the values shown are sensitive. An
// output may be, and the attribute that it is made of not.
type planText struct {
	out  *output
	kept []byte
	on   bool
}

// through returns a writer that takes the engine's lines.
func (p *planText) through() io.Writer {
	return writerFunc(func(line []byte) {
		p.on = p.on || planBegins.Match(line)
		if !p.on || len(p.kept)+len(line) > maxPlanText {
			p.print()
			p.out.write(toStdout, line)
			return
		}
		p.kept = append(p.kept, line...)
	})
}

func (p *planText) print() {
	if len(p.kept) == 0 {
		return
	}
	p.out.write(toStdout, p.kept)
	p.kept = nil
}

// PrintPlan prints what Plan has kept back. Call it when all is known that is to
// be masked.
func (r *Runner) PrintPlan() { r.plan.print() }

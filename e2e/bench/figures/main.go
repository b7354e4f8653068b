// Command figures makes a table, and two charts, of what "go test -bench" prints
// for package bench: each figure beside its bare limit and its target.
//
// It reads that output from standard input, or from a file kept of it, and shows
// it as it comes; the table follows at the end, in Markdown:
//
//	go test -run '^$' -bench . -benchtime 1x -count 5 ./e2e/bench | go run ./e2e/bench/figures
//
// A figure that was not measured is told as such. What the figures are, and what
// they are held against, stands in rows.go and nowhere else.
//
// It must not know how anything is measured.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// options are what the command line asks for.
type options struct {
	environment bool   // print what the machine is, and no more
	input       string // a kept output; empty for standard input
	before      string // the kept output of an earlier run
	docs        string // a document to write the table into
	write       string // a directory to write the charts into
	some        bool   // only some benchmarks were asked for: say nothing of the others
	floor       string // bounds to hold the figures to, instead of the tables
}

func main() {
	var o options
	flag.BoolVar(&o.environment, "environment", false, "print what machine this is, to stand before the benchmarks' output, and end")
	flag.StringVar(&o.input, "input", "", "read this kept output instead of standard input")
	flag.StringVar(&o.before, "before", "", "add a column with the figures of an earlier run: its kept output")
	flag.StringVar(&o.docs, "docs", "", "replace what stands between the markers of this document")
	flag.StringVar(&o.write, "write", "", "write the charts into this directory")
	flag.BoolVar(&o.some, "some", false, "say nothing of figures that were not measured")
	flag.StringVar(&o.floor, "floor", "", "hold the figures to the bounds in this file, and fail beyond them")
	flag.Parse()
	if err := run(context.Background(), o, os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, stdin io.Reader, stdout, progress io.Writer) error {
	if o.environment {
		_, err := fmt.Fprint(stdout, environment(ctx))
		return err
	}
	now, err := o.measured(stdin, progress)
	if err != nil {
		return err
	}
	if o.floor != "" {
		return o.check(now, stdout)
	}
	shown := groups
	if o.some {
		shown = those(groups, now)
	}
	var before *measured
	if o.before != "" {
		if before, err = readFile(o.before); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprint(stdout, now.where(), "\n", tables(shown, now, before), "\nMissed or not measured:\n\n", missed(shown, now)); err != nil {
		return err
	}
	for _, line := range now.malformed {
		fmt.Fprintln(progress, "figures: not counted:", line) //nolint:errcheck // there is nobody else to tell
	}
	if len(now.failed) > 0 {
		// Half a run would wipe out what the document says of the other half.
		return fmt.Errorf("nothing is written, for a benchmark failed: %s", strings.Join(now.failed, "; "))
	}
	if o.docs != "" {
		if err := writeDocs(o.docs, now, before); err != nil {
			return err
		}
	}
	if o.write != "" {
		return writeCharts(o.write, now, before)
	}
	return nil
}

// check holds what was measured to the floor.
func (o options) check(now *measured, stdout io.Writer) error {
	floor, err := readFloor(o.floor)
	if err != nil {
		return err
	}
	table, err := checkFloor(floor, now)
	if _, failed := fmt.Fprint(stdout, table); failed != nil {
		return failed
	}
	if len(now.failed) > 0 {
		return fmt.Errorf("a benchmark failed: %s", strings.Join(now.failed, "; "))
	}
	return err
}

// those are the groups without what was not measured.
func those(all []group, m *measured) (some []group) {
	for _, g := range all {
		kept := group{title: g.title}
		for _, r := range g.rows {
			if len(m.values(r.bench, r.metric)) > 0 {
				kept.rows = append(kept.rows, r)
			}
		}
		if len(kept.rows) > 0 {
			some = append(some, kept)
		}
	}
	return some
}

// measured reads what the options name. What comes by standard input is shown as
// it comes, for a run takes minutes.
func (o options) measured(stdin io.Reader, progress io.Writer) (*measured, error) {
	if o.input != "" {
		return readFile(o.input)
	}
	var all bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(progress, &all), stdin); err != nil {
		return nil, fmt.Errorf("reading the benchmarks' output: %w", err)
	}
	return read("standard input", all.Bytes())
}

func readFile(path string) (*measured, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a kept output: %w", err)
	}
	return read(path, text)
}

// writeCharts writes each chart that there are figures for. One that lacks them
// stays as it was.
func writeCharts(dir string, now, before *measured) error {
	for name, draw := range map[string]func(now, before *measured) (string, error){
		"deploys.svg": deploysChart,
		"lines.svg":   linesChart,
	} {
		svg, err := draw(now, before)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil { //nolint:gosec // a page of the documentation
			return fmt.Errorf("writing a chart: %w", err)
		}
	}
	return nil
}

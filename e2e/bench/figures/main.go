// Command figures makes tables of what "go test -bench" prints for package bench:
// each figure beside its bare limit and its target.
//
// It reads that output from standard input, or from a file kept of it, and shows
// it as it comes; the tables follow at the end, in Markdown:
//
//	go test -run '^$' -bench . -benchtime 1x -count 5 ./e2e/bench | go run ./e2e/bench/figures
//
// A figure that was not measured is told as such. What the figures are, and what
// they are held against, stands in figures.txt and nowhere else. Whether two kept
// outputs differ is for golang.org/x/perf/cmd/benchstat to say.
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
	"slices"
	"strings"
)

// options are what the command line asks for.
type options struct {
	environment              bool
	input, docs, floor, json string
	some                     bool
}

func main() {
	var o options
	flag.BoolVar(&o.environment, "environment", false, "print what machine this is, to stand before the benchmarks' output, and end")
	flag.StringVar(&o.input, "input", "", "read this kept output instead of standard input")
	flag.StringVar(&o.docs, "docs", "", "replace what stands between the markers of this document")
	flag.StringVar(&o.json, "json", "", "write what was measured to this file, too, for programs")
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
	all, err := tables(list)
	if err != nil {
		return err
	}
	if o.some {
		all = those(all, now)
	}
	if o.json != "" {
		if err := writeJSON(o.json, all, now); err != nil {
			return err
		}
	}
	figures := now.where()
	for _, t := range all {
		figures += t.markdown(now)
	}
	if _, err := fmt.Fprint(stdout, figures, "\nMissed or not measured:\n\n", missed(all, now)); err != nil {
		return err
	}
	for _, line := range now.malformed {
		fmt.Fprintln(progress, "figures: not counted:", line) //nolint:errcheck // there is nobody else to tell
	}
	if len(now.failed) > 0 {
		// Half a run would wipe out what the document says of the other half.
		return fmt.Errorf("nothing is written, for a benchmark failed: %s", strings.Join(now.failed, "; "))
	}
	if o.docs == "" {
		return nil
	}
	page := now.where()
	for _, t := range onPage(all) {
		page += t.markdown(now)
	}
	return writeDocs(o.docs, page, missed(all, now))
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

// those are the tables without what was not measured.
func those(all []table, m *measured) []table {
	for i := range all {
		all[i].rows = slices.DeleteFunc(all[i].rows, func(r row) bool { return len(r.values(m)) == 0 })
	}
	return slices.DeleteFunc(all, func(t table) bool { return len(t.rows) == 0 })
}

// measured reads what the options name. What comes by standard input is shown as
// it comes, for a run takes minutes.
func (o options) measured(stdin io.Reader, progress io.Writer) (*measured, error) {
	if o.input != "" {
		text, err := os.ReadFile(o.input)
		if err != nil {
			return nil, fmt.Errorf("reading a kept output: %w", err)
		}
		return read(o.input, text)
	}
	var all bytes.Buffer
	if _, err := io.Copy(io.MultiWriter(progress, &all), stdin); err != nil {
		return nil, fmt.Errorf("reading the benchmarks' output: %w", err)
	}
	return read("standard input", all.Bytes())
}

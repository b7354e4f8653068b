package planned

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// MaxRead is the most bytes that Read takes, far more than a list of Most machines has.
const MaxRead = 1 << 20

// Most is how many machines are planned at once, as the database allows.
const Most = 500

// columns are what a CSV can say of a machine.
var columns = []string{"name", "pool", "image", "cores", "memory_mib", "disk_gib", "labels"}

// Read reads machines: one name on each line, or CSV (RFC 4180) with a header, where the first
// line has a comma or is "name". The columns are name, pool, image, cores, memory_mib,
// disk_gib and labels, which are name=value with spaces between; all but name may be missing,
// and a value may be empty. What a machine does not say it has from common. An error names
// the line.
func Read(text string, common wire.PlannedMachine) (machines []wire.PlannedMachine, err error) {
	text = strings.TrimPrefix(text, "\ufeff")
	if len(text) > MaxRead {
		return nil, fmt.Errorf("the list has %d bytes; at most %d are allowed", len(text), MaxRead)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if first = strings.TrimSpace(first); strings.Contains(first, ",") || first == columns[0] {
		machines, err = readCSV(text, common)
	} else {
		for line := range strings.Lines(text) {
			if name := strings.TrimSpace(line); name != "" {
				m := common
				m.Name = name
				machines = append(machines, m)
			}
		}
	}
	switch {
	case err != nil:
		return nil, err
	case len(machines) == 0:
		return nil, errors.New("there is no machine in the list")
	case len(machines) > Most:
		return nil, fmt.Errorf("%d machines; at most %d are planned at once", len(machines), Most)
	}
	return machines, nil
}

func readCSV(text string, common wire.PlannedMachine) (machines []wire.PlannedMachine, err error) {
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace = true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("read the CSV: %w", err)
	}
	for i, name := range header {
		header[i] = strings.TrimSpace(name)
		if !slices.Contains(columns, header[i]) {
			return nil, fmt.Errorf("line 1: there is no column %q%s; known are %s", header[i], provision.DidYouMean(header[i], columns), strings.Join(columns, ", "))
		} else if slices.Contains(header[:i], header[i]) {
			return nil, fmt.Errorf("line 1: the column %s is there twice", header[i])
		}
	}
	if !slices.Contains(header, columns[0]) {
		return nil, errors.New("line 1: the column name is missing")
	}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return machines, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the CSV: %w", err)
		}
		m := common
		for i, value := range row {
			if err := setColumn(&m, header[i], strings.TrimSpace(value)); err != nil {
				line, _ := r.FieldPos(i)
				return nil, fmt.Errorf("line %d: %s: %w", line, header[i], err)
			}
		}
		machines = append(machines, m)
	}
}

// Row is what columns, which are empty or missing where nothing is said, say of machines
// without a name of their own.
func Row(values map[string]string) (m wire.PlannedMachine, err error) {
	for _, column := range columns[1:] {
		if err := setColumn(&m, column, values[column]); err != nil {
			return m, fmt.Errorf("%s: %w", column, err)
		}
	}
	return m, nil
}

func setColumn(m *wire.PlannedMachine, column, value string) (err error) {
	if value == "" && column != "name" {
		return nil
	}
	switch column {
	case "name":
		if m.Name = value; value == "" {
			return errors.New("is missing")
		}
	case "pool":
		m.Pool = &value
	case "image":
		m.Image = &value
	case "cores":
		m.Cores, err = size(value)
	case "memory_mib":
		m.MemoryMiB, err = size(value)
	case "disk_gib":
		m.DiskGiB, err = size(value)
	case "labels":
		m.Labels, err = Labels(strings.Fields(value))
	}
	return err
}

func size(value string) (*int, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 {
		return nil, fmt.Errorf("%q is not a whole number above 0", value)
	}
	whole := int(n)
	return &whole, nil
}

// Labels reads labels of the form name=value.
func Labels(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		name, value, is := strings.Cut(text, "=")
		if _, twice := labels[name]; !is || name == "" || twice {
			return nil, fmt.Errorf("%q: a label is NAME=VALUE, and each name is given once", text)
		}
		labels[name] = value
	}
	return labels, nil
}

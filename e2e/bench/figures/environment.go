package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/postgres"
)

// environment says what is measured on, as settings of the benchmark format, so
// that a kept output says it, too. What would tell whose machine it is (its
// name, the tail of the kernel's version) is not asked.
func environment(ctx context.Context) string {
	var b strings.Builder
	for _, s := range []struct{ key, value string }{
		{"date", time.Now().UTC().Format(time.DateOnly)},
		{"cores", fmt.Sprint(runtime.NumCPU())},
		{"memory", memory()},
		{"kernel", kernel()},
		{"postgresql", postgresVersion(ctx)},
		{"terraform", terraformVersion(ctx)},
		{"go", strings.TrimPrefix(runtime.Version(), "go")},
	} {
		if s.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", s.key, s.value)
		}
	}
	return b.String()
}

var digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)

// memory is what Linux says it has; elsewhere the sentence goes without.
func memory() string {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return ""
	}
	var kib float64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %f kB", &kib); err != nil {
		return ""
	}
	return fmt.Sprintf("%.1f GiB", kib/(1<<20))
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return "Linux " + digits.FindString(string(text))
}

// postgresVersion asks the PostgreSQL that package pgtest would take.
func postgresVersion(ctx context.Context) string {
	dir := os.Getenv("TENDRIL_TEST_POSTGRES_BIN")
	if dir == "" {
		var err error
		if dir, err = postgres.Find(); err != nil {
			return ""
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output() //nolint:gosec // whoever runs the benchmarks names the directory
	if err != nil {
		return ""
	}
	return digits.FindString(string(out))
}

func terraformVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "terraform", "version", "-json").Output()
	var said struct {
		Version string `json:"terraform_version"`
	}
	if err != nil || json.Unmarshal(out, &said) != nil {
		return ""
	}
	return said.Version
}

// where says in a sentence what was measured on, when, and how often.
func (m *measured) where() string {
	var machine, programs []string
	for _, s := range []struct {
		key, form string
		into      *[]string
	}{
		{"cpu", "%s", &machine}, {"cores", "%s cores", &machine}, {"memory", "%s memory", &machine}, {"kernel", "%s", &machine},
		{"postgresql", "PostgreSQL %s", &programs}, {"terraform", "Terraform %s", &programs}, {"go", "Go %s", &programs},
	} {
		if v := m.settings[s.key]; v != "" {
			*s.into = append(*s.into, fmt.Sprintf(s.form, v))
		}
	}
	text := "Measured"
	if date := m.settings["date"]; date != "" {
		text += " on " + date
	}
	if len(machine) > 0 {
		text += ": " + strings.Join(machine, ", ")
	}
	if len(programs) > 0 {
		text += "; " + strings.Join(programs, ", ")
	}
	return text + ". Medians of " + m.times() + ".\n"
}

// times is how many rounds the benchmarks have.
func (m *measured) times() string {
	least, most := 0, 0
	for _, rounds := range m.rounds {
		if n := len(rounds); least == 0 || n < least {
			least = n
		}
		most = max(most, len(rounds))
	}
	switch {
	case most == 1:
		return "one run"
	case least == most:
		return fmt.Sprintf("%d runs", most)
	}
	return fmt.Sprintf("%d to %d runs", least, most)
}

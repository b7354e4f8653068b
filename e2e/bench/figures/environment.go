package main

import (
	"context"
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

var digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)*`)

// environment says what is measured on, as settings of the benchmark format, so
// that a kept output says it, too. What would tell whose machine it is (its
// name, the tail of the kernel's version) is left out.
func environment(ctx context.Context) string {
	version := func(program string, args ...string) string {
		out, _ := exec.CommandContext(ctx, program, args...).Output() //nolint:gosec // programs of this machine, by fixed names; what is missing is not told
		return digits.FindString(string(out))
	}
	database := os.Getenv("TENDRIL_TEST_POSTGRES_BIN")
	if database == "" {
		database, _ = postgres.Find()
	}
	var memory string
	var kib float64
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if _, err := fmt.Sscanf(string(text), "MemTotal: %f kB", &kib); err == nil {
			memory = fmt.Sprintf("%.1f GiB", kib/(1<<20))
		}
	}
	var b strings.Builder
	for _, s := range [][2]string{
		{"date", time.Now().UTC().Format(time.DateOnly)},
		{"cores", fmt.Sprint(runtime.NumCPU())},
		{"memory", memory},
		{"kernel", "Linux " + version("uname", "-r")},
		{"postgresql", version(filepath.Join(database, "postgres"), "--version")},
		{"terraform", version("terraform", "version")},
		{"go", digits.FindString(runtime.Version())},
	} {
		if s[1] != "" {
			fmt.Fprintf(&b, "%s: %s\n", s[0], s[1])
		}
	}
	return b.String()
}

// where says in a sentence what was measured on, when, and how often.
func (m *measured) where() string {
	said := func(form string, keys ...string) (text string) {
		for _, key := range keys {
			if v := m.settings[key]; v != "" {
				text += fmt.Sprintf(form, v)
			}
		}
		return text
	}
	least, most := 0, 0
	for _, rounds := range m.rounds {
		if n := len(rounds); least == 0 || n < least {
			least = n
		}
		most = max(most, len(rounds))
	}
	times := fmt.Sprintf("%d to %d runs", least, most)
	if most == 1 {
		times = "one run"
	} else if least == most {
		times = fmt.Sprintf("%d runs", most)
	}
	return "Measured" + said(" on %s", "date") + said(": %s", "cpu") + said(", %s cores", "cores") + said(", %s memory", "memory") + said(", %s", "kernel") +
		said(", PostgreSQL %s", "postgresql") + said(", Terraform %s", "terraform") + said(", Go %s", "go") + ". Medians of " + times + ".\n"
}

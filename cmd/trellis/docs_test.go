package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentcmd"
)

// Every command and flag that the documentation names is there.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	root, agent := newApp("trellis", func(string) string { return "" }, nil, terminal{}, terminal{}).command(), &cobra.Command{Use: "tendril"}
	root.InitDefaultCompletionCmd()
	agent.AddCommand(agentcmd.Commands(nil)...)
	trees := map[string]*cobra.Command{"trellis": root, "tendril": agent}
	var pages []string
	for _, pattern := range []string{"../../README.md", "../../CONTRIBUTING.md", "../../docs/*.md", "../../docs/*/*.md", "../../charts/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	checked := 0
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range documented(string(content)) {
			checked++
			if problem := lookUp(trees[words[0]], words[1:]); problem != "" {
				t.Errorf("%s names %q: %s", page, strings.Join(words, " "), problem)
			}
		}
	}
	if checked < 100 {
		t.Errorf("%d commands were found in %d pages, want them all", checked, len(pages))
	}
}

// documented are the commands in a page's code, word by word.
func documented(page string) (found [][]string) {
	code := regexp.MustCompile("(?s)```(?:sh|text)\n.*?```|`[^`\n]+`").FindAllString(page, -1)
	command := regexp.MustCompile(`(?m)(?:^|[(|;"'] ?|-- )(?:bin/)?(trellis|tendril) ([a-z][^|;)"'#\n` + "`" + `]*)`)
	for _, text := range code {
		text = strings.ReplaceAll(strings.Trim(text, "`"), "\\\n", " ")
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			found = append(found, append([]string{match[1]}, strings.Fields(match[2])...))
		}
	}
	return found
}

// lookUp says what a command line names that is not there; "" where all is.
func lookUp(root *cobra.Command, words []string) string {
	cmd := root
	for len(words) > 0 {
		var next *cobra.Command
		for _, child := range cmd.Commands() {
			if child.Name() == words[0] {
				next = child
			}
		}
		if next == nil {
			break
		}
		cmd, words = next, words[1:]
	}
	if cmd == root {
		return "there is no such command"
	}
	if cmd.HasSubCommands() && !cmd.Runnable() && len(words) > 0 && regexp.MustCompile(`^[a-z]`).MatchString(words[0]) {
		return "there is no command " + words[0] + " of " + cmd.CommandPath()
	}
	for _, word := range words {
		name, isFlag := strings.CutPrefix(word, "--")
		name, _, _ = strings.Cut(strings.TrimRight(name, ",.:"), "=")
		if isFlag && name != "" && name != "help" && cmd.Flag(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
			return "it has no flag --" + name
		}
	}
	return ""
}

// Nobody needs another program to make an identity, and nothing says so.
func TestNobodyNeedsAgeKeygen(t *testing.T) {
	t.Parallel()
	checked := 0
	if err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && entry.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		switch filepath.Ext(path) {
		case ".md", ".go", ".tpl", ".txt", ".yaml", ".json", ".sql", ".sh", ".html", ".toml":
		default:
			return nil
		}
		content, err := os.ReadFile(path)
		checked++
		if name := "age-" + "keygen"; strings.Contains(string(content), name) {
			t.Errorf("%s names %s: it is \"tendril identity new\"", path, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if checked < 1000 {
		t.Errorf("%d files were read, want all", checked)
	}
}

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tendril-run/tendril/internal/exitcode"
)

// asked is a server that knows nothing and remembers the paths that it was asked for.
type asked struct {
	mu    sync.Mutex
	paths []string
}

func (s *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, strings.TrimPrefix(r.URL.Path, "/api/v1/"))
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"items": []}`)
}

// since returns what it was asked for since the last time.
func (s *asked) since() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := s.paths
	s.paths = nil
	return paths
}

// testApp is a trellis that asks a server of the test's.
func testApp(t *testing.T, server string) (*app, *bytes.Buffer) {
	t.Helper()
	config, data := filepath.Join(t.TempDir(), "trellis.toml"), t.TempDir()
	environ := map[string]string{"TRELLIS_URL": server, "TRELLIS_TOKEN": "trt_test", "TRELLIS_CONFIG": config, "TRELLIS_DATA_DIR": data}
	said := &bytes.Buffer{}
	return newApp("trellis", func(name string) string { return environ[name] }, strings.NewReader(""), terminal{Writer: said}, terminal{Writer: said}), said
}

// eachVerb calls look for every verb that people may type, with its path below root.
func eachVerb(root *cobra.Command, look func(cmd *cobra.Command, path string)) {
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		look(cmd, path)
		for _, child := range cmd.Commands() {
			if !child.Hidden || child.Name() == agentVerb {
				walk(child, strings.TrimSpace(path+" "+child.Name()))
			}
		}
	}
	walk(root, "")
}

const (
	nothing    = ""            // explicitly no words, and no file of the directory
	fileNames  = "a file"      // of the shell's
	folders    = "a directory" // likewise
	fixedWords = "words:"      // these are among them
)

// argumentKinds says what completes an argument, by the word that its usage has:
// the part of the API that lists what there is, or one of the above.
var argumentKinds = map[string]string{
	"NUMBER|ID": "provisions", "NUMBER|ID|WORKSPACE": "provisions", "WORKSPACE": "workspaces", "WORKSPACE|NUMBER": "workspaces", "FROM": "workspaces", "ADDRESS…": "workspaces",
	"VERSION": "workspaces", "MACHINE": "machines", "MACHINE…": "machines", "WHO": "members", "ROLE": fixedWords + "operator", "ORGANISATION": "me/invitations", "TOKEN-ID": "clusters", "KEY-ID": "clusters", "TRUST-ID": "clusters", "CONTEXT": fixedWords + "local",
	"FILE": fileNames, "DIR": folders, "TO": nothing, "TEXT": nothing, "ID": nothing, "ADDRESS": nothing, "COMMIT": nothing, "URL": nothing, "RECIPIENT": nothing, "CODE": nothing, "FINGERPRINT": nothing,
	"POOL": "pools", "QUOTA": "pool-quotas", "IMAGE": nothing, "NAME": nothing, "TEMPLATE": "templates",
	"COMMAND": fileNames, "ARG…": fileNames,
}

// argumentsOf are those where the same word means something else, by verb.
var argumentsOf = map[string]string{
	"clusters create NAME": nothing, "templates add NAME": nothing, "machines plan NAME…": nothing, "webhooks add NAME": nothing, "seal NAME": nothing, "members invite WHO": nothing,
	"members uninvite WHO": "invitations", "api-tokens revoke ID": "api-tokens", "contexts use NAME": fixedWords + "local", "contexts remove NAME": fixedWords + "local",
}

// flagKinds are the flags whose value is something that exists. All others that take
// a value complete explicitly nothing.
var flagKinds = map[string]string{
	"cluster": "clusters", "pool": "pools", "workspace": "workspaces", "template": "templates", "target": "workspaces", "replace": "workspaces", "org": "me", "context": fixedWords + "local",
	"output": fixedWords + "json", "approval": fixedWords + "always", "approvers": fixedWords + "admin", "log-format": fixedWords + "json", "access-log": fixedWords + "all",
	"status": fixedWords + "gone", "health": fixedWords + "unhealthy", "kind": fixedWords + "slack", "event": fixedWords + "drift", "data-dir": folders, "move-from": folders, "config": fileNames, "to": fileNames, "file": fileNames, "yes-with": fileNames, "tendril join cluster": nothing, "tendril identity certify cluster": nothing, "tendril identity certify key": fileNames, "certificate": fileNames,
	"sealed-vars": fileNames, "tls-cert": fileNames, "tls-key": fileNames, "state pull version": "workspaces", "machines output": fixedWords + "ansible", "machines list output": fixedWords + "ansible",
	"form": fixedWords + "once", "tendril provisioner test machine": fileNames, "tendril provisioner test variables": fileNames,
}

func argumentKind(t *testing.T, path, word string) string {
	t.Helper()
	if kind, ok := argumentsOf[path+" "+word]; ok {
		return kind
	}
	for _, things := range []string{"clusters", "templates", "webhooks"} {
		if strings.HasPrefix(path, things) && (word == "NAME" || word == "NAME|ID") {
			return things
		}
	}
	kind, ok := argumentKinds[word]
	if !ok {
		t.Errorf("trellis %s: what completes %s? Say so in this test and in argumentWords", path, word)
	}
	return kind
}

// Tab offers what exists for every argument and flag of every verb of both programs,
// and never the files of the directory where a file is not meant.
func TestEachVerbCompletes(t *testing.T) {
	t.Parallel()
	asked := &asked{}
	server := httptest.NewServer(asked)
	t.Cleanup(server.Close)
	a, _ := testApp(t, server.URL)
	root := a.command()
	check := func(what, kind string, words completes, cmd *cobra.Command, args []string) {
		t.Helper()
		if words == nil {
			t.Errorf("%s has no completion: the shell offers the files of the directory", what)
			return
		}
		cmd.SetContext(t.Context())
		got, directive := words(cmd, args, "")
		paths := asked.since()
		want, fixed := strings.CutPrefix(kind, fixedWords)
		switch {
		case fixed && !slices.Contains(got, want):
			t.Errorf("%s offers %q, want %s among them", what, got, want)
		case kind == fileNames && directive != cobra.ShellCompDirectiveDefault, kind == folders && directive != cobra.ShellCompDirectiveFilterDirs:
			t.Errorf("%s has the directive %d, want %s", what, directive, kind)
		case kind == fileNames || kind == folders:
			return
		case directive&cobra.ShellCompDirectiveNoFileComp == 0:
			t.Errorf("%s offers the files of the directory", what)
		case kind == nothing && (len(got) > 0 || len(paths) > 0):
			t.Errorf("%s offers %q and asks for %q, want nothing", what, got, paths)
		case kind != nothing && !fixed && (len(paths) == 0 || paths[0] != kind && !strings.HasPrefix(paths[0], kind+"/")):
			t.Errorf("%s asks for %q, want %s", what, paths, kind)
		}
	}
	seen := 0
	eachVerb(root, func(cmd *cobra.Command, path string) {
		seen++
		words := usageWords(cmd.Use)
		for i, word := range append(words, "") {
			kind := nothing
			if i < len(words) {
				kind = argumentKind(t, path, word)
			} else if i > 0 && strings.HasSuffix(words[i-1], "…") {
				continue
			}
			check(fmt.Sprintf("argument %d (%s) of trellis %s", i+1, word, path), kind, cmd.ValidArgsFunction, cmd, slices.Repeat([]string{"x"}, i))
		}
		flags := cmd.LocalNonPersistentFlags()
		if cmd == root {
			flags = cmd.PersistentFlags()
		}
		flags.VisitAll(func(flag *pflag.Flag) {
			kind, ok := flagKinds[flag.Name]
			if strings.HasSuffix(flag.Name, "-file") {
				kind, ok = fileNames, true
			} else if other, special := flagKinds[path+" "+flag.Name]; special {
				kind, ok = other, true
			}
			if flag.Value.Type() == "bool" {
				return
			}
			if !ok {
				kind = nothing
			}
			found, _ := cmd.GetFlagCompletionFunc(flag.Name)
			check("--"+flag.Name+" of trellis "+path, kind, found, cmd, []string{"x"})
		})
	})
	if seen < 60 {
		t.Errorf("looked at %d verbs, want all of them", seen)
	}
}

// usageWords are the arguments in a line of usage: "set WHO [ROLE] --why TEXT" has
// WHO and ROLE.
func usageWords(use string) (words []string) {
	fields := strings.Fields(use)[1:]
	for _, field := range fields {
		if word, either := strings.CutPrefix(field, "{"); either && word != "" && word[0] != '-' {
			return append(words, word) // or flags in its place
		}
		if strings.HasPrefix(field, "-") || strings.HasPrefix(field, "{") || strings.HasPrefix(field, "[-") {
			return words
		}
		words = append(words, strings.Trim(field, "[]"))
	}
	return words
}

// Every verb of both programs has an example of itself, of at most 80 columns.
func TestEachVerbHasAnExample(t *testing.T) {
	t.Parallel()
	a, _ := testApp(t, "http://127.0.0.1:1")
	eachVerb(a.command(), func(cmd *cobra.Command, path string) {
		if path == agentVerb { // hidden: it lists what follows
			return
		}
		typed := strings.TrimSpace("trellis " + path)
		if agents, ok := strings.CutPrefix(path, agentVerb+" "); ok {
			typed = "tendril " + agents
		}
		if !strings.Contains(cmd.Example, typed) {
			t.Errorf("%s --help has no example of it: %q", typed, cmd.Example)
		}
		for line := range strings.Lines(cmd.Example) {
			if len([]rune(strings.TrimRight(line, "\n"))) > leastColumns {
				t.Errorf("%s --help has an example of more than %d columns: %s", typed, leastColumns, line)
			}
		}
	})
}

// Help is answered with 0 and a wrong command line with 2, by every verb, and the
// table of exit codes is in the help.
func TestEachVerbHasTheSameExitCodes(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (int, string) {
		a, said := testApp(t, "http://127.0.0.1:1")
		return a.run(args), said.String()
	}
	server := httptest.NewServer(&asked{})
	t.Cleanup(server.Close)
	_, help := run("--help")
	for _, m := range exitcode.Table {
		if line := fmt.Sprintf("%-5d%s\n", m.Code, m.Text); !strings.Contains(help, line) {
			t.Errorf("trellis --help has no %q", line)
		}
	}
	a, _ := testApp(t, "http://127.0.0.1:1")
	eachVerb(a.command(), func(cmd *cobra.Command, path string) {
		verb := strings.Fields(path)
		for _, c := range []struct {
			args []string
			want int
		}{
			{[]string{"--help"}, exitcode.OK}, {[]string{"--no-such-flag"}, exitcode.Usage}, {slices.Repeat([]string{"x"}, 20), exitcode.Usage},
		} {
			if strings.Contains(cmd.Use, "…") && len(c.args) > 1 {
				continue
			}
			if code, said := run(append(slices.Clone(verb), c.args...)...); code != c.want {
				t.Errorf("trellis %s %s = %d, want %d: %s", path, strings.Join(c.args, " "), code, c.want, said)
			}
		}
		if cmd.HasSubCommands() { // it lists, or prints its help
			alone, said := testApp(t, server.URL)
			// The server has no cluster and this machine no agent that these would ask about.
			if code := alone.run(verb); code != exitcode.OK && path != "clusters tokens" && path != "clusters trust" && path != "clusters keys" && path != "tendril workspaces" {
				t.Errorf("trellis %s alone = %d, want 0: %s", path, code, said)
			}
		}
		if words := usageWords(cmd.Use); len(words) > 0 && !strings.Contains(cmd.Use, "[") {
			if code, said := run(verb...); code != exitcode.Usage {
				t.Errorf("trellis %s without its arguments = %d, want %d: %s", path, code, exitcode.Usage, said)
			}
		}
	})
}

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Each verb that prints an answer prints it as JSON, too.
func TestEachVerbPrintsJSON(t *testing.T) {
	t.Parallel()
	without := map[string]string{
		"up": "goes on and prints nothing", "demo": "shows a log", "machines ssh": "prints what the machine prints", "serve": "logs, by --log-format", "mcp": "speaks JSON-RPC",
		"completion bash": "a script", "completion zsh": "a script", "completion fish": "a script", "completion powershell": "a script", "help": "texts",
	}
	root := newApp("trellis", func(string) string { return "" }, nil, terminal{}, terminal{}).command()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	seen := 0
	var walk func(cmd *cobra.Command, path string)
	walk = func(cmd *cobra.Command, path string) {
		for _, child := range cmd.Commands() {
			if !child.Hidden {
				walk(child, strings.TrimSpace(path+" "+child.Name()))
			}
		}
		if cmd.HasSubCommands() {
			return
		}
		seen++
		flag := cmd.Flags().Lookup("output")
		if _, excused := without[path]; excused == (flag != nil) {
			t.Errorf("trellis %s has the flag -o: %t, want it: %t", path, flag != nil, !excused)
		}
		if flag != nil && (flag.Shorthand != "o" || !strings.HasPrefix(flag.Value.Type(), "text|json")) {
			t.Errorf("trellis %s has another -o than the others: %+v", path, flag)
		}
	}
	walk(root, "")
	if seen < 40 {
		t.Errorf("looked at %d verbs, want all of them", seen)
	}
}

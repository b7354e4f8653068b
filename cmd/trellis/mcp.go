package main

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
	"github.com/tendril-run/tendril/internal/version"
)

func mcpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "mcp",
		Short: "Offer Tendril as tools to a language model (MCP)",
		Long: `Speaks the Model Context Protocol on standard input and output, for programs that give
tools to a language model: they start it. The model sees and does what you may, on the
server of the current context; what it changes waits for a person's yes, unless the token
says otherwise. "trellis serve" and "trellis up" offer the same at /mcp.`,
		Example: `  claude mcp add tendril -- trellis mcp
  trellis mcp --context prod`,
		Args: none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			server := tools.New(tools.Options{Version: version.String()}, tools.For(s))
			defer server.Close()
			a.say("Tools of %s on standard input and output.", s.URL())
			// Standard input can't be closed while it is read: its reader ends with the program.
			return server.Serve(ctx, struct{ io.Reader }{a.in}, a.out)
		}),
	}
}

// addToModel is the line that adds this instance to a program that gives tools to a language
// model. That may start it in any directory.
func (a *app) addToModel() string {
	program, dir := a.program, a.dataDir
	if path, err := os.Executable(); err == nil {
		program = path
	}
	if path, err := filepath.Abs(dir); err == nil {
		dir = path
	}
	return "claude mcp add tendril -- " + quote(program) + " mcp --data-dir " + quote(dir)
}

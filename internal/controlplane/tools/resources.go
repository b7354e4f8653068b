package tools

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

// resources offers what a client can attach to a conversation by its address.
func (s *Server) resources() {
	for _, r := range []struct{ name, title, uri, description string }{
		{"run", "A run", "tendril://runs/{number}", "How a run stands, as the tool run says it."},
		{"log", "Log of a run", "tendril://runs/{number}/log", "The last lines of a run's log."},
		{"plan", "Plan of a run", "tendril://runs/{number}/plan", "What a run's plan would do to each resource."},
		{"readme", "About a template", "tendril://templates/{name}/readme", "What a template says of itself, and its variables."},
		{"workspace", "A workspace", "tendril://workspaces/{+name}", "What goes on in a workspace, and what exists there."},
	} {
		s.mcp.AddResourceTemplate(&mcp.ResourceTemplate{Name: r.name, Title: r.title, URITemplate: r.uri, Description: r.description + " " + aboutMarks, MIMEType: "text/plain"}, s.readResource)
	}
	s.mcp.AddResource(&mcp.Resource{Name: "templates", Title: "Templates", URI: "tendril://templates", Description: "The catalogue. " + aboutMarks, MIMEType: "text/plain"}, s.readResource)
}

// readResource answers any address.
func (s *Server) readResource(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	c, err := s.begin(r.Extra, r.ClientInfo())
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
	}
	text, err := c.resource(ctx, r.Params.URI)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if isNotFound(err) {
			return nil, mcp.ResourceNotFoundError(r.Params.URI)
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: c.explain(err)}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, MIMEType: "text/plain", Text: cut(text, mostAnswer)}}}, nil
}

// resource is the text of an address.
func (c *call) resource(ctx context.Context, uri string) (string, error) {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(uri, "tendril://"), "/")
	rest, err := url.PathUnescape(rest)
	if err != nil {
		return "", fmt.Errorf("the address %q is not written as a URI", cut(uri, mostName))
	}
	switch kind {
	case "runs":
		word, part, _ := strings.Cut(rest, "/")
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return "", fmt.Errorf("%q is no run's number", cut(word, mostName))
		}
		return c.runResource(ctx, number, part)
	case "templates":
		if rest == "" {
			answer, err := templates(ctx, c, listing{Limit: mostEntries})
			return fmt.Sprintf("%s\n\n%s", lines(answer.Templates, func(t templateEntry) string { return t.Name + " " + t.Version + " " + t.Description }), answer.Next), err
		}
		return c.readme(ctx, strings.TrimSuffix(rest, "/readme"))
	case "workspaces":
		answer, err := workspace(ctx, c, workspaceInput{Workspace: rest, listing: listing{Limit: mostEntries}})
		return fmt.Sprintf("Workspace %s on cluster %s: %d resources. %s\nNewest run: %d %s\n%s\n%s\n\n%s", answer.Name, answer.Cluster, answer.Resources, answer.Doing, answer.Run, answer.Status,
			lines(answer.Existing, func(r resourceEntry) string { return r.Address + " " + strings.Join(r.Addresses, " ") }), answer.URL, answer.Next), err
	}
	return "", fmt.Errorf("there is no %q: give tendril://runs/NUMBER/log, tendril://templates/NAME/readme or tendril://workspaces/NAME", cut(uri, mostName))
}

func (c *call) runResource(ctx context.Context, number int64, part string) (string, error) {
	switch part {
	case "":
		answer, err := run(ctx, c, runInput{number})
		return fmt.Sprintf("Run %d (%s) in workspace %s: %s\n%s\n%s\n\n%s", answer.Run, answer.Operation, answer.Workspace, answer.Status, answer.Error, answer.URL, answer.Next), err
	case "log":
		answer, err := readLog(ctx, c, logInput{Run: number, Lines: mostLines})
		return answer.Log + "\n\n" + answer.Next, err
	case "plan":
		answer, err := showPlan(ctx, c, planInput{Run: number})
		return answer.Changes + "\n\n" + answer.Next, err
	}
	return "", fmt.Errorf("a run has no part %q: give log or plan", cut(part, mostName))
}

// readme is what is known of a template, as text.
func (c *call) readme(ctx context.Context, name string) (string, error) {
	answer, err := template(ctx, c, templateInput{Name: name})
	if err != nil {
		return "", err
	}
	_, declared, err := c.declared(ctx, name, "")
	if err != nil {
		return "", err
	}
	readme := "It has no README.md."
	if declared.Readme != "" {
		readme = "Its README.md:\n" + c.short(declared.Readme, mostReadme)
	}
	return fmt.Sprintf("Template %s, version %s\n%s\n\n%s\n\nVariables:\n%s\n\nForm: %s\n\n%s", answer.Name, answer.Version, answer.Description, readme,
		lines(answer.Variables, func(v variableEntry) string {
			what := "optional"
			switch {
			case v.Sensitive:
				what = "sensitive, filled in by a person"
			case v.Required:
				what = "required"
			}
			return fmt.Sprintf("- %s (%s) %s %s", v.Name, what, v.Schema, v.Description)
		}), answer.FormURL, answer.Next), nil
}

// lines is an entry a line.
func lines[T any](list []T, line func(T) string) string {
	var text strings.Builder
	for i, entry := range list {
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(strings.TrimSpace(line(entry)))
	}
	return text.String()
}

// complete suggests the rest of a template's or a workspace's name.
func (s *Server) complete(ctx context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	result := &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}
	c, err := s.begin(r.Extra, r.ClientInfo())
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
	}
	begun := r.Params.Argument.Value
	offer := func(name string) {
		if strings.HasPrefix(name, begun) && len(result.Completion.Values) < mostEntries && plainName.MatchString(name) {
			result.Completion.Values = append(result.Completion.Values, name)
		}
	}
	switch {
	case r.Params.Argument.Name == "template" || r.Params.Ref != nil && strings.HasPrefix(r.Params.Ref.URI, "tendril://templates/"):
		page, err := c.api.TemplatePage(ctx, client.Part{Limit: 2 * mostEntries})
		if err != nil {
			return nil, err
		}
		for _, t := range page.Items {
			offer(t.Name)
		}
	case r.Params.Argument.Name == "workspace" || r.Params.Ref != nil && strings.HasPrefix(r.Params.Ref.URI, "tendril://workspaces/"):
		page, err := c.api.WorkspacePage(ctx, "", client.Part{Limit: 2 * mostEntries})
		if err != nil {
			return nil, err
		}
		for _, w := range page.Items {
			offer(w.Name)
		}
	}
	return result, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// inputFlags are what a person answers.
type inputFlags struct {
	outputs, machines []string
	file, failed      string
}

// maxAnswer is how large a file with an answer can be, in bytes.
const maxAnswer = 1 << 20

// answerFile is a file with an answer; what is secret in it is in the clear.
type answerFile struct {
	Outputs  map[string]json.RawMessage `json:"outputs"`
	Machines map[string]answerMachine   `json:"machines"`
}

type answerMachine struct {
	provision.InputFacts
	Credentials map[string]string `json:"credentials"`
}

func inputCommand(a *app) *cobra.Command {
	var f inputFlags
	var follow bool
	cmd := &cobra.Command{
		Use:   "input NUMBER|ID",
		Short: "Show what a person is to do, and say that it is done",
		Long: `Shows what a run of a manual template asks a person to do. With an answer it says
that the work is done, and an agent records that; with --failed, that it could not be.
A plan that is still being made is waited for.

Sensitive outputs and credentials are sealed to the cluster here, and leave this
machine so. A sensitive output that is not in --answer-file is asked for, without
showing it. The file has {"outputs": {NAME: VALUE}, "machines": {NAME: {"address",
"external_id", "ssh_port", "credentials": {NAME: TEXT}}}}.`,
		Example: `  trellis input 12
  trellis input 12 --set rack=B12 --machine db-1=192.0.2.7 --follow
  trellis input 12 --answer-file answer.json
  trellis input 12 --failed "no free rack"`,
		Args: one("a run's number or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(a, follow); err != nil {
				return err
			}
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if p.Input == nil && !p.Status.EndsRun() {
				if p, err = awaitRun(ctx, a, s, p.ID); err != nil { // it is still planning
					return err
				}
			}
			if p.Input == nil {
				return &problem.RefusedError{Code: "PT409", Reason: "not_awaiting_input", Message: fmt.Sprintf("run %d is %s and asks nothing of a person", p.Number, p.Status)}
			}
			if answers := len(f.outputs)+len(f.machines) > 0 || f.file != "" || f.failed != ""; !answers {
				return showInput(a, cmd, p)
			}
			answer, err := f.answer(ctx, a, s, p)
			if err != nil {
				return err
			}
			if _, err := s.GiveInput(ctx, p.ID, answer); err != nil {
				return err
			}
			switch {
			case a.json():
				return printStanding(ctx, a, s, p.ID)
			case follow:
				return followToEnd(ctx, a, s, cmd, p.ID, p.Number, false)
			}
			return a.print("Run %d has its answer, and an agent records it. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.outputs, "set", nil, "an output that is not sensitive, NAME=VALUE (repeatable)")
	flags.StringArrayVar(&f.machines, "machine", nil, "a machine and its IP address, NAME=ADDRESS (repeatable)")
	flags.StringVar(&f.file, "answer-file", "", `file with the answer as JSON, "-" for standard input`)
	flags.StringVar(&f.failed, "failed", "", "why the work could not be done")
	addFollow(a, cmd, &follow)
	return cmd
}

// showInput shows what is asked, and how it stands.
func showInput(a *app, cmd *cobra.Command, p wire.Provision) error {
	if a.json() {
		return a.printJSON(p.Input)
	}
	in := p.Input
	var text strings.Builder
	fmt.Fprintf(&text, "Run %d: %s on workspace %s, cluster %s\n", p.Number, p.Operation, p.Workspace, p.Cluster)
	switch {
	case in.Done != nil && *in.Done:
		fmt.Fprintf(&text, "%s said that it is done.\n", someone(in.AnsweredByName))
	case in.Done != nil:
		fmt.Fprintf(&text, "%s said that it could not be done: %s\n", someone(in.AnsweredByName), deref(in.Reason))
	case p.Status == provision.AwaitingInput:
		fmt.Fprintf(&text, "It waits until %s for a person to do this", in.ExpiresAt.Local().Format("2006-01-02 15:04"))
		if in.AssignedTo != nil {
			fmt.Fprintf(&text, "; it is for %s", someone(in.AssignedToName))
		}
		text.WriteString(".\n")
	}
	if in.Destroys {
		text.WriteString("To be undone: what these instructions asked for.\n")
	}
	fmt.Fprintf(&text, "\n%s\n", strings.TrimSpace(in.Instructions))
	if len(in.Machines) > 0 {
		text.WriteString("\nMachines\n")
	}
	for _, m := range in.Machines {
		line := m.Action + " " + m.Name
		for _, fact := range []struct {
			format string
			value  any
			is     bool
		}{
			{", %d cores", m.Cores, m.Cores > 0}, {", %d MiB", m.Memory, m.Memory > 0}, {", %d GiB disk", m.Disk, m.Disk > 0},
			{", image %s", m.Image, m.Image != ""}, {", pool %s", m.Pool, m.Pool != ""}, {", address %s", m.Address, m.Address != ""},
		} {
			if fact.is {
				line += fmt.Sprintf(fact.format, fact.value)
			}
		}
		if m.Known != nil {
			line += fmt.Sprintf(" (now %s)", strings.TrimSpace(m.Known.ExternalID+" "+m.Known.Address))
		}
		fmt.Fprintf(&text, "  %s\n", line)
	}
	if len(in.Outputs) > 0 {
		text.WriteString("\nOutputs to fill in\n")
	}
	for _, o := range in.Outputs {
		about := o.Type
		if o.Sensitive {
			about += ", sensitive"
		}
		fmt.Fprintf(&text, "  %s (%s)  %s\n", o.Name, about, o.Description)
	}
	if p.Status == provision.AwaitingInput {
		fmt.Fprintf(&text, "\nWhen it is done:      %s\nIf it can't be done:  %s\n",
			a.hint(cmd, fmt.Sprintf("input %d%s", p.Number, exampleFlags(in))), a.hint(cmd, fmt.Sprintf(`input %d --failed "why"`, p.Number)))
	}
	_, err := io.WriteString(a.out, a.out.fit(printable.Text(text.String())))
	return err
}

// exampleFlags are the flags of an answer to what is asked.
func exampleFlags(in *wire.Input) string {
	flags := ""
	for _, o := range in.Outputs {
		if !o.Sensitive {
			flags += " --set " + o.Name + "=…"
		}
	}
	for _, m := range in.Machines {
		if m.Action != "destroy" {
			flags += " --machine " + m.Name + "=ADDRESS"
		}
	}
	if flags == "" {
		flags = " --answer-file FILE"
	}
	return flags
}

func someone(name *string) string {
	if name == nil {
		return "somebody"
	}
	return *name
}

// answer puts the answer together, with what is secret in it sealed to the cluster.
func (f inputFlags) answer(ctx context.Context, a *app, s *client.Client, p wire.Provision) (provision.Input, error) {
	answer := provision.Input{Done: f.failed == "", Reason: f.failed, Outputs: map[string]json.RawMessage{}, Machines: map[string]provision.InputFacts{}}
	given, err := f.read(a)
	if err != nil {
		return answer, err
	}
	for _, text := range f.outputs {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return answer, wrongUsage("--set %s: write NAME=VALUE", text)
		}
		given.Outputs[name] = jsonText(value)
		for _, o := range p.Input.Outputs {
			if o.Name == name && o.Type != "string" && json.Valid([]byte(value)) {
				given.Outputs[name] = json.RawMessage(value)
			}
			if o.Name == name && o.Sensitive {
				return answer, wrongUsage("--set %s: it is sensitive, and a shell keeps what is typed; leave it out, and it is asked for", name)
			}
		}
	}
	for _, text := range f.machines {
		name, address, ok := strings.Cut(text, "=")
		if !ok {
			return answer, wrongUsage("--machine %s: write NAME=ADDRESS", text)
		}
		m := given.Machines[name]
		m.Address = address
		given.Machines[name] = m
	}
	for name := range given.Outputs { // before anything is sent: a secret under another name is one still
		if !slices.ContainsFunc(p.Input.Outputs, func(o provision.InputOutput) bool { return o.Name == name }) {
			return answer, wrongUsage("run %d asks for no output %q", p.Number, name)
		}
	}
	secrets := map[string]json.RawMessage{}
	for _, o := range p.Input.Outputs {
		value, told := given.Outputs[o.Name]
		if !o.Sensitive {
			continue
		}
		delete(given.Outputs, o.Name)
		if stdin, is := a.in.(*os.File); !told && answer.Done && is && term.IsTerminal(int(stdin.Fd())) {
			typed, err := readSecret(a, o.Name, "")
			if err != nil {
				return answer, err
			}
			value, told = jsonText(string(typed)), true
		}
		if told {
			secrets[provision.SealedOutput(o.Name)] = value
		}
	}
	answer.Outputs = given.Outputs
	for name, m := range given.Machines {
		answer.Machines[name] = m.InputFacts
		if len(m.Credentials) == 0 {
			continue
		}
		if secrets[provision.SealedMachine(name)], err = json.Marshal(m.Credentials); err != nil {
			return answer, fmt.Errorf("write the credentials of %s: %w", name, err)
		}
	}
	answer.Sealed, err = sealFor(ctx, s, p, secrets)
	return answer, err
}

// read reads the file with an answer, if one is given.
func (f inputFlags) read(a *app) (answer answerFile, err error) {
	answer = answerFile{Outputs: map[string]json.RawMessage{}, Machines: map[string]answerMachine{}}
	if f.file == "" {
		return answer, nil
	}
	text, err := readFile(a, f.file, "the answer", maxAnswer)
	if err != nil {
		return answer, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&answer); err != nil {
		return answer, wrongUsage("--answer-file: %v", err)
	}
	if answer.Outputs == nil || answer.Machines == nil {
		return answer, wrongUsage("--answer-file: outputs and machines must be objects")
	}
	return answer, nil
}

// sealFor seals what a person answers to the cluster of a run, each value for its own use.
func sealFor(ctx context.Context, s *client.Client, p wire.Provision, secrets map[string]json.RawMessage) (map[string]string, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	cluster, err := s.FindCluster(ctx, p.Cluster)
	if err != nil {
		return nil, err
	}
	key, _, err := sealRequest{}.recipient(&cluster)
	if err != nil {
		return nil, err
	}
	to, err := seal.ParseRecipient(key)
	if err != nil {
		return nil, fmt.Errorf("the key of the cluster %s: %w", cluster.Name, err)
	}
	sealed := map[string]string{}
	for name, value := range secrets {
		use := seal.Use{Cluster: cluster.Name, Workspace: p.Workspace, Repo: canonical.Address(p.Template.Repo), Name: name}
		if sealed[name], err = (seal.Variable{Use: use, Value: value}).Seal(to); err != nil {
			return nil, fmt.Errorf("%s cannot be sealed: %w", name, err)
		}
	}
	return sealed, nil
}

func assignCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "assign NUMBER|ID [WHO]",
		Short: "Say who is to do the work of a run",
		Long: `Says who is to do what a run of a manual template asks; without WHO, that anybody may.
It is said and not enforced: any operator can answer.`,
		Example: `  trellis assign 12 ada@example.com`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			var who wire.Member
			body, said := wire.AssignInputBody{}, "Anybody may do"
			if len(args) > 1 {
				if who, err = s.FindMember(ctx, args[1]); err != nil {
					return err
				}
				body.User, said = &who.UserID, args[1]+" is to do"
			}
			if err := s.AssignInput(ctx, p.ID, body); err != nil {
				return err
			}
			if a.json() {
				return printStanding(ctx, a, s, p.ID)
			}
			return a.print("%s the work of run %d.", said, p.Number)
		}),
	})
}

func commentCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "comment NUMBER|ID TEXT",
		Short:   "Add a comment to the log of a run",
		Long:    `Adds a line with your name to the log of a run that is not over.`,
		Example: `  trellis comment 12 "the rack is full until Monday"`,
		Args:    cobra.ExactArgs(2),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if err := s.Comment(ctx, p.ID, args[1]); err != nil {
				return err
			}
			if a.json() {
				return printStanding(ctx, a, s, p.ID)
			}
			return a.print("The log of run %d has your comment.", p.Number)
		}),
	})
}

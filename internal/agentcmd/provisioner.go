package agentcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/conformance"
	"github.com/tendril-run/tendril/internal/exitcode"
	"github.com/tendril-run/tendril/provisioner"
)

func provisionerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "provisioner",
		Short: "Check a provisioner, a program that makes machines",
		Long: `A provisioner is a program that makes machines when the agent asks it to. You can
write one in any language: docs/PROVISIONERS.md is the specification.`,
		Example: `  tendril provisioner test ./my-provisioner`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(provisionerTestCommand())
	return cmd
}

// suiteFlags are those of provisioner test.
type suiteFlags struct {
	form, output, machine, variables, inventory string
	timeout                                     time.Duration
	idempotent, list                            bool
	only                                        []string
}

func provisionerTestCommand() *cobra.Command {
	var flags suiteFlags
	cmd := &cobra.Command{
		Use:   "test COMMAND [ARG…]",
		Short: "Check a provisioner against the specification",
		Long: `Runs some forty cases against a provisioner and prints a line for each: ✓ for one
that passed, – for one that needs what the program doesn't offer, and ✗ for one
that failed, with what was sent, what came, what is wanted and what to do.

Each case starts COMMAND in a temporary directory of its own, with your
environment. An ARG that names a file here is found there, too. The program makes
machines and destroys them again: use an account that has nothing else in it.

Flags go before COMMAND. -o json prints one object: form, command, passed,
failed, skipped, and cases, each with name, status, milliseconds, and why or
problem.`,
		Example: `  tendril provisioner test ./my-provisioner
  tendril provisioner test --machine size.json python3 my_cloud.py
  tendril provisioner test --form once --idempotent ./my-script`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return testProvisioner(cmd, flags, args) },
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows COMMAND is its own
	f.StringVar(&flags.form, "form", "lines", "how the program speaks: lines or once")
	f.DurationVar(&flags.timeout, "timeout", time.Minute, "how long one request may take")
	f.StringVar(&flags.machine, "machine", "", "JSON file with each machine's image, cores, memory …")
	f.StringVar(&flags.variables, "variables", "", "JSON file with the template's variables")
	f.StringVar(&flags.inventory, "inventory", "", "shell command that lists the cloud's machines")
	f.BoolVar(&flags.idempotent, "idempotent", false, "with --form once: also repeat requests after a crash")
	f.StringArrayVar(&flags.only, "case", nil, "run only cases with this text in their name; repeatable")
	f.BoolVar(&flags.list, "list", false, "list the names of the cases, and run none")
	f.StringVarP(&flags.output, "output", "o", "text", "text or json")
	files := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	_ = cmd.RegisterFlagCompletionFunc("machine", files) // the flags are there
	_ = cmd.RegisterFlagCompletionFunc("variables", files)
	_ = cmd.RegisterFlagCompletionFunc("form", cobra.FixedCompletions([]string{"lines", "once"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// options turns flags into those of the suite.
func (f suiteFlags) options(command []string) (conformance.Options, error) {
	o := conformance.Options{
		Form: conformance.Form(f.form), Command: command, Timeout: f.timeout, Idempotent: f.idempotent, Inventory: f.inventory, Only: f.only,
		Machine: provisioner.Wanted{Image: "debian-13", Cores: 1, Memory: 1024, Disk: 10},
	}
	switch {
	case f.output != "text" && f.output != "json":
		return o, wrongOutput(f.output)
	case o.Form != conformance.Lines && o.Form != conformance.Once:
		return o, fmt.Errorf("invalid argument %q for \"--form\": it is lines or once", f.form)
	case f.timeout <= 0:
		return o, fmt.Errorf("invalid argument %q for \"--timeout\": it must be longer than 0", f.timeout)
	case len(command) == 0 && !f.list:
		return o, errors.New("COMMAND is missing: the program that is to be checked")
	}
	if f.machine != "" {
		o.Machine = provisioner.Wanted{}
		if err := readJSON("--machine", f.machine, &o.Machine); err != nil {
			return o, err
		}
	}
	if f.variables != "" {
		if err := readJSON("--variables", f.variables, &o.Variables); err != nil {
			return o, err
		}
	}
	for _, part := range f.only {
		if !slices.ContainsFunc(conformance.Names(o.Form), func(name string) bool { return strings.Contains(name, part) }) {
			return o, fmt.Errorf("invalid argument %q for \"--case\": no case of --form %s has that in its name; --list lists them", part, f.form)
		}
	}
	return o, nil
}

// readJSON reads a file that a flag names. Unknown fields are refused: they would be typing
// errors.
func readJSON(flag, file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%s: read %s: %w", flag, file, err)
	}
	return nil
}

func testProvisioner(cmd *cobra.Command, flags suiteFlags, command []string) error {
	o, err := flags.options(command)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if flags.list {
		_, err := fmt.Fprintln(out, strings.Join(conformance.Names(o.Form), "\n"))
		return err
	}
	var wrote error
	if flags.output == "text" {
		o.On = func(c conformance.CaseReport) { wrote = errors.Join(wrote, c.WriteText(out)) }
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := conformance.Run(ctx, o)
	switch {
	case err != nil && ctx.Err() != nil:
		return failure{errors.New("interrupted: the machines of the last case may be left"), exitcode.Interrupted}
	case err != nil:
		return failure{err, ExitFailure}
	case flags.output == "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		wrote = encoder.Encode(report)
	default:
		_, err := fmt.Fprintf(out, "\n%s\n", report.Summary())
		wrote = errors.Join(wrote, err)
	}
	if wrote != nil {
		return failure{fmt.Errorf("write the report: %w", wrote), ExitFailure}
	}
	if report.Failed > 0 {
		return failure{fmt.Errorf("%d of %d cases failed", report.Failed, len(report.Cases)), ExitFailure}
	}
	return nil
}

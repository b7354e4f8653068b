package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/githosts"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/version"
)

type doctorFlags struct {
	run    runFlags
	output string
	repos  []string
}

func doctorCommand() *cobra.Command {
	var flags doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything an agent needs and say what is wrong",
		Long: `Checks everything an agent needs: its configuration, data directory and disk,
its caches, the queue and its token, the clocks, the engine, the git servers, where states
are kept, and what a template could read here. Each thing that is wrong is
explained in a sentence, with what to do.

It takes less than 15 seconds and changes nothing, so it may run next to an agent
at work. Run it as the same user, with the same environment.

The exit code is 0 when nothing failed (there may be warnings), 1 when something
did. -o json prints one object:

  status    ok, warn or fail: the worst there is
  version   of this program
  checks    in order, each with name, status (ok, warn, fail, skipped), message,
            and action where there is something to do

Names of checks: configuration, data_dir, identity, disk, caches, states, queue,
token, contract, clock, name, publications, wakes, health, engine, allowlist,
git, backend, secrets, templates, metadata.`,
		Example: `  tendril doctor
  tendril doctor --repo https://github.com/acme/network -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return examine(cmd, flags) },
	}
	flags.run.add(cmd)
	cmd.Flags().StringVarP(&flags.output, "output", "o", "text", "text or json")
	cmd.Flags().StringArrayVar(&flags.repos, "repo", nil, "a repository to try, as well as those that policy.repos names whole; may be repeated")
	return cmd
}

func examine(cmd *cobra.Command, flags doctorFlags) error {
	if flags.output != "text" && flags.output != "json" {
		return wrongOutput(flags.output)
	}
	// Before the token is read, as the agent does it.
	if err := process.Undumpable(); err != nil {
		return failure{err, ExitFailure}
	}
	path, environ := flags.run.file(), os.Environ()
	settings, err := config.Load(path, append(environ, flags.run.environ(cmd)...))
	silent := settings
	silent.Queue.ListenURL = "off" // it is asked only
	report := doctor.Examine(cmd.Context(), doctor.Options{
		Version: version.String(), File: path, Config: settings, ConfigErr: err,
		Open: opener(silent, slog.New(slog.DiscardHandler)), Environ: environ, Repos: flags.repos,
		Git: func(ctx context.Context) (job.Git, error) { return gitWithHosts(ctx, settings) },
	})
	if err := writeReport(cmd.OutOrStdout(), report, flags.output); err != nil {
		return failure{fmt.Errorf("write the report: %w", err), ExitFailure}
	}
	if report.Failed() {
		return failure{fmt.Errorf("%d of %d checks failed", report.Count(doctor.Fail), len(report.Checks)), ExitFailure}
	}
	return nil
}

func writeReport(w io.Writer, report doctor.Report, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(report)
	}
	return report.WriteText(w, style(w))
}

// style suits what is written to. Away from a terminal lines stay whole, for
// grep.
func style(w io.Writer) doctor.Style {
	file, is := w.(*os.File)
	if !is {
		return doctor.Style{}
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return doctor.Style{}
	}
	return doctor.Style{
		Width:  int(size.Col),
		Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
	}
}

// gitWithHosts is how a run that began now would reach git servers. It is an
// error if a credential that is configured cannot be had.
func gitWithHosts(ctx context.Context, c config.Config) (job.Git, error) {
	git := c.Settings().Git
	git.Hosts = githosts.New(c.Git).Read(ctx)
	var problems []string
	for _, host := range git.Hosts {
		for _, problem := range []string{host.TokenProblem, host.KeyProblem} {
			if problem != "" {
				problems = append(problems, problem)
			}
		}
	}
	if len(problems) > 0 {
		return git, errors.New(strings.Join(problems, "; "))
	}
	return git, nil
}

package agentcmd

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/version"
)

// identityFlags say whose identity is meant.
type identityFlags struct {
	run  runFlags
	file string
}

func (f *identityFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.run.config, "config", "c", "", "TOML file with the agent's configuration (TENDRIL_CONFIG)")
	cmd.Flags().StringVar(&f.run.dataDir, "data-dir", "", "the agent's data directory (TENDRIL_DATA_DIR)")
}

// addFile is for what needs no agent.
func (f *identityFlags) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "the identity's file, in place of the agent's")
	_ = cmd.MarkFlagFilename("file")
}

// where are the data directory and the identity's file. Neither needs the agent's secrets.
func (f *identityFlags) where(cmd *cobra.Command) (dir, file string, err error) {
	if err := process.Undumpable(); err != nil { // before the identity is read
		return "", "", failure{err, ExitFailure}
	}
	if f.file != "" {
		return "", f.file, nil
	}
	part, err := f.part(cmd)
	if err != nil {
		return "", "", err
	}
	if file = part.IdentityFile; file == "" {
		file = filepath.Join(part.DataDir, identity.File)
	}
	return part.DataDir, file, nil
}

// part is what the agent's configuration says of its identity.
func (f *identityFlags) part(cmd *cobra.Command) (config.Config, error) {
	part, err := config.LoadPart(f.run.file(), append(os.Environ(), f.run.environ(cmd)...))
	if err != nil {
		return part, failure{err, ExitUsage}
	}
	return part, nil
}

// makeDataDir makes the data directory of an agent that has not started yet, if the identity
// is in it.
func makeDataDir(dir, file string) error {
	if dir == "" || file != filepath.Join(dir, identity.File) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failure{fmt.Errorf("make the data directory: %w", err), ExitFailure}
	}
	return nil
}

func identityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "Make, show, share and export the cluster's identity",
		Long: `The identity is the age key to which variables, plans and states of a cluster are
sealed. All agents of a cluster have the same one. An agent makes it at its first
start, in its data directory, or reads it from identity_file.

Keep a copy in a safe place ("tendril identity export"): what was sealed to an
identity that is lost can't be read any more.`,
		Example: `  tendril identity show
  tendril identity export --to identity.age --passphrase`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(identityNewCommand(), identityShowCommand(), identityShareCommand(), identityAcceptCommand(), identityCertifyCommand(), identityExportCommand(), identityImportCommand())
	return cmd
}

func identityNewCommand() *cobra.Command {
	var f identityFlags
	var rotate bool
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make an identity",
		Long: `Makes an identity in the agent's data directory or in identity_file, and prints its
public half. It replaces nothing: with --rotate it puts the new one before those
that are there, which go on opening what was sealed to them.

A running agent reads the file again with its next heartbeat.`,
		Example: `  tendril identity new --data-dir /var/lib/tendril
  tendril identity new --file identity
  tendril identity new --rotate`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			if err := makeDataDir(dir, file); err != nil {
				return err
			}
			create := identity.Create
			if rotate {
				create = identity.Rotate
			}
			made, err := create(file)
			if errors.Is(err, fs.ErrExist) {
				err = fmt.Errorf("%s exists. To put a new identity before those in it, add --rotate", file)
			}
			if err != nil {
				return failure{err, ExitFailure}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Identity written to %s\n%s", file, described(made[:1]))
			return err
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	cmd.Flags().BoolVar(&rotate, "rotate", false, "put the new identity before those of the file")
	return cmd
}

// described says the public half of an identity, and its fingerprint.
func described(one seal.Identities) string {
	return fmt.Sprintf("  public key   %s\n  fingerprint  %s\n               %s\n", one.Public(), identity.Fingerprint(one.Public()), seal.Fingerprint(one.Public()))
}

func identityShowCommand() *cobra.Command {
	var f identityFlags
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the public halves of the agent's identities",
		Long: `Shows the public halves of the agent's identities, the current one first, the
fingerprint of the agent's own key if it has joined by one, and, if the queue can
be reached, whether the cluster's key is one of them.`,
		Example: `  tendril identity show --config /etc/tendril/agent.toml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			all, err := identity.Read(file)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s does not exist. The agent makes it at its first start; to make it now: tendril identity new", file)
			}
			if err != nil {
				return failure{err, ExitFailure}
			}
			if err := f.show(cmd, dir, all); err != nil {
				return failure{fmt.Errorf("write the identities: %w", err), ExitFailure}
			}
			return nil
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	return cmd
}

func (f *identityFlags) show(cmd *cobra.Command, dir string, all seal.Identities) error {
	var text strings.Builder
	for n := range all {
		what := "Older identity"
		if n == 0 {
			what = "Current identity"
		}
		fmt.Fprintf(&text, "%s\n%s", what, described(all[n:n+1]))
	}
	key, err := agentkey.Load(dir)
	joined := dir != "" && err == nil
	if joined {
		fmt.Fprintf(&text, "This agent's own key\n  fingerprint  %s\n               %s\n", key.Words(), key.Fingerprint())
	}
	if dir != "" {
		standing, err := f.standing(cmd)
		switch {
		case err != nil:
			fmt.Fprintf(&text, "The cluster's key is not known: %v\n", err)
		case standing.ClusterKey == "":
			fmt.Fprintf(&text, "Cluster %s has no key yet: the first agent that registers sets it.\n", standing.ClusterName)
		case all.Public() == standing.ClusterKey:
			fmt.Fprintf(&text, "The current identity is that of cluster %s.\n", standing.ClusterName)
		case all.Holds(standing.ClusterKey):
			fmt.Fprintf(&text, "The identity of cluster %s is an older one: %s\n", standing.ClusterName, seal.Fingerprint(standing.ClusterKey))
		default:
			fmt.Fprintf(&text, "Cluster %s has another identity: %s\n", standing.ClusterName, seal.Fingerprint(standing.ClusterKey))
			if joined {
				fmt.Fprintf(&text, "On an agent that has it:\n  tendril identity share %s\nThen here, with the fingerprint that it prints:\n  tendril identity accept FINGERPRINT\n", key.Fingerprint())
			}
		}
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text.String())
	return err
}

// standing asks the database how this agent stands. It registers nothing.
func (f *identityFlags) standing(cmd *cobra.Command) (standing queue.Standing, err error) {
	err = f.withQueue(cmd, func(ctx context.Context, q queue.Queue) error {
		standing, err = q.Standing(ctx)
		return err
	})
	return standing, err
}

// queueTime is how long a command waits for the queue.
const queueTime = 30 * time.Second

// withQueue opens the queue as the agent does, which may be at work.
func (f *identityFlags) withQueue(cmd *cobra.Command, do func(context.Context, queue.Queue) error) error {
	settings, err := config.Load(f.run.file(), append(os.Environ(), f.run.environ(cmd)...))
	if err != nil {
		return err
	}
	settings.Queue.ListenURL = "off"
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	q, err := opener(settings, slog.New(slog.DiscardHandler))(queue.Agent{
		Instance: uuid.New(), Boot: uuid.New(), Name: settings.Name, Host: host, Version: version.String(), Contract: queue.Contract, Slots: 1,
	})
	if err != nil {
		return err
	}
	defer q.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), queueTime)
	defer cancel()
	return do(ctx, q)
}

func identityShareCommand() *cobra.Command {
	var f identityFlags
	cmd := &cobra.Command{
		Use:   "share FINGERPRINT",
		Short: "Share the cluster's identity with another agent",
		Long: `Seals this agent's identities to the key of another agent of the cluster, and leaves
them in the database for it, for 24 hours. FINGERPRINT is that of the other
agent's own key: read it on that agent's machine ("tendril identity show" or
"tendril join" there), as words or hexadecimal digits. Do not take it from a page
of the control plane: anyone who can change that page could name a key of their own.

Then enter the fingerprint that this prints on the other agent's machine:
"tendril identity accept". It takes the identity within a minute.`,
		Example: `  tendril identity share grid duck problem valid cloth roof rate wealth \
      --config /etc/tendril/agent.toml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			expected, err := agentkey.ParseFingerprint(strings.Join(args, " "))
			if err != nil {
				return err
			}
			dir, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			all, err := identity.Read(file)
			if err != nil {
				return failure{err, ExitFailure}
			}
			name, err := notedCluster(dir)
			if err != nil {
				return failure{err, ExitFailure}
			}
			var to ed25519.PublicKey
			if err := f.withQueue(cmd, func(ctx context.Context, q queue.Queue) error {
				to, err = share(ctx, q, all, expected, name, time.Now())
				return err
			}); err != nil {
				return failure{err, ExitFailure}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The identity of cluster %s is shared with the agent whose key is\n  %s\n  %s\nOn that agent's machine, within %d hours:\n  tendril identity accept %s\n",
				name, agentkey.Words(to), agentkey.Fingerprint(to), int(identity.ShareFor.Hours()), identity.Fingerprint(all.Public()))
			return err
		},
	}
	f.add(cmd)
	return cmd
}

// notedCluster is the name of the cluster that an agent has noted when it first registered:
// fs.ErrNotExist where it has not.
func notedCluster(dir string) (string, error) {
	name, err := os.ReadFile(filepath.Join(dir, "cluster"))
	if err != nil {
		return "", fmt.Errorf("read which cluster this agent belongs to (it notes that when it first registers): %w", err)
	}
	return strings.TrimSpace(string(name)), nil
}

// share seals identities to the agent whose key has the expected fingerprint, whatever key the
// database names.
func share(ctx context.Context, q queue.Queue, all seal.Identities, expected agentkey.Expected, cluster string, now time.Time) (ed25519.PublicKey, error) {
	standing, err := q.Standing(ctx)
	if err != nil {
		return nil, err
	}
	if err := agent.CheckSharing(standing, all, cluster); err != nil {
		return nil, err
	}
	to, err := q.AgentKey(ctx, expected.Prefix())
	if err != nil {
		return nil, err
	}
	if to == nil {
		return nil, errors.New("no agent of this cluster has joined with a key of that fingerprint")
	}
	if !expected.Matches(to) {
		return nil, errors.New("the database names a key with another fingerprint: somebody has changed it. Nothing was shared")
	}
	until := now.Add(identity.ShareFor)
	sealed, err := identity.Seal(all, to, cluster, until)
	if err != nil {
		return nil, err
	}
	return to, q.ShareIdentity(ctx, to, sealed, until)
}

func identityExportCommand() *cobra.Command {
	var f identityFlags
	var to string
	var passphrase bool
	cmd := &cobra.Command{
		Use:   "export --to FILE",
		Short: "Write a copy of the identities, for a safe place",
		Long: `Writes the agent's identities to a new file (0600), or to the standard output with
--to -. Anyone who has it reads every sealed variable, plan and state of the cluster.

With --passphrase it asks at the terminal for a passphrase and encrypts the copy;
"tendril identity import" and age read it.`,
		Example: `  tendril identity export --to identity.age --passphrase`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return errors.New("--to is missing: a file, or - for the standard output")
			}
			_, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			all, err := identity.Read(file)
			if err != nil {
				return failure{err, ExitFailure}
			}
			text := identity.Text(all)
			if passphrase {
				if text, err = encrypted(cmd, text); err != nil {
					return failure{err, ExitFailure}
				}
			} else {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "Warning: this is the cluster's private key in plain text. Anyone who reads it opens all that is sealed for the cluster.")
			}
			if to == "-" {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			} else if err = durable.CreateFile(to, []byte(text)); err == nil {
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "%d identities written to %s\n", len(all), to)
			}
			if err != nil {
				return failure{fmt.Errorf("write the copy: %w", err), ExitFailure}
			}
			return nil
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	cmd.Flags().StringVar(&to, "to", "", "the file to write, or - for the standard output")
	cmd.Flags().BoolVar(&passphrase, "passphrase", false, "encrypt with a passphrase, which is asked for at the terminal")
	_ = cmd.MarkFlagFilename("to")
	return cmd
}

func identityImportCommand() *cobra.Command {
	var f identityFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Put identities of an exported copy before the agent's own",
		Long: `Reads identities that "tendril identity export" has written, and puts them before
those that the agent has. It asks at the terminal for the passphrase of an
encrypted copy. A running agent reads them with its next heartbeat.`,
		Example: `  tendril identity import identity.age --data-dir /var/lib/tendril`,
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			if err := makeDataDir(dir, file); err != nil {
				return err
			}
			text, err := os.ReadFile(args[0])
			if err != nil {
				return failure{fmt.Errorf("read the copy: %w", err), ExitFailure}
			}
			if strings.HasPrefix(string(text), armor.Header) {
				if text, err = decrypted(cmd, text); err != nil {
					return failure{err, ExitFailure}
				}
			}
			first, err := seal.ParseIdentities(args[0], string(text))
			if err == nil {
				_, err = identity.Add(file, first)
			}
			if err != nil {
				return failure{err, ExitFailure}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The current identity in %s is now\n%s", file, described(first[:1]))
			return err
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	return cmd
}

// maxExport is the most bytes of a copy.
const maxExport = 64 << 10

// encrypted is a text for who knows a passphrase.
func encrypted(cmd *cobra.Command, text string) (string, error) {
	first, err := askPassphrase(cmd, "Passphrase (it is not shown): ")
	if err != nil {
		return "", err
	}
	again, err := askPassphrase(cmd, "The same again: ")
	if err != nil {
		return "", err
	}
	const shortest = 12 // bytes
	switch {
	case first != again:
		return "", errors.New("the two passphrases differ: nothing was written")
	case len(first) < shortest:
		return "", fmt.Errorf("the passphrase has %d bytes; use at least %d, several words", len(first), shortest)
	}
	recipient, err := age.NewScryptRecipient(first)
	if err != nil {
		return "", fmt.Errorf("use the passphrase: %w", err)
	}
	return seal.Armoured(recipient, []byte(text))
}

func decrypted(cmd *cobra.Command, text []byte) ([]byte, error) {
	passphrase, err := askPassphrase(cmd, "Passphrase of the copy (it is not shown): ")
	if err != nil {
		return nil, err
	}
	own, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, fmt.Errorf("use the passphrase: %w", err)
	}
	plain, err := seal.Open(text, maxExport, own)
	if err != nil {
		return nil, errors.New("the passphrase is wrong, or the copy is damaged")
	}
	return plain, nil
}

// askPassphrase reads a line from the terminal, and from nothing else: what stands in a pipe
// may stand in a shell's history.
func askPassphrase(cmd *cobra.Command, prompt string) (string, error) {
	stdin, is := cmd.InOrStdin().(*os.File)
	if !is || !term.IsTerminal(int(stdin.Fd())) {
		return "", errors.New("there is no terminal to ask for the passphrase")
	}
	_, _ = fmt.Fprint(cmd.ErrOrStderr(), prompt)
	line, err := term.ReadPassword(int(stdin.Fd()))
	_, _ = fmt.Fprintln(cmd.ErrOrStderr())
	if err != nil {
		return "", fmt.Errorf("read the passphrase: %w", err)
	}
	return string(line), nil
}

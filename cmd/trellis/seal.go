package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/seal"
)

// sealRequest is what the command line asks for.
type sealRequest struct {
	cluster, workspace string
	template, repo     string
	key, fingerprint   string
	valueFile          string
	isJSON             bool
}

func (a *app) sealCommand() *cobra.Command {
	var r sealRequest
	var out format
	cmd := &cobra.Command{
		Use:   "seal NAME --workspace NAME {--template NAME | --repo URL}",
		Short: "Seal a variable's value for the cluster's agents alone",
		Long: `Seals the value of the variable NAME to the key of a cluster, and prints the message
for the deploy's sealed_vars. Only the cluster's agents can open it, and only for that
variable, in that workspace, for a template of that repository. For another one seal
the value again. A workspace that was renamed is another one.

The value is read from standard input, from --value-file, or asked for without
showing it; never from the command line, which others on this machine can see. It is
text, from which one trailing newline is stripped, or with --json a number, text,
list or object. Every text and number in it needs 8 bytes: shorter ones could not be
kept out of logs.

The database says which key is the cluster's, and could name its own. Compare the
fingerprint with what "tendril doctor" says on the agent's machine, or pin the key:
with --fingerprint or --key another one is refused. With --key, --cluster and --repo
no database is asked.`,
		Example: `  trellis seal db_password --workspace acme/prod --template app \
      < password.txt > db_password.age
  trellis deploy --template app --workspace acme/prod \
      --sealed-var db_password=db_password.age
  trellis seal db_password --workspace acme/prod --template app --cluster prod \
      --fingerprint SHA256:2mUb… -o json > sealed.json
  trellis seal db_password --workspace acme/prod --cluster prod --key age1… \
      --repo https://github.com/acme/app`,
		Args: one("the variable's name"),
	}
	asked := a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
		cluster, err := s.FindCluster(ctx, r.cluster)
		if err != nil {
			return err
		}
		if r.template != "" {
			d := deployRequest{template: r.template}
			if err := fromCatalogue(ctx, s, &d); err != nil {
				return err
			}
			r.repo = d.repo
		}
		return a.seal(r, args[0], &cluster, out)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := r.check(); err != nil {
			return err
		}
		if r.alone() {
			return a.seal(r, args[0], nil, out)
		}
		return asked(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&r.cluster, "cluster", "", "name or id of the cluster; default: the only one")
	flags.StringVar(&r.workspace, "workspace", "", "name of the workspace, such as acme/prod, which need not exist yet")
	flags.StringVar(&r.template, "template", "", "template of the catalogue")
	flags.StringVar(&r.repo, "repo", "", "git repository of the template")
	flags.StringVar(&r.valueFile, "value-file", "", `file with the value, "-" for standard input`)
	flags.BoolVar(&r.isJSON, "json", false, "the value is JSON: a number, text, list or object")
	flags.StringVar(&r.key, "key", "", "the cluster's public key, age1…")
	flags.StringVar(&r.fingerprint, "fingerprint", "", "the fingerprint that the cluster's key must have, SHA256:…")
	addFormat(cmd, &out)
	return cmd
}

// alone reports whether no database has to be asked.
func (r sealRequest) alone() bool { return r.key != "" && r.cluster != "" && r.repo != "" }

// check says what is missing, before anything is asked or typed.
func (r sealRequest) check() error {
	switch _, notID := uuid.Parse(r.workspace); {
	case r.workspace == "":
		return wrongUsage("--workspace is missing: a value is sealed for one workspace, such as acme/prod")
	case notID == nil:
		return wrongUsage("--workspace must be the workspace's name: a value is sealed for that, not for its id")
	case canonical.WorkspaceProblem(r.workspace) != "":
		return wrongUsage("--workspace %s", canonical.WorkspaceProblem(r.workspace))
	case r.template == "" && r.repo == "":
		return wrongUsage("say for which template: --template NAME, or --repo URL")
	case r.template != "" && r.repo != "":
		return wrongUsage("--template brings its own repository: leave --repo out")
	}
	if _, err := canonical.ParseRepository(r.repo); r.repo != "" && err != nil {
		return wrongUsage("--repo: the address %v", err)
	}
	if _, notID := uuid.Parse(r.cluster); r.alone() && notID == nil {
		return wrongUsage("--cluster must be the cluster's name here: with --key and --repo no database is asked for it")
	}
	return nil
}

// seal seals to the key of the cluster, or to the one that was given.
func (a *app) seal(r sealRequest, name string, cluster *store.Cluster, out format) error {
	key, whose, err := r.recipient(cluster)
	if err != nil {
		return err
	}
	to, err := seal.ParseRecipient(key)
	if err != nil || !strings.HasPrefix(key, "age1") {
		return wrongUsage("the key must be a cluster's, age1…")
	}
	use := seal.Use{Cluster: r.cluster, Workspace: r.workspace, Repo: canonical.Address(r.repo), Name: name}
	if cluster != nil {
		use.Cluster = cluster.Name
	}
	value, err := a.secretValue(name, r)
	if err != nil {
		return err
	}
	message, err := seal.Variable{Use: use, Value: value}.Seal(to)
	if err != nil {
		return fmt.Errorf("%s cannot be sealed: %w", name, err)
	}
	a.say("Sealed for this use only:\n  variable   %s\n  workspace  %s\n  template   %s\n  cluster    %s\nto %s:\n  %s\n  %s",
		use.Name, use.Workspace, use.Repo, use.Cluster, whose, seal.Fingerprint(key), key)
	if r.key == "" && r.fingerprint == "" {
		a.say(`Compare it with what "tendril doctor" says on the agent's machine, or pin it by --fingerprint.`)
	}
	if out == "json" {
		return a.printJSON(map[string]string{name: message})
	}
	_, err = io.WriteString(a.out, message)
	return err
}

// recipient is the key to seal to, and whose it is. What the database says is
// held against what the person knows.
func (r sealRequest) recipient(cluster *store.Cluster) (key, whose string, err error) {
	key, whose = r.key, "the key that you gave"
	if cluster != nil {
		whose = "the key of the cluster " + cluster.Name
		switch {
		case cluster.AgePublicKey == "":
			return "", "", &store.RefusedError{
				Code: "PT409", Reason: "cluster_key_missing", Message: fmt.Sprintf("the cluster %s has no key yet", cluster.Name),
				Hint: "an agent brings one when it first registers; or give the key with --key",
			}
		case key != "" && key != cluster.AgePublicKey:
			return "", "", otherKey(cluster, seal.Fingerprint(key))
		}
		key = cluster.AgePublicKey
	}
	if got := seal.Fingerprint(key); r.fingerprint != "" && got != r.fingerprint {
		if cluster == nil {
			return "", "", wrongUsage("the fingerprint of --key is %s, not that of --fingerprint", got)
		}
		return "", "", otherKey(cluster, r.fingerprint)
	}
	return key, whose, nil
}

func otherKey(cluster *store.Cluster, wanted string) error {
	return fmt.Errorf("nothing was sealed: the database says that the key of the cluster %s has the fingerprint %s, not %s. "+
		"Ask who runs the agents what tendril doctor says there; if the key was changed on purpose, use the new fingerprint",
		cluster.Name, seal.Fingerprint(cluster.AgePublicKey), wanted)
}

// secretValue reads the value, which is shown to nobody.
func (a *app) secretValue(name string, r sealRequest) (json.RawMessage, error) {
	data, err := a.readSecret(name, r.valueFile)
	if err != nil {
		return nil, err
	}
	if r.isJSON {
		if !json.Valid(data) {
			return nil, wrongUsage("the value is not JSON; without --json it is taken as a text")
		}
		return json.RawMessage(data), nil
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	return jsonText(text), nil
}

func (a *app) readSecret(name, file string) ([]byte, error) {
	input := a.in
	if stdin, ok := a.in.(*os.File); ok && file == "" && term.IsTerminal(int(stdin.Fd())) {
		_, _ = fmt.Fprintf(a.err, "Value of %s (it is not shown): ", name)
		data, err := term.ReadPassword(int(stdin.Fd()))
		a.say("")
		if err != nil {
			return nil, fmt.Errorf("read the value: %w", err)
		}
		return data, nil
	}
	if file != "" && file != "-" {
		opened, err := os.Open(filepath.Clean(file))
		if err != nil {
			return nil, wrongUsage("--value-file: %v", err)
		}
		defer func() { _ = opened.Close() }()
		input = opened
	}
	data, err := io.ReadAll(io.LimitReader(input, seal.MaxVariable+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the value: %w", err)
	case len(data) > seal.MaxVariable:
		return nil, wrongUsage("the value has more than %d bytes, which is what a sealed one may have", seal.MaxVariable)
	}
	return data, nil
}

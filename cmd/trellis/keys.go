package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/personkey"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/trust"
)

// ownKey is the person's own, which is made where there is none.
func ownKey(a *app) (personkey.Key, error) {
	path := contexts.Path(a.getenv)
	if path == "" {
		return personkey.Key{}, errors.New("your key has no place: set HOME, XDG_CONFIG_HOME or TRELLIS_CONFIG")
	}
	k, made, err := personkey.LoadOrMake(filepath.Dir(path))
	if err == nil && made {
		a.say("Made your key, %s. Agents seal to it once their policy.requester_keys name it: %s keys", k.Path(), a.program)
	}
	return k, err
}

// keptKey is the person's own, if there is one. Nothing but what needs it makes it.
func keptKey(a *app) (k personkey.Key, kept bool, err error) {
	path := contexts.Path(a.getenv)
	if path == "" {
		return k, false, nil
	}
	k, err = personkey.Load(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return k, false, nil
	}
	return k, err == nil, err
}

// requester is whom a deploy names: as --requester-key says, else the person's own
// key, if there is one.
func requester(a *app, flag string) (string, error) {
	switch flag {
	case "none":
		return "", nil
	case "":
		k, kept, err := keptKey(a)
		if err != nil || !kept {
			return "", err
		}
		return k.Asks(time.Now()), nil
	}
	return flag, nil
}

// openSealed opens the outputs that are sealed to the person's own key, and counts them.
func openSealed(a *app, outputs map[string]provision.Output) (opened int, err error) {
	k, kept, err := keptKey(a)
	if err != nil || !kept {
		return 0, err
	}
	for name, o := range outputs {
		if o.Sealed == "" {
			continue
		}
		value, err := k.Open([]byte(o.Sealed), mostOutput)
		if err == nil && json.Valid(value) { // else it is sealed to somebody else
			o.Value, opened = value, opened+1
			outputs[name] = o
		}
	}
	return opened, nil
}

// mostOutput is the most bytes of a sensitive output.
const mostOutput = 16 << 20

func keysCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Show your key, and vouch for those of others",
		Long: `Shows your key, which is made at its first use and never leaves this machine. Agents
seal sensitive outputs and pulled states to it, and carry out the pushes and rollbacks
that you sign, if their operator says so: by naming your keys in policy.requester_keys,
or the fingerprint of the authority that certifies them (trellis keys certify).

A browser has a key of its own for what you deploy in the console: see the page Account.`,
		Example: `  trellis keys
  trellis keys certify age1… --name ada --workspaces 'acme/**' --days 90`,
		Args: none,
		RunE: func(*cobra.Command, []string) error {
			a.entered = true
			k, err := ownKey(a)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(map[string]string{
					"recipient": k.Recipient(), "signer": k.SignerKey(), "fingerprint": k.Fingerprint(), "certificate": k.Certificate, "file": k.Path(),
				})
			}
			lines := fmt.Sprintf("seal to      %s\nsigns as     %s\nfingerprint  %s", k.Recipient(), k.SignerKey(), k.Fingerprint())
			if c, err := trust.ParseCertificate(k.Certificate); k.Certificate != "" && err == nil {
				lines += fmt.Sprintf("\ncertificate  %s, for %v until %s", c.ID, c.Workspaces, c.Until.Format(time.DateOnly))
			}
			return a.print("%s", lines)
		},
	}
	addFormat(a, cmd)
	cmd.AddCommand(keysCertifyCommand(a), keysUseCommand(a))
	return cmd
}

func keysCertifyCommand(a *app) *cobra.Command {
	var c trust.Certificate
	var days int
	cmd := &cobra.Command{
		Use:   "certify RECIPIENT",
		Short: "Issue a certificate for somebody's key",
		Long: `Issues a certificate, signed with your key, for the key that somebody else's "trellis
keys" shows. It counts with agents whose policy.requester_keys name your fingerprint as
an authority. Give the certificate back to that person: it is no secret. To take it
back, add "revoked ID" to the agents' policy.requester_keys.`,
		Example: `  trellis keys certify age1… --signer 'ssh-ed25519 AAAA…' --name ada \
    --workspaces 'acme/**' --days 90`,
		Args: one("the key age1… that the other person's trellis keys shows"),
		RunE: func(_ *cobra.Command, args []string) error {
			a.entered = true
			k, err := ownKey(a)
			if err != nil {
				return err
			}
			c.Recipient, c.From = args[0], time.Now().Add(-5*time.Minute).UTC().Truncate(time.Second)
			c.Until = c.From.AddDate(0, 0, days)
			text, err := k.Certify(c)
			if err != nil {
				return wrongUsage("%v", err)
			}
			issued, err := trust.ParseCertificate(text)
			if err != nil {
				return err
			}
			a.say("Certificate %s for %s, until %s. Agents must name your key: authority %s", issued.ID, issued.Name, issued.Until.Format(time.DateOnly), k.Fingerprint())
			return a.answer(nil, map[string]any{"certificate": text, "content": issued}, "%s", text)
		},
	}
	addFormat(a, cmd)
	cmd.Flags().StringVar(&c.Signer, "signer", "", "the key ssh-ed25519 … with which that person signs; without it the certificate lets them sign no orders")
	cmd.Flags().StringVar(&c.Name, "name", "", "whose key it is, for people to read (required)")
	cmd.Flags().StringArrayVar(&c.Workspaces, "workspaces", nil, "pattern of workspaces, such as acme/** or 'acme/prod id=UUID' (required, repeatable)")
	cmd.Flags().IntVar(&days, "days", 90, "how long it counts")
	return cmd
}

func keysUseCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "use FILE",
		Short:   "Keep the certificate that somebody issued for your key",
		Long:    `Keeps a certificate for your key, "-" for standard input: runs that you ask for name it from then on.`,
		Example: `  trellis keys use certificate.txt`,
		Args:    one("a file with the certificate"),
		RunE: func(_ *cobra.Command, args []string) error {
			a.entered = true
			k, err := ownKey(a)
			if err != nil {
				return err
			}
			var text []byte
			if args[0] == "-" {
				text, err = io.ReadAll(io.LimitReader(a.in, trust.MaxText+2))
			} else {
				text, err = readMessage("FILE", args[0], trust.MaxText+1)
			}
			if err != nil {
				return err
			}
			c, err := k.Use(string(text))
			if err != nil {
				return wrongUsage("%v", err)
			}
			return a.answer(nil, c, "Your key is certified for %v until %s.", c.Workspaces, c.Until.Format(time.DateOnly))
		},
	})
}

// ordered adds the signed order without which no agent replaces a state.
func ordered(ctx context.Context, a *app, s *client.Client, w wire.WorkspaceDetail, c provision.StateCommand, digest string) (provision.StateCommand, error) {
	k, err := ownKey(a)
	if err != nil {
		return c, err
	}
	versions, err := s.StateVersions(ctx, w.ID)
	if err != nil {
		return c, err
	}
	order := trust.Order{
		Workspace: w.ID, Name: w.Name, Command: c.Command, Version: c.Version, Digest: digest, Certificate: k.Certificate,
		Until: time.Now().Add(7 * 24 * time.Hour).UTC().Truncate(time.Second),
	}
	for _, v := range versions {
		order.Over = max(order.Over, v.Version)
	}
	c.Order, err = k.Order(order)
	return c, err
}

// ownKeys are what the agent of this machine trusts: the keys of the person who starts
// it, and those that they certify. Without a home, or a key that may be used, there are
// none: all else works.
func ownKeys(a *app) []string {
	if contexts.Path(a.getenv) == "" {
		return nil
	}
	k, err := ownKey(a)
	if err != nil {
		a.say("Warning: sensitive outputs and states can't be fetched from this agent: %v", err)
		return nil
	}
	return []string{k.Recipient(), k.SignerKey(), "authority " + k.Fingerprint()}
}

// sealRequest is what the command line asks for.
type sealRequest struct {
	cluster, workspace string
	template, repo     string
	key, fingerprint   string
	valueFile          string
	isJSON             bool
}

func sealCommand(a *app) *cobra.Command {
	var r sealRequest
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
	asked := withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
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
		return sealValue(a, r, args[0], &cluster)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := r.check(); err != nil {
			return err
		}
		if r.alone() {
			return sealValue(a, r, args[0], nil)
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
	addFormat(a, cmd)
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

// sealValue seals to the key of the cluster, or to the one that was given.
func sealValue(a *app, r sealRequest, name string, cluster *wire.Cluster) error {
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
	value, err := secretValue(a, name, r)
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
	if a.json() {
		return a.printJSON(map[string]string{name: message})
	}
	_, err = io.WriteString(a.out, message)
	return err
}

// recipient is the key to seal to, and whose it is. What the database says is
// held against what the person knows.
func (r sealRequest) recipient(cluster *wire.Cluster) (key, whose string, err error) {
	key, whose = r.key, "the key that you gave"
	if cluster != nil {
		whose = "the key of the cluster " + cluster.Name
		switch {
		case cluster.AgePublicKey == "":
			return "", "", &problem.RefusedError{
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

func otherKey(cluster *wire.Cluster, wanted string) error {
	return fmt.Errorf("nothing was sealed: the database says that the key of the cluster %s has the fingerprint %s, not %s. "+
		"Ask who runs the agents what tendril doctor says there; if the key was changed on purpose, use the new fingerprint",
		cluster.Name, seal.Fingerprint(cluster.AgePublicKey), wanted)
}

// secretValue reads the value, which is shown to nobody.
func secretValue(a *app, name string, r sealRequest) (json.RawMessage, error) {
	data, err := readSecret(a, name, r.valueFile)
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

func readSecret(a *app, name, file string) ([]byte, error) {
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

// sealedFlags are the variables of a deploy that come sealed, and the key to
// which its sensitive outputs are.
type sealedFlags struct {
	vars, files  []string
	requesterKey string
}

func (f *sealedFlags) addFlags(cmd *cobra.Command) {
	f.addMessages(cmd)
	cmd.Flags().StringVar(&f.requesterKey, "requester-key", "", "public key, age1… or ssh-ed25519 AAAA…, or certificate, to which sensitive outputs are sealed; none for nobody; default: your own (trellis keys), if you have one")
}

// addMessages offers the variables alone.
func (f *sealedFlags) addMessages(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.vars, "sealed-var", nil, `variable as NAME=FILE with what "trellis seal NAME" printed (repeatable)`)
	flags.StringArrayVar(&f.files, "sealed-vars", nil, `file with what "trellis seal -o json" printed, one JSON object (repeatable)`)
}

// withSealed are messages of an earlier deploy, with those that were sealed again.
func withSealed(before, again map[string]string) map[string]string {
	all := maps.Clone(before)
	if all == nil {
		return again
	}
	maps.Copy(all, again)
	return all
}

// readToQueue checks -o against --follow, then returns the messages: how each verb begins
// that queues a run with sealed values.
func (f *sealedFlags) readToQueue(a *app, follow bool) (map[string]string, error) {
	if err := followOrJSON(a, follow); err != nil {
		return nil, err
	}
	return f.read()
}

// read returns the messages, files first, each beating what was before.
func (f *sealedFlags) read() (map[string]string, error) {
	sealed := map[string]string{}
	for _, name := range f.files {
		data, err := readMessage("--sealed-vars", name, seal.MaxVariables*seal.MaxVariable)
		if err != nil {
			return nil, err
		}
		var read map[string]string
		if json.Unmarshal(data, &read) != nil || read == nil { // not quoted: it may be no message
			return nil, wrongUsage("--sealed-vars %s: must hold one JSON object of names and messages", name)
		}
		maps.Copy(sealed, read)
	}
	for _, text := range f.vars {
		name, file, ok := strings.Cut(text, "=")
		if !ok || name == "" || file == "" {
			return nil, wrongUsage("--sealed-var must be NAME=FILE") // not echoed: it may be a secret
		}
		data, err := readMessage("--sealed-var "+name, file, seal.MaxVariable)
		if err != nil {
			return nil, err
		}
		sealed[name] = string(data)
	}
	if len(sealed) == 0 {
		return nil, nil
	}
	return sealed, nil
}

// readMessage reads a file of at most so many bytes. Its name is not told when
// it cannot be opened: somebody may have given the value in its place.
func readMessage(flag, name string, most int64) ([]byte, error) {
	file, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, wrongUsage("%s: names no file that can be read", flag)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	case int64(len(data)) > most:
		return nil, wrongUsage("%s: more than %d bytes", flag, most)
	}
	return data, nil
}

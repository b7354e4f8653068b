package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/contexts"
	"github.com/tendril-run/tendril/internal/controlplane/personkey"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/trust"
)

// key is the person's own, which is made where there is none.
func (a *app) key() (personkey.Key, error) {
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
func (a *app) keptKey() (k personkey.Key, kept bool, err error) {
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
func (a *app) requester(flag string) (string, error) {
	switch flag {
	case "none":
		return "", nil
	case "":
		k, kept, err := a.keptKey()
		if err != nil || !kept {
			return "", err
		}
		return k.Asks(time.Now()), nil
	}
	return flag, nil
}

// reveal opens the outputs that are sealed to the person's own key, and counts them.
func (a *app) reveal(outputs map[string]provision.Output) (opened int, err error) {
	k, kept, err := a.keptKey()
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

func (a *app) keysCommand() *cobra.Command {
	var out format
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
			k, err := a.key()
			if err != nil {
				return err
			}
			if out == "json" {
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
	addFormat(cmd, &out)
	cmd.AddCommand(a.keysCertifyCommand(), a.keysUseCommand())
	return cmd
}

func (a *app) keysCertifyCommand() *cobra.Command {
	var c trust.Certificate
	var days int
	var out format
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
			k, err := a.key()
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
			return a.answer(out, map[string]any{"certificate": text, "content": issued}, "%s", text)
		},
	}
	addFormat(cmd, &out)
	cmd.Flags().StringVar(&c.Signer, "signer", "", "the key ssh-ed25519 … with which that person signs; without it the certificate lets them sign no orders")
	cmd.Flags().StringVar(&c.Name, "name", "", "whose key it is, for people to read (required)")
	cmd.Flags().StringArrayVar(&c.Workspaces, "workspaces", nil, "pattern of workspaces, such as acme/** or 'acme/prod id=UUID' (required, repeatable)")
	cmd.Flags().IntVar(&days, "days", 90, "how long it counts")
	return cmd
}

func (a *app) keysUseCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "use FILE",
		Short:   "Keep the certificate that somebody issued for your key",
		Long:    `Keeps a certificate for your key, "-" for standard input: runs that you ask for name it from then on.`,
		Example: `  trellis keys use certificate.txt`,
		Args:    one("a file with the certificate"),
		RunE: func(_ *cobra.Command, args []string) error {
			a.entered = true
			k, err := a.key()
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
			return a.answer(out, c, "Your key is certified for %v until %s.", c.Workspaces, c.Until.Format(time.DateOnly))
		},
	}
	addFormat(cmd, &out)
	return cmd
}

// ordered adds the signed order without which no agent replaces a state.
func (a *app) ordered(ctx context.Context, s *client.Client, w store.Workspace, c provision.StateCommand, digest string) (provision.StateCommand, error) {
	k, err := a.key()
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
func (a *app) ownKeys() []string {
	if contexts.Path(a.getenv) == "" {
		return nil
	}
	k, err := a.key()
	if err != nil {
		a.say("Warning: sensitive outputs and states can't be fetched from this agent: %v", err)
		return nil
	}
	return []string{k.Recipient(), k.SignerKey(), "authority " + k.Fingerprint()}
}

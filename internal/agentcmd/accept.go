package agentcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/identity"
)

// parseCertifiers are the keys that an agent's configuration names.
func parseCertifiers(c config.Config) (identity.Certifiers, error) {
	certifiers, err := identity.ParseCertifiers(c.Policy.IdentityCertifiers)
	if err != nil {
		return nil, failure{err, ExitUsage}
	}
	return certifiers, nil
}

func identityAcceptCommand() *cobra.Command {
	var f identityFlags
	var certificate string
	cmd := &cobra.Command{
		Use:   "accept FINGERPRINT",
		Short: "Accept an identity that another agent shares",
		Long: `Notes which identity this agent takes when another agent shares it: the one whose
public half has this fingerprint. Read it where "tendril identity share" was run,
as words, hexadecimal digits, SHA256:… or the public half itself, age1….
The agent takes no other identity, whatever the database says.

With --certificate, a certificate of "tendril identity certify" names the identity
in place of FINGERPRINT. policy.identity_certifiers of this agent must name the key
that signed it. The running agent presents the certificate within a minute, and an
agent that has the identity and names that key too shares it.`,
		Example: `  tendril identity accept grid duck problem valid cloth roof rate wealth
  tendril identity accept --certificate certificate`,
		Args: func(cmd *cobra.Command, args []string) error {
			if certificate != "" {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			text := strings.Join(args, " ")
			if certificate == "" {
				if _, err := identity.ParseAccepted(text); err != nil {
					return err
				}
			}
			dir, file, err := f.where(cmd)
			if err != nil {
				return err
			}
			if file != filepath.Join(dir, identity.File) {
				return failure{fmt.Errorf("this agent's identity is in %s (identity_file): put the cluster's identity there", file), ExitFailure}
			}
			if err := makeDataDir(dir, file); err != nil {
				return err
			}
			if certificate != "" {
				return f.acceptCertificate(cmd, dir, certificate)
			}
			if err := identity.Accept(dir, text); err != nil {
				return failure{err, ExitFailure}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "Accepted. The running agent takes the identity within a minute after it was shared.")
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&certificate, "certificate", "", "the file of a certificate, in place of FINGERPRINT")
	_ = cmd.MarkFlagFilename("certificate")
	return cmd
}

// acceptCertificate verifies a certificate by this agent's own configuration and key, and has the
// agent present it.
func (f *identityFlags) acceptCertificate(cmd *cobra.Command, dir, file string) error {
	part, err := f.part(cmd)
	if err != nil {
		return err
	}
	certifiers, err := parseCertifiers(part)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return failure{fmt.Errorf("read the certificate: %w", err), ExitFailure}
	}
	key, err := agentkey.Load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("this agent has no key of its own, to which another agent could seal the identity: make it with tendril join")
	}
	if err != nil {
		return failure{err, ExitFailure}
	}
	line := strings.TrimSpace(string(text))
	c, err := certifiers.VerifyForAny(line, key.Public(), time.Now())
	if cluster, errNoted := notedCluster(dir); err == nil && !errors.Is(errNoted, fs.ErrNotExist) {
		// An agent that has yet to register compares when it presents the certificate.
		if err = errNoted; err == nil {
			_, err = certifiers.Verify(line, cluster, key.Public(), time.Now())
		}
	}
	if err != nil {
		return failure{fmt.Errorf("the certificate is refused: %w", err), ExitFailure}
	}
	if err := identity.AcceptCertificate(dir, line, c); err != nil {
		return failure{err, ExitFailure}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Accepted the certificate for cluster %s, which is valid until %s.\nThe running agent presents it within a minute, and takes the identity %s.\n", c.Cluster, c.Until.UTC().Format(time.RFC3339), c.Identity)
	return err
}

package agentcmd

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/secretfile"
)

func identityCertifyCommand() *cobra.Command {
	var key, cluster, public string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "certify FINGERPRINT",
		Short: "Sign that an agent may have the cluster's identity",
		Long: `Writes a certificate to the standard output: the agent whose own key has this
fingerprint may have the cluster's identity. It needs no agent and no queue: run it
where the certifying key is. FINGERPRINT is what "tendril join" and "tendril identity
show" print on the new agent's machine, as words or hexadecimal digits.

--key is an Ed25519 key of ssh-keygen, with or without a passphrase. Agents act on
its certificates if policy.identity_certifiers in their own configuration names its
public half. --identity is the fingerprint of the cluster's identity, which
"tendril identity show" prints on an agent that has it.

On the new agent's machine: "tendril identity accept --certificate FILE". A
certificate holds no secret, and can't be withdrawn: keep --valid short.`,
		Example: `  tendril identity certify grid duck problem valid cloth roof rate wealth \
    --key certifier --cluster prod --identity age1… > certificate`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, value := range map[string]string{"key": key, "cluster": cluster, "identity": public} {
				if value == "" {
					return fmt.Errorf("--%s is missing", name)
				}
			}
			if valid <= 0 || valid > identity.MaxCertificate {
				return fmt.Errorf("--valid must be at most %s", identity.MaxCertificate)
			}
			fingerprint := strings.Join(args, " ")
			if _, err := agentkey.ParseFingerprint(fingerprint); err != nil {
				return err
			}
			if _, err := identity.ParseAccepted(public); err != nil {
				return fmt.Errorf("--identity: %w", err)
			}
			if err := process.Undumpable(); err != nil { // before the key is read
				return failure{err, ExitFailure}
			}
			private, err := certifyingKey(cmd, key)
			if err != nil {
				return failure{fmt.Errorf("--key: %w", err), ExitFailure}
			}
			now := time.Now().Truncate(time.Second).UTC()
			text, err := identity.Certificate{
				Cluster: cluster, Key: fingerprint, Identity: strings.TrimSpace(public), From: now, Until: now.Add(valid),
			}.Sign(private)
			if err != nil {
				return failure{err, ExitFailure}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "file of the private key that signs")
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of the cluster")
	cmd.Flags().StringVar(&public, "identity", "", "the identity's public half (age1…), or its fingerprint in quotes")
	cmd.Flags().DurationVar(&valid, "valid", identity.CertificateFor, "how long the certificate is valid, at most 168h")
	_ = cmd.MarkFlagFilename("key")
	return cmd
}

// certifyingKey reads a private key in the format of ssh-keygen or in PKCS#8, and asks at the
// terminal for its passphrase if it has one.
func certifyingKey(cmd *cobra.Command, path string) (ed25519.PrivateKey, error) {
	text, err := secretfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	parsed, err := ssh.ParseRawPrivateKey([]byte(text))
	if _, encrypted := errors.AsType[*ssh.PassphraseMissingError](err); encrypted {
		var passphrase string
		if passphrase, err = askPassphrase(cmd, "Passphrase of the key (it is not shown): "); err != nil {
			return nil, err
		}
		if parsed, err = ssh.ParseRawPrivateKeyWithPassphrase([]byte(text), []byte(passphrase)); err != nil {
			return nil, fmt.Errorf("the passphrase of %s is wrong, or the file is damaged", path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s holds no private key", path) // the parser's words may quote
	}
	switch k := parsed.(type) {
	case *ed25519.PrivateKey:
		return *k, nil
	case ed25519.PrivateKey:
		return k, nil
	}
	return nil, fmt.Errorf("%s holds a key that is not Ed25519: make one with ssh-keygen -t ed25519", path)
}

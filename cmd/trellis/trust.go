package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

func clustersTrustCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "trust [NAME|ID]",
		Short:   "Let pods join by their Kubernetes service account",
		Example: `  trellis clusters trust prod`,
		Args:    atMostOne("a cluster's name or id"),
	}
	list := formatted(a, &cobra.Command{
		Use:     "list [NAME|ID]",
		Short:   "List trusted service accounts; default: the only cluster's",
		Example: `  trellis clusters trust list prod`,
		Args:    atMostOne("a cluster's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			c, err := s.FindCluster(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			all, err := s.TrustedIssuers(ctx, c.ID)
			return listing(&a.printer, all, err, "Cluster "+c.Name+" trusts no service account.", "ID\tISSUER\tAUDIENCE\tSERVICE ACCOUNTS\tKEYS\tLAST USED\tENDS", func(t wire.TrustedIssuer) []any {
				return []any{t.ID, t.Issuer, t.Audience, strings.Join(t.Subjects, ", "), strings.Join(t.KeyIDs, ", "), at(t.LastUsedAt), at(t.ExpiresAt)}
			})
		}),
	})
	cmd.AddCommand(clustersTrustAddCommand(a), list, clustersTrustRemoveCommand(a))
	listAlone(cmd)
	return cmd
}

func clustersTrustAddCommand(a *app) *cobra.Command {
	var trust wire.TrustIssuerInputBody
	var accounts []string
	var jwks string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "add NAME|ID",
		Short: "Trust service accounts of a Kubernetes cluster",
		Long: `Lets pods of a Kubernetes cluster's service accounts join a cluster without a person,
and prints the audience that their tokens must be for (queue.join.serviceAccount.audience
of the chart).

The Kubernetes cluster is known by its issuer and its public keys. --keys names a file or
an https:// URL with them; default: as the issuer publishes them, asked from here. Neither
the server nor agents ask the issuer later, so say this again when its keys change; it
replaces what was said of the same issuer and audience.`,
		Example: `  kubectl get --raw /openid/v1/jwks > jwks.json
  trellis clusters trust add prod --keys jwks.json \
    --issuer https://kubernetes.default.svc.cluster.local \
    --service-account tendril/tendril`,
		Args: one("a cluster's name or id"),
		RunE: about(a, (*client.Client).FindCluster, func(ctx context.Context, s *client.Client, cmd *cobra.Command, c wire.Cluster) error {
			if trust.Issuer == "" || len(accounts) == 0 {
				return wrongUsage("give --issuer and --service-account: the claim iss of a pod's token, and NAMESPACE/NAME")
			}
			for _, account := range accounts {
				namespace, name, is := strings.Cut(account, "/")
				if !is || namespace == "" || name == "" {
					return wrongUsage("--service-account %q: must be NAMESPACE/NAME", account)
				}
				trust.Subjects = append(trust.Subjects, "system:serviceaccount:"+namespace+":"+name)
			}
			if cmd.Flags().Changed("valid") {
				seconds := int64(valid.Seconds())
				trust.Valid = &seconds
			}
			var err error
			if trust.Keys, err = issuerKeys(ctx, trust.Issuer, jwks); err != nil {
				return err
			}
			made, err := s.TrustIssuer(ctx, c.ID, trust)
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printJSON(made)
			}
			a.say("Pods of %s may join cluster %s with tokens for this audience:", strings.Join(accounts, ", "), c.Name)
			return a.print("%s", made.Audience)
		}),
	}
	cmd.Flags().StringVar(&trust.Issuer, "issuer", "", "issuer of the tokens, as their claim iss has it")
	cmd.Flags().StringArrayVar(&accounts, "service-account", nil, "NAMESPACE/NAME of a service account; may be repeated")
	cmd.Flags().StringVar(&jwks, "keys", "", "file or https:// URL with the issuer's keys (JWKS); default: asks the issuer")
	cmd.Flags().StringVar(&trust.Audience, "audience", "", "audience of the tokens, with the cluster's id in it; default: tendril:ID")
	cmd.Flags().DurationVar(&valid, "valid", 0, "how long agents may join by it, from 1m; default: for good")
	addFormat(a, cmd)
	return cmd
}

func clustersTrustRemoveCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "remove NAME|ID TRUST-ID",
		Short: "Trust service accounts no more",
		Long: `Lets no more pods join by these service accounts. Agents that have joined stay: end
their keys with "trellis clusters keys revoke".`,
		Example: `  trellis clusters trust remove prod 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
		Args:    each("a cluster", "the id of what it trusts"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[1])
			if err != nil {
				return wrongUsage("%q is no id: trellis clusters trust list %s", args[1], args[0])
			}
			c, err := s.FindCluster(ctx, args[0])
			if err != nil {
				return err
			}
			return a.answer(s.UntrustIssuer(ctx, c.ID, id), map[string]any{"cluster": c.Name, "id": id, "trusted": false}, "Cluster %s no longer trusts %s.", c.Name, id)
		}),
	})
}

const (
	issuerTime  = 30 * time.Second
	issuerBytes = 256 << 10 // of an issuer's answer
)

// issuerKeys are an issuer's public keys, from a file, a URL or as the issuer publishes them.
func issuerKeys(ctx context.Context, issuer, from string) (map[string]any, error) {
	var text []byte
	var err error
	switch {
	case from == "":
		var about struct {
			Issuer string `json:"issuer"`
			Keys   string `json:"jwks_uri"`
		}
		if text, err = fetch(ctx, strings.TrimRight(issuer, "/")+"/.well-known/openid-configuration"); err == nil {
			err = json.Unmarshal(text, &about)
		}
		if err == nil && about.Issuer != issuer {
			err = fmt.Errorf("it calls itself %q", about.Issuer)
		}
		if err != nil {
			return nil, fmt.Errorf("ask the issuer for its keys: %w; give them with --keys, as kubectl get --raw /openid/v1/jwks prints them", err)
		}
		text, err = fetch(ctx, about.Keys)
	case strings.HasPrefix(from, "https://"):
		text, err = fetch(ctx, from)
	default:
		text, err = os.ReadFile(from)
	}
	var set jose.JSONWebKeySet
	if err == nil {
		err = json.Unmarshal(text, &set)
	}
	if err == nil && len(set.Keys) == 0 {
		err = errors.New("there are none")
	}
	for i := range set.Keys {
		if err == nil && (!set.Keys[i].Valid() || !set.Keys[i].IsPublic()) {
			err = fmt.Errorf("key %q is no public key", set.Keys[i].KeyID)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the issuer's keys: %w", err)
	}
	// What else stands in there is not sent.
	plain, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("write the issuer's keys: %w", err)
	}
	var keys map[string]any
	return keys, json.Unmarshal(plain, &keys)
}

// fetch reads a small document over HTTPS.
func fetch(ctx context.Context, url string) ([]byte, error) {
	if !strings.HasPrefix(url, "https://") {
		return nil, fmt.Errorf("%q does not begin with https://", url)
	}
	ctx, cancel := context.WithTimeout(ctx, issuerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	asking := &http.Client{CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if r.URL.Scheme != "https" || len(via) > 3 {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	response, err := asking.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return io.ReadAll(http.MaxBytesReader(nil, response.Body, issuerBytes))
}

package agentcmd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/secretfile"
	"github.com/tendril-run/tendril/internal/version"
)

// askEvery is how often an agent that waits asks whether it has joined: it is to be online within a
// second of the yes.
const askEvery = 500 * time.Millisecond

func joinCommand(launch OpenLauncher) *cobra.Command {
	var flags runFlags
	var cluster, token string
	cmd := &cobra.Command{
		Use:   "join URL",
		Short: "Join a cluster by key, then claim provisions as tendril run does",
		Long: `Makes a key for this agent, shows a short code and the key's fingerprint, and waits
until an admin types the code with "trellis clusters join". Then
it continues as "tendril run" does. The key stays in the data directory, and later starts
need no more than "tendril run".

The URL is that of trellis serve. What else the agent needs may stand in its
configuration, as for "tendril run".

With --yes-with it joins without a person, by a one-time token of "trellis clusters
join-token".`,
		Example: `  tendril join https://trellis.example
  tendril join https://trellis.example --cluster prod \
    --yes-with /run/secrets/join-token`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Before a key is there: nobody of this uid may look into us then.
			if err := process.Undumpable(); err != nil {
				return failure{err, ExitFailure}
			}
			environ := append(os.Environ(), "TENDRIL_QUEUE_URL="+args[0])
			settings, err := config.LoadToJoin(flags.file(), append(environ, flags.environ(cmd)...))
			if err != nil {
				return failure{err, ExitUsage}
			}
			if token != "" {
				if settings.Queue.JoinToken, err = joinToken(token); err != nil {
					return failure{fmt.Errorf("--yes-with: %w", err), ExitUsage}
				}
			}
			ctx, stop := untilSignalled(cmd.Context(), func() {})
			err = (&joiner{settings: settings, cluster: cluster, waits: func(s rpcwire.JoinStanding, key agentkey.Key) {
				showCode(cmd, settings.Queue.URL, s, key)
			}}).join(ctx)
			stopped := ctx.Err() != nil
			stop()
			switch {
			case err != nil && stopped:
				return failure{errors.New("stopped before an admin let the agent join"), ExitFailure}
			case err != nil:
				return failure{err, ExitFailure}
			}
			return run(cmd, launch, flags, "TENDRIL_QUEUE_URL="+args[0])
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&cluster, "cluster", "", "name of the cluster to join; default: the admin chooses")
	cmd.Flags().StringVar(&token, "yes-with", "", "one-time join token, or a file with it: join without a person")
	return cmd
}

// joinToken is a token, or what a file has. Arguments are seen by all of a machine, so a file is
// better, and a token that is used at once does little harm.
func joinToken(text string) (config.Secret, error) {
	if token, err := config.JoinTokenIn(text); err == nil {
		return token, nil
	}
	read, err := secretfile.Read(text)
	if err != nil {
		return config.Secret{}, fmt.Errorf("is no join token and no file: %w", err)
	}
	return config.JoinTokenIn(read)
}

func showCode(cmd *cobra.Command, url string, s rpcwire.JoinStanding, key agentkey.Key) {
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), `This agent waits to join.

  Code         %s
  Fingerprint  %s

An admin of the cluster lets it in, and compares the fingerprint:

  TRELLIS_URL=%s trellis clusters join %s

The code is valid for %d minutes.

`, s.Code, key.Words(), strings.TrimRight(url, "/"), s.Code, s.Seconds/int(time.Minute/time.Second))
}

// joiner makes an agent's key one of a cluster.
type joiner struct {
	settings config.Config
	cluster  string // that it wants; "": any
	// waits shows a code. Nil where there is a token.
	waits func(rpcwire.JoinStanding, agentkey.Key)
}

// join returns when the key has joined, and is remembered.
func (j *joiner) join(ctx context.Context) error {
	key, err := j.key()
	if err != nil {
		return err
	}
	ask := j.ask
	if j.settings.Queue.AccountToken.Reveal() != "" {
		// A key that counts needs no token: the issuer may be trusted no more.
		ask = j.status
	}
	standing, err := ask(ctx, key)
	if err == nil && standing.Status == rpcwire.JoinExpired {
		standing, err = j.ask(ctx, key) // it has never asked
	}
	if err == nil && standing.Status == rpcwire.JoinRevoked {
		// A revoked key counts no more anywhere, so nothing is lost with it.
		if err := os.Remove(filepath.Join(j.settings.DataDir, agentkey.File)); err != nil {
			return fmt.Errorf("remove the agent's revoked key: %w", err)
		}
		if key, err = j.key(); err != nil {
			return err
		}
		standing, err = j.ask(ctx, key)
	}
	switch {
	case err != nil:
		return err
	case standing.Status == rpcwire.JoinRefused:
		return errors.New("an admin has refused this agent")
	case standing.Status != rpcwire.JoinJoined:
		return fmt.Errorf("the control plane answers that this agent's key is %q", standing.Status)
	}
	return config.Joined{URL: j.settings.Queue.URL, ClusterID: standing.ClusterID, ClusterName: standing.ClusterName}.Remember(j.settings.DataDir)
}

// key is the agent's key, which it makes where there is none.
func (j *joiner) key() (agentkey.Key, error) {
	if err := os.MkdirAll(j.settings.DataDir, 0o700); err != nil {
		return agentkey.Key{}, fmt.Errorf("make the data directory: %w", err)
	}
	key, err := agentkey.Create(j.settings.DataDir)
	if errors.Is(err, fs.ErrExist) {
		return agentkey.Load(j.settings.DataDir)
	}
	return key, err
}

func (j *joiner) open(key agentkey.Key) (*rpcqueue.Queue, error) {
	return rpcqueue.New(rpcqueue.Options{
		URL: j.settings.Queue.URL, APIKey: j.settings.Queue.APIKey, CAFile: j.settings.Queue.CAFile, Key: key.Private(), Agent: queue.Agent{Version: version.String()},
	})
}

// status asks whether the key has joined.
func (j *joiner) status(ctx context.Context, key agentkey.Key) (rpcwire.JoinStanding, error) {
	q, err := j.open(key)
	if err != nil {
		return rpcwire.JoinStanding{}, err
	}
	defer q.Close()
	return patiently(ctx, func() (rpcwire.JoinStanding, error) { return q.JoinStatus(ctx) })
}

// ask asks to join, as often as codes expire, until that is decided.
func (j *joiner) ask(ctx context.Context, key agentkey.Key) (rpcwire.JoinStanding, error) {
	q, err := j.open(key)
	if err != nil {
		return rpcwire.JoinStanding{}, err
	}
	defer q.Close()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	slots, _ := j.settings.RunsAtOnce()
	request := rpcwire.JoinRequest{
		Name: j.settings.Name, Host: host, Version: version.String(), Slots: slots, Operations: j.settings.Policy.Operations, Cluster: j.cluster, TokenHash: hashOf(j.settings.Queue.JoinToken.Reveal()),
		AccountToken: j.settings.Queue.AccountToken.Reveal(),
	}
	for {
		standing, err := patiently(ctx, func() (rpcwire.JoinStanding, error) { return q.RequestJoin(ctx, request) })
		if err != nil || standing.Status != rpcwire.JoinWaiting || j.waits == nil {
			return standing, err
		}
		j.waits(standing, key)
		for standing.Status == rpcwire.JoinWaiting {
			if !retry.Sleep(ctx, askEvery) {
				return standing, ctx.Err()
			}
			if standing, err = patiently(ctx, func() (rpcwire.JoinStanding, error) { return q.JoinStatus(ctx) }); err != nil {
				return standing, err
			}
		}
		if standing.Status != rpcwire.JoinExpired {
			return standing, nil
		}
	}
}

// patiently asks again while the control plane is away or busy: a pod may be there before it.
func patiently(ctx context.Context, ask func() (rpcwire.JoinStanding, error)) (rpcwire.JoinStanding, error) {
	const longest = 10 * time.Second
	for soon := retry.Between(askEvery, longest); ; {
		standing, err := ask()
		if err == nil || queue.KindOf(err) != queue.Unavailable || !retry.Sleep(ctx, queue.Wait(err, soon.NextBackOff())) {
			return standing, err
		}
	}
}

// hashOf is what is sent of a token; "" of none.
func hashOf(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// joinByToken has an agent that starts join with its one-time token, or that of its service account,
// and returns its settings as they are with the key.
func joinByToken(ctx context.Context, settings config.Config, log *slog.Logger, again func() (config.Config, error)) (config.Config, error) {
	by := "a one-time token"
	if settings.Queue.AccountToken.Reveal() != "" {
		by = "a service account"
	}
	log.Info("joining by "+by, "url", settings.Queue.URL)
	if err := (&joiner{settings: settings}).join(ctx); err != nil {
		return settings, err
	}
	return again()
}

// settleRotation ends a rotation of the key during which the agent was killed: the next key is
// taken where the database knows it, and removed where it doesn't. It returns the settings as
// they are then.
func settleRotation(ctx context.Context, settings config.Config, log *slog.Logger, again func() (config.Config, error)) (config.Config, error) {
	next, err := agentkey.Pending(settings.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return settings, nil
	}
	if err != nil {
		return settings, err
	}
	log.Info("the agent was ended while it replaced its key: asking which one counts", "url", settings.Queue.URL)
	standing, err := (&joiner{settings: settings}).status(ctx, next)
	if err != nil {
		return settings, fmt.Errorf("ask whether the agent's next key counts: %w", err)
	}
	if standing.Status != rpcwire.JoinJoined {
		return settings, agentkey.Abandon(settings.DataDir)
	}
	if err := agentkey.Promote(settings.DataDir); err != nil {
		return settings, err
	}
	return again()
}

package agentcmd

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/tracing"
	"github.com/tendril-run/tendril/internal/version"
)

// reach is how a runner reaches the queue.
type reach struct {
	URL       string `json:"url"`
	ListenURL string `json:"listen_url,omitempty"`
	APIKey    string `json:"api_key,omitempty"`
	CA        string `json:"ca,omitempty"` // PEM
	Signs     bool   `json:"signs,omitempty"`
}

// reachOf is how this agent reaches the queue.
func reachOf(q config.Queue) (json.RawMessage, error) {
	r := reach{URL: q.URL, APIKey: q.APIKey, Signs: q.Key != nil}
	var err error
	if !q.OverHTTP() {
		if r.URL, err = q.URLNow(); err != nil {
			return nil, err
		}
		if r.ListenURL = q.ListenURL; q.ListenURL != "" && q.ListenURL != "off" {
			if r.ListenURL, err = q.ListenURLNow(); err != nil {
				return nil, err
			}
		}
	}
	if q.CAFile != "" {
		pem, err := os.ReadFile(q.CAFile)
		if err != nil {
			return nil, fmt.Errorf("queue.ca_file: %w", err)
		}
		r.CA = string(pem)
	}
	return json.Marshal(r) //nolint:gosec // it goes into an order, which is sealed
}

// newRunner are the secrets that a runner makes for itself, and their public halves.
type newRunner struct {
	identity seal.Identities
	key      ed25519.PrivateKey
	token    string
}

func makeRunner() (r newRunner, err error) {
	if r.identity, err = seal.Generate(); err != nil {
		return r, err
	}
	if _, r.key, err = ed25519.GenerateKey(nil); err != nil {
		return r, fmt.Errorf("make a key: %w", err)
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	r.token = base64.RawURLEncoding.EncodeToString(secret)
	return r, nil
}

func (r newRunner) hello() agent.Hello {
	return agent.Hello{
		Recipient: r.identity.Public(), Token: queue.RunnerToken(r.token),
		Key: queue.RunnerKey(r.key.Public().(ed25519.PublicKey)),
	}
}

// runnerCommand is what a Job's pod runs. It is no use to people: without an agent that hands a run
// over to it, it waits.
func runnerCommand() *cobra.Command {
	var order, from, dataDir string
	var patience time.Duration
	cmd := &cobra.Command{
		Use:    "runner",
		Short:  "Carry out the one run that an agent hands over to this process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := process.Undumpable(); err != nil {
				return failure{err, ExitFailure}
			}
			if err := runner(cmd, order, from, dataDir, patience); err != nil {
				return failure{err, ExitFailure}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&order, "order", "", "file that will hold the order, sealed")
	cmd.Flags().StringVar(&from, "from", "", "key that signs the order, in hexadecimal")
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "empty directory of this run alone")
	cmd.Flags().DurationVar(&patience, "wait", 15*time.Minute, "how long the order is waited for")
	return cmd
}

func runner(cmd *cobra.Command, path, signer, dataDir string, patience time.Duration) error {
	from, err := hex.DecodeString(signer)
	if err != nil || len(from) != ed25519.PublicKeySize {
		return errors.New("--from: must be an Ed25519 key of 64 hexadecimal digits")
	}
	made, err := makeRunner()
	if err != nil {
		return err
	}
	line, err := json.Marshal(made.hello())
	if err != nil {
		return fmt.Errorf("write the first line: %w", err)
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", line); err != nil {
		return fmt.Errorf("write the first line: %w", err)
	}
	log := newLogger(cmd.ErrOrStderr(), config.Config{LogFormat: "json"})
	var running atomic.Pointer[agent.Agent]
	ctx, stop := untilSignalled(cmd.Context(), func() {
		if a := running.Load(); a != nil {
			a.StopNow()
		}
	})
	defer stop()
	o, err := awaitOrder(ctx, path, from, patience, made.identity)
	if err != nil {
		return err
	}
	getenv := func(name string) string {
		if value := os.Getenv(name); value != "" {
			return value
		}
		for _, entry := range o.Telemetry {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value
			}
		}
		return ""
	}
	tracer, err := tracing.Start("tendril", version.String(), getenv, log)
	if err != nil {
		return err
	}
	defer tracer.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's file: %w", err)
	}
	say := func(notes []byte) { _, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s%s\n", agent.NotesPrefix, notes) }
	env := config.OverEnv(o.Env, o.PassEnv, os.Environ())
	a := agent.New(agent.Options{
		DataDir: dataDir, Name: o.Agent.Name, Version: version.String(), Slots: 1, DrainTimeout: o.DrainTimeout,
		Open: made.opener(o, dataDir, log), Command: append([]string{self}, sibling(cmd, "exec")...), Env: env, UIDs: "off",
		Settings: o.Job.Settings, Log: log, Tracer: tracer, Noted: say,
		SharedCaches: func(dirs job.Dirs) []caches.Cache { return executor.SharedCaches(dirs, o.Job.Settings.Engine) },
		EngineMark:   executor.EngineMark,
	})
	running.Store(a)
	notes, err := a.CarryOut(ctx, o)
	if len(notes) > 0 {
		say(notes)
	}
	return err
}

// lookForOrder is how often the order is looked for: nothing tells of a volume that is renewed.
const lookForOrder = 20 * time.Millisecond

// awaitOrder waits until the file is there, and opens it.
func awaitOrder(ctx context.Context, path string, from ed25519.PublicKey, patience time.Duration, own seal.Identities) (agent.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		sealed, err := os.ReadFile(path)
		if err == nil {
			return agent.ReadOrder(sealed, from, own.Open)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return agent.Order{}, fmt.Errorf("read the order: %w", err)
		}
		if !retry.Sleep(ctx, lookForOrder) {
			return agent.Order{}, fmt.Errorf("no order came in %s: the agent that had this runner started is gone, or could not hand the run over", patience)
		}
	}
}

// opener opens the queue as the order says, with the runner's own credential.
func (r newRunner) opener(o agent.Order, dataDir string, log *slog.Logger) func(queue.Agent) (queue.Queue, error) {
	return func(a queue.Agent) (queue.Queue, error) {
		var way reach
		if err := json.Unmarshal(o.Reach, &way); err != nil {
			return nil, fmt.Errorf("read how the queue is reached: %w", err)
		}
		if strings.HasPrefix(way.URL, "postgres") {
			return pgqueue.New(context.Background(), pgqueue.Options{URL: way.URL, ListenURL: way.ListenURL, Token: r.token, Agent: a, Log: log})
		}
		options := rpcqueue.Options{URL: way.URL, APIKey: way.APIKey, Token: r.token, Agent: a, Log: log}
		if way.Signs {
			options.Token, options.Key = "", r.key
		}
		if way.CA != "" {
			options.CAFile = filepath.Join(dataDir, "queue-ca.pem")
			if err := durable.WriteFile(options.CAFile, []byte(way.CA)); err != nil {
				return nil, fmt.Errorf("leave the queue's certificates: %w", err)
			}
		}
		return rpcqueue.New(options)
	}
}

package rpcgateway

import (
	"cmp"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tendril-run/tendril/internal/pgurl"
)

// Defaults of Options.
const (
	// DefaultMaxConns leaves two of 16 connections, to the listener and to what
	// trellis does on a timer.
	DefaultMaxConns         = 14
	DefaultMaxBody          = 8 << 20 // 1 MiB of log, each byte of it escaped, and what is around it
	DefaultMaxCalls         = 256
	DefaultStatementTimeout = 5 * time.Second
	DefaultLockTimeout      = 2 * time.Second
	DefaultRate             = 300
)

// bodyBudget is how many bytes of request bodies may be held at once.
const bodyBudget = 256 << 20

// Options say how to serve.
type Options struct {
	// DatabaseURL connects as a role that may act as anon.
	DatabaseURL string
	// DatabaseURLNow is asked for it again before each connection; nil: it stays.
	DatabaseURLNow pgurl.Source
	// Functions are the only ones served; nil: those of an agent.
	Functions []string
	// MaxConns bounds the connections to the database, whatever the number of
	// agents, besides the one that listens.
	MaxConns int
	MaxBody  int64
	// MaxCalls bounds the calls under way; further ones are asked to come back.
	MaxCalls int
	// StatementTimeout and LockTimeout bound each call in the database.
	StatementTimeout, LockTimeout time.Duration
	// Rate is how many requests a second one address may make, in bursts of
	// twice as many. Negative: any number.
	Rate float64
	// TrustedProxies are believed what they say in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	// APIKey must be sent where it is set. It is public in the sense that each
	// agent has it, and no substitute for the agent's token.
	APIKey string
	Log    *slog.Logger
	// LogAll logs calls that succeeded as well.
	LogAll bool
	// Called, if set, is told of each call that was answered; function is "" where it
	// is none of those served.
	Called func(function string, status int, took time.Duration)
}

// agentFunctions are what an agent may call.
func agentFunctions() []string {
	return []string{
		"check_agent", "register_agent", "agent_heartbeat", "fetch_next_provision",
		"insert_provision_log", "update_provision_status", "fail_orphaned_provisions",
		"put_blob", "get_blob",
	}
}

func (o Options) complete() (Options, error) {
	if o.DatabaseURL == "" || o.Log == nil {
		return o, errors.New("rpcgateway: DatabaseURL and Log are required")
	}
	if o.Functions == nil {
		o.Functions = agentFunctions()
	}
	o.MaxConns = cmp.Or(o.MaxConns, DefaultMaxConns)
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxCalls = cmp.Or(o.MaxCalls, DefaultMaxCalls)
	o.StatementTimeout = cmp.Or(o.StatementTimeout, DefaultStatementTimeout)
	o.LockTimeout = cmp.Or(o.LockTimeout, DefaultLockTimeout)
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	return o, nil
}

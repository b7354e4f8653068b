package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/dirlock"
)

const (
	// registerLimit is how long a new agent may take to register.
	registerLimit = 30 * time.Second
	// lookEvery is how often a starting agent is looked for.
	lookEvery = 50 * time.Millisecond
)

// startAgent starts the agent and returns when it has registered.
func (s *Stack) startAgent(ctx context.Context, queueURL string) (err error) {
	done := s.report.Step("Agent")
	config, err := writeAgentConfig(s.options, s.name, queueURL)
	if err != nil {
		return err
	}
	logFile := s.options.path("agent.log")
	if err := rotateLog(logFile); err != nil {
		return err
	}
	if err := s.awaitEarlierAgent(ctx); err != nil {
		return err
	}
	before, err := s.boot(ctx)
	if err != nil {
		return err
	}
	var offset int64
	if info, err := os.Stat(logFile); err == nil {
		offset = info.Size()
	}
	command := append(append([]string{}, s.options.AgentCommand...), "--config", config)
	s.agent = startAgentProcess(command, agentEnv(os.Environ()), logFile, s.report)
	if err := s.awaitBoot(ctx, before); err != nil {
		s.agentLog = followLog(logFile, func(string) {}) // the error says it all
		if words := lastWords(logFile, offset); words != "" && ctx.Err() == nil {
			err = fmt.Errorf("%w: %s", err, words)
		}
		return err
	}
	s.agentLog = followLog(logFile, func(text string) { s.report.Note("agent: " + text) })
	done(fmt.Sprintf("%s, %d slots", s.name, s.options.Slots))
	return nil
}

// boot returns the boot id that the agent registered last with, nil for none.
func (s *Stack) boot(ctx context.Context) (id uuid.UUID, err error) {
	err = s.db.QueryRow(ctx, "SELECT boot_id FROM public.agents WHERE cluster_id = $1 AND name = $2 ORDER BY registered_at DESC LIMIT 1",
		s.home.cluster, s.name).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, fmt.Errorf("look for the agent: %w", err)
	}
	return id, nil
}

func (s *Stack) awaitBoot(ctx context.Context, before uuid.UUID) error {
	limit := time.NewTimer(registerLimit)
	defer limit.Stop()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now, err := s.boot(ctx)
		if err != nil || now != before {
			return err
		}
		select {
		case <-tick.C:
		case <-s.agent.firstEnd:
			return errors.New("the agent could not start")
		case <-limit.C:
			return fmt.Errorf("the agent has not registered within %s; its log is %s", registerLimit, s.agent.logFile)
		case <-ctx.Done():
			return fmt.Errorf("start the agent: %w", context.Cause(ctx))
		}
	}
}

// awaitEarlierAgent waits for the agent of a Stack that was killed: it goes on
// with what it had in hand, and has the agent's data directory until then.
func (s *Stack) awaitEarlierAgent(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for told := false; ; {
		holder, inUse := dirlock.InUse(s.options.path("agent"))
		if !inUse {
			return nil // other trouble the agent itself explains
		}
		if !told {
			told = true
			s.report.Note(fmt.Sprintf("An agent of an earlier start (%s) is still finishing what it runs: waiting for it", holder))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for an earlier agent: %w", context.Cause(ctx))
		}
	}
}

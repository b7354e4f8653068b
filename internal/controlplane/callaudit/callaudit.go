// Package callaudit keeps in the audit what API tokens call: each call of a tool for language models,
// and how many calls were refused because there were too many.
//
//	tools  ── Call ────▶ one record each (the tools bound how many)
//	tools, signin ── Refused ─▶ counted, one record a token and minute
//
// The records are the control plane's own words, written in its name: the function that writes them
// is for no role of outsiders. What is counted is lost with the process, so at most a minute's.
//
// The package must not know what a call means, nor decide what anybody may do.
package callaudit

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// DefaultEvery is how often a server records the refused calls of one token.
	DefaultEvery = time.Minute
	// writeLimit is how long a record may take.
	writeLimit = 10 * time.Second
	// mostTokens is how many tokens are counted at once. What others are refused meanwhile is in
	// the log alone.
	mostTokens = 10_000
)

// Audit writes records until Close. It is safe for concurrent use.
type Audit struct {
	database *store.Database
	log      *slog.Logger
	every    time.Duration

	mu      sync.Mutex
	counted map[uuid.UUID]*refused // by token
	writing sync.WaitGroup
	closed  bool
}

// refused are the calls of a token that were refused since its last record.
type refused struct {
	person uuid.UUID
	org    string
	calls  int
	since  time.Time
	timer  *time.Timer
}

// New returns an Audit that records so often how many calls of a token were refused.
func New(database *store.Database, log *slog.Logger, every time.Duration) *Audit {
	return &Audit{database: database, log: log, every: every, counted: map[uuid.UUID]*refused{}}
}

// Call records a call of a tool by a person's API token. org is the organisation that they named, by
// its id or name; "": none. Detail is what the record has, as JSON.
func (a *Audit) Call(ctx context.Context, by person.Person, org string, detail any) error {
	return a.write(ctx, by.ID, by.TokenID, org, "tool_call", detail)
}

// Refused counts a call of a token that was refused because there were too many.
func (a *Audit) Refused(by person.Person, org string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.counted[by.TokenID]
	switch {
	case r != nil:
		r.calls++
		return
	case a.closed || len(a.counted) >= mostTokens:
		a.log.Warn("a call was refused, and is not in the audit", "token", by.TokenID, "person", by.ID)
		return
	}
	r = &refused{person: by.ID, org: org, calls: 1, since: time.Now()}
	a.writing.Add(1)
	r.timer = time.AfterFunc(a.every, func() { defer a.writing.Done(); a.flush(by.TokenID) })
	a.counted[by.TokenID] = r
}

// flush records what a token was refused.
func (a *Audit) flush(token uuid.UUID) {
	a.mu.Lock()
	r := a.counted[token]
	delete(a.counted, token)
	a.mu.Unlock()
	detail := map[string]any{"calls": r.calls, "since": r.since.UTC().Format(time.RFC3339), "reason": "too_many_calls"}
	if err := a.write(context.Background(), r.person, token, r.org, "calls_refused", detail); err != nil {
		a.log.Error("refused calls could not be audited", "token", token, "calls", r.calls, "error", err)
	}
}

// Close records what is counted, and counts no more.
func (a *Audit) Close() {
	a.mu.Lock()
	a.closed = true
	var due []uuid.UUID
	for token, r := range a.counted {
		if r.timer.Stop() {
			due = append(due, token)
		}
	}
	a.mu.Unlock()
	for _, token := range due {
		a.flush(token)
		a.writing.Done()
	}
	a.writing.Wait()
}

func (a *Audit) write(ctx context.Context, user, token uuid.UUID, org, action string, detail any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	// What no text of the database can hold names no organisation.
	org = strings.ReplaceAll(strings.ToValidUTF8(org, ""), "\x00", "")
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return a.database.OwnerDoes(ctx, "record the call", "SELECT tendril.record_calls($1, $2, $3, $4, $5::text::jsonb)", user, token, org, action, string(text))
}

package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// Clusters is how many clusters have series of their own.
	Clusters = 200
	// askedEvery is how long an answer of the database is given again, whoever
	// scrapes and how often; a failure as well. One that took long is given for
	// costs times as long: watching must not be what a database is busy with.
	askedEvery = 5 * time.Second
	costs      = 50
	// askLimit bounds the question: who scrapes is answered within it, whether the
	// database answers or not.
	askLimit = 2 * time.Second
)

// Ask asks the database for tendril.statistics(clusters), as JSON.
type Ask func(ctx context.Context, clusters int) ([]byte, error)

// statistics is what tendril.statistics() answers.
type statistics struct {
	Contract  int       `json:"contract"`
	Migration int       `json:"migration"`
	Clusters  []cluster `json:"clusters"`
	Omitted   int       `json:"omitted"`
	// Statuses has how many provisions are of each status that is no end.
	Statuses      map[string]int `json:"statuses"`
	OverdueLeases int            `json:"overdue_leases"`
	Webhooks      struct {
		Waiting int     `json:"waiting"`
		Overdue float64 `json:"overdue"`
	} `json:"webhooks"`
	DatabaseBytes float64 `json:"database_bytes"`
	LogBytes      float64 `json:"log_bytes"`
}

type cluster struct {
	ID       string `json:"id"`
	Paused   bool   `json:"paused"`
	Queued   int    `json:"queued"`
	Runnable int    `json:"runnable"`
	Running  int    `json:"running"`
	// Seconds; null where nothing waits.
	Oldest         *float64 `json:"oldest"`
	OldestRunnable *float64 `json:"oldest_runnable"`
	Online         int      `json:"online"`
	Stale          int      `json:"stale"`
	Offline        int      `json:"offline"`
	Slots          int      `json:"slots"`
	// Usage is how much of each bound is used, by its name; 1 is all of it.
	Usage map[string]float64 `json:"usage"`
}

// answers keeps the newest answer of a database.
type answers struct {
	ask   Ask
	every time.Duration

	mu    sync.Mutex // held while the database is asked: all others want that answer
	until time.Time
	now   *statistics // nil: there is none
	up    bool        // the database answers
}

// get returns the newest answer, nil where there is none that is true now.
func (a *answers) get() (now *statistics, up bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.until) {
		return a.now, a.up
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	began := time.Now()
	now, err := a.fetch(ctx)
	a.now, a.up = now, err == nil || refused(err)
	a.until = time.Now().Add(max(a.every, costs*time.Since(began)))
	if err != nil {
		a.until = time.Now().Add(a.every)
	}
	return a.now, a.up
}

func (a *answers) fetch(ctx context.Context) (*statistics, error) {
	text, err := a.ask(ctx, Clusters)
	if err != nil {
		return nil, err
	}
	now := &statistics{}
	if err := json.Unmarshal(text, now); err != nil {
		return nil, fmt.Errorf("read the database's statistics: %w", err)
	}
	return now, nil
}

// refused reports whether it is the database itself that answers an error: it is
// there, though it may not have the function yet. One that starts or ends says so in
// class 57.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && len(pg.Code) == 5 && pg.Code[:2] != "57"
}

package sql_test

import (
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// brokenStages are the provisions whose stages do not go with their status. One
// stage is open at most: that which the status says, or the one that the run has
// told. Attempts are counted without a gap, and each begins with queued.
const brokenStages = `
	SELECT p.id || ' is ' || p.status || ' in the stages ' || coalesce(s.listed, 'none')
	FROM public.provisions p LEFT JOIN LATERAL (
	  SELECT count(*) FILTER (WHERE ended_at IS NULL) AS open, max(attempt || stage) FILTER (WHERE ended_at IS NULL) AS now,
	         max(attempt) AS attempts, count(*) FILTER (WHERE stage = 'queued') AS queued, count(*) FILTER (WHERE stage = 'done') AS done,
	         coalesce(bool_or(ended_at < started_at), false) AS backwards, string_agg(attempt || stage || CASE WHEN ended_at IS NULL THEN '…' ELSE '' END, ' ' ORDER BY attempt, started_at) AS listed
	  FROM public.provision_stages WHERE provision_id = p.id) s ON true
	WHERE NOT coalesce(s.open = CASE WHEN p.status IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN 0 ELSE 1 END
	                   AND CASE p.status WHEN 'QUEUED' THEN s.now = s.attempts || 'queued' WHEN 'AWAITING_APPROVAL' THEN s.now = s.attempts || 'approval' ELSE true END
	                   AND s.attempts = s.queued AND s.done = (p.status = 'SUCCESS')::int AND NOT s.backwards, false)`

// stageRules holds the stages to the statuses.
func (m *model) stageRules(rt *rapid.T) {
	rows, err := m.conn.Query(m.ctx, brokenStages)
	if err != nil {
		rt.Fatalf("read the stages: %v", err)
	}
	broken, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		rt.Fatalf("read the stages: %v", err)
	}
	for _, provision := range broken {
		rt.Errorf("rule broken: %s", provision)
	}
}

-- How much one call, one deploy, one queue and one log may be, and how long a
-- call may wait. What is beyond a limit is refused with the limit and the size;
-- only of a log, whose agent could do nothing about it, the rest is left out.

SELECT tendril.lock_tables('tendril.settings, tendril.log_heads');
ALTER TABLE tendril.settings
  -- The most that is kept of one provision's log, in bytes. An agent keeps 64 MiB
  -- by itself, and a provision that awaits approval has a run before it and one
  -- after: so what an agent sends fits, unless its run.log_limit is set higher.
  ADD COLUMN log_limit   bigint NOT NULL DEFAULT 256 * 1024 * 1024 CHECK (log_limit > 0),
  -- The most provisions that people may have queued in one workspace.
  ADD COLUMN queue_limit int    NOT NULL DEFAULT 1000 CHECK (queue_limit > 0);
-- Whether the log has reached its limit.
ALTER TABLE tendril.log_heads ADD COLUMN cut boolean NOT NULL DEFAULT false;

-- A call that hangs is ended by the server before its agent gives it up. Only
-- for who logs in as this very role: members have to be given it themselves.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting WHERE setrole = 'tendril_agent'::regrole AND setdatabase = 0) THEN
    ALTER ROLE tendril_agent SET statement_timeout = '15s';
  END IF;
EXCEPTION
  -- Somebody else made the role; or another database of the server migrates now.
  WHEN insufficient_privilege OR unique_violation OR internal_error THEN NULL;
END $$;

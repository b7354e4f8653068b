-- Supabase Realtime and pg_cron.

-- Adds Tendril's tables to the publication of Supabase Realtime, which it creates if there is none.
-- Answers the statements that another role must run. Tables in the publication already stay as they
-- are.
CREATE OR REPLACE FUNCTION tendril.publish_changes() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Where there is no logical replication the server warns that there is none.
SET client_min_messages = error
AS $$
BEGIN
  SELECT string_agg('public.' || t.name, ', ' ORDER BY t.name) INTO statement
  FROM unnest(ARRAY['clusters', 'provisions', 'provision_events', 'provision_logs', 'provision_progress', 'provision_stages']) t (name)
  WHERE NOT EXISTS (SELECT FROM pg_publication_tables p
                    WHERE p.pubname = 'supabase_realtime' AND p.schemaname = 'public' AND p.tablename = t.name);
  IF statement IS NULL THEN
    RETURN;
  END IF;
  SELECT CASE WHEN r.rolsuper THEN r.rolname ELSE 'a superuser' END INTO run_as
  FROM pg_publication p JOIN pg_roles r ON r.oid = p.pubowner WHERE p.pubname = 'supabase_realtime';
  IF FOUND THEN
    statement := 'ALTER PUBLICATION supabase_realtime ADD TABLE ' || statement;
  ELSE
    statement := 'CREATE PUBLICATION supabase_realtime FOR TABLE ' || statement;
    run_as := 'a superuser';
  END IF;
  EXECUTE statement;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;

-- Schedules Tendril's jobs with pg_cron, where it is installed. Answers the statements that another
-- role must run. A job of the same name stays as it is, unless an earlier release wrote its
-- command.
CREATE OR REPLACE FUNCTION tendril.schedule_jobs() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_job   record;
  v_there record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
    RETURN;
  END IF;
  statement := format('GRANT USAGE ON SCHEMA cron TO %I', current_user);
  run_as := 'a superuser';
  FOR v_job IN VALUES ('tendril-reap', 'SELECT tendril.reap()'), ('tendril-drift', 'SELECT tendril.queue_drift()'), ('tendril-inspect', 'SELECT tendril.hand_inspections()'),
    ('tendril-expire', 'SELECT tendril.expire()'), ('tendril-usage', 'SELECT tendril.measure_usage()'), ('tendril-logs', 'SELECT tendril.archive_logs(), tendril.delete_logs()') LOOP
    SELECT * INTO v_there FROM cron.job WHERE jobname = v_job.column1 AND database = current_database();
    IF NOT FOUND THEN
      PERFORM cron.schedule(v_job.column1, '* * * * *', v_job.column2);
    ELSIF v_there.command = 'SELECT tendril.expire_blobs()' THEN
      PERFORM cron.schedule(v_job.column1, v_there.schedule, v_job.column2);
    END IF;
  END LOOP;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;

-- Uses what the platform offers: Realtime, pg_cron and revoking rights of agents' logins. May be
-- called again when the platform offers more.
--
-- Arguments: none.
-- Answers: a row for each statement that is left for another role:
--   run_as     who must run it
--   statement  the statement
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.fit_platform() RETURNS TABLE (run_as text, statement text)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT * FROM tendril.publish_changes()
  UNION ALL
  SELECT * FROM tendril.schedule_jobs()
  UNION ALL
  SELECT * FROM tendril.close_to_agents()
$$;

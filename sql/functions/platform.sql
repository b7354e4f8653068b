-- What a platform offers besides Postgres: Realtime and pg_cron.

-- Has Realtime tell of our tables: they are added to its publication, which is made if there
-- is none. What only another role may do is returned. Tables that are in it already, by
-- whatever way, stay as they are there. With the stages.
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

-- Has pg_cron, where it is installed, do what no agent may be there to do. A job of that name
-- stays as it is, but one that says what an earlier version wrote says what this one does.
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

-- Uses what the platform offers, and returns the statements that are left for another role to
-- run. To be called again when it has come to offer more.
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

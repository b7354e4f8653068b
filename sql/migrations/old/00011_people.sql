-- What people may do beyond asking for a deploy and cancelling it: approve or
-- reject a plan, try again, lock a workspace, pause a cluster, and say who
-- belongs to an organisation. Each asks for the caller's role first, with one
-- answer for "there is none" and "not yours", and is audited.

-- Locks tables that a migration changes: all at once or none, as in migration
-- 10, for the functions that run meanwhile take them in orders of their own.
CREATE FUNCTION tendril.lock_tables(p_tables text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
BEGIN
  FOR i IN 1..150 LOOP
    BEGIN
      EXECUTE 'LOCK TABLE ' || p_tables || ' IN ACCESS EXCLUSIVE MODE';
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(0.1);
    END;
  END LOOP;
  RAISE EXCEPTION 'the tables could not be locked within 45 seconds: a transaction that has been open for long reads or writes them'
    USING HINT = 'find it in pg_stat_activity (xact_start) and end it, then migrate again';
END $$;
-- Those of the migrations after this one as well: the printed script is one
-- transaction, which must not wait for a table while it has others.
SELECT tendril.lock_tables('public.provisions, public.audit_events, public.clusters, public.provision_events, public.provision_logs,
  public.provision_progress, tendril.claims, tendril.settings, tendril.log_heads');

ALTER TABLE public.provisions
  -- SHA-256, in hexadecimal, of the plan that awaits a person's word, and of
  -- the one that was approved: no other may be applied.
  ADD COLUMN plan_digest   text,
  ADD COLUMN approved_plan text,
  ADD COLUMN approved_at   timestamptz,
  ADD COLUMN approved_by   uuid,
  -- No foreign key: it would need an index, which is made from a million rows
  -- while everybody waits.
  ADD COLUMN retry_of      uuid,
  -- Rows of before have none of it: not to be looked for in them either.
  ADD CONSTRAINT provisions_plan_digest CHECK (plan_digest ~ '^[0-9a-f]{64}$') NOT VALID;

-- Who did what is for admins. Members see all else of their organisation, each
-- other's roles included: who waits for an approval must know whom to ask.
ALTER POLICY members_read ON public.audit_events USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));
ALTER POLICY members_read ON public.audit_events RENAME TO admins_read;

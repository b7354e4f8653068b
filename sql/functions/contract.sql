-- The version of the contract, and access that is denied by default.

-- The version of this contract that the database speaks. Version 4 added the operation inspect and
-- variables in a report, version 5 the operation power and the state command reveal,
-- version 6 the status AWAITING_INPUT, version 7 runs that are set down, version 8 the reveal of all
-- machines, version 9 rescue: older agents get no such provisions.
--
-- Arguments: none.
-- Answers: the version.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT 9';

-- The least contract version that an agent must speak to run a provision: an older agent would
-- ignore what it does not know, or fail on it.
CREATE OR REPLACE FUNCTION tendril.contract_needed(p_provision public.provisions) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE WHEN p_provision.config_snapshot ->> 'power' IN ('rescue', 'unrescue') THEN 9
              WHEN p_provision.config_snapshot -> 'state' ->> 'command' = 'reveal' AND coalesce(p_provision.config_snapshot -> 'state' -> 'args', '[]') IN ('[]', 'null') THEN 8 -- of all machines
              WHEN tendril.set_down_by(p_provision.id) IS NOT NULL THEN 7 -- it is taken up
              WHEN EXISTS (SELECT FROM public.provision_inputs i WHERE i.provision_id = p_provision.id) THEN 6 -- a person has carried it out
              WHEN p_provision.operation = 'power' OR p_provision.config_snapshot -> 'state' ->> 'command' = 'reveal' THEN 5
              WHEN p_provision.operation = 'inspect' THEN 4
              WHEN p_provision.operation <> 'apply' OR p_provision.approved_plan IS NOT NULL
                OR p_provision.config_snapshot ?| ARRAY['sealed_vars', 'targets', 'replace', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key']
                OR tendril.approval_for(p_provision) <> 'never'
              THEN 3 ELSE 1 END;
END $$;

-- Whether an agent of a contract version may run a provision.
CREATE OR REPLACE FUNCTION tendril.suits(p_provision uuid, p_contract int) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT tendril.contract_needed(p) <= p_contract FROM public.provisions p WHERE p.id = p_provision);
END $$;

-- Revokes every right on the named objects of schema public, and on all of schema tendril, whatever
-- this database's default privileges are. Functions that policies call stay granted. Each migration
-- ends with it, so nothing is open between two migrations.
CREATE OR REPLACE FUNCTION tendril.deny_all(p_public_names text[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_statement text;
BEGIN
  FOR v_statement IN
    SELECT format('REVOKE ALL ON %s %s FROM PUBLIC, anon, authenticated, service_role, tendril_agent',
                  CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND (n.nspname = 'tendril'
           OR n.nspname = 'public' AND (c.relname = ANY (p_public_names)
              -- the sequences behind identity columns of the tables named
              OR EXISTS (SELECT FROM pg_depend d JOIN pg_class t ON t.oid = d.refobjid
                         WHERE d.objid = c.oid AND d.deptype = 'i' AND t.relname = ANY (p_public_names))))
    UNION ALL
    SELECT format('REVOKE ALL ON FUNCTION %s FROM PUBLIC, anon, authenticated, service_role, tendril_agent', p.oid::regprocedure)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'tendril' OR n.nspname = 'public' AND p.proname = ANY (p_public_names)
  LOOP
    EXECUTE v_statement;
  END LOOP;
  -- The schema stays closed: a policy may call these, nobody can name them.
  FOR v_statement IN
    SELECT format('GRANT EXECUTE ON FUNCTION %s TO authenticated', p.oid::regprocedure)
    FROM pg_proc p WHERE p.pronamespace = 'tendril'::regnamespace AND p.proname IN ('current_user_id', 'orgs_with_role')
  LOOP
    EXECUTE v_statement;
  END LOOP;
END $$;

-- Locks tables that a migration changes, all at once or none, because running functions lock them
-- in other orders. Tries for 45 seconds. Only for the steps of older databases, and below the line
-- "-- after the functions": an empty database has no function before that.
CREATE OR REPLACE FUNCTION tendril.lock_tables(p_tables text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
  c_tries CONSTANT int := 150;              -- each waits 200 ms, the lock_timeout above,
  c_pause CONSTANT double precision := 0.1; -- and so many seconds
BEGIN
  FOR i IN 1..c_tries LOOP
    BEGIN
      EXECUTE 'LOCK TABLE ' || p_tables || ' IN ACCESS EXCLUSIVE MODE';
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(c_pause);
    END;
  END LOOP;
  RAISE EXCEPTION 'the tables could not be locked within 45 seconds: a long transaction uses them'
    USING HINT = 'find it in pg_stat_activity (xact_start) and end it, then migrate again';
END $$;

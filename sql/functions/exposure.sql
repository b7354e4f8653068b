-- Notifications, and what the database shows to outsiders.

-- Lists publications that carry more of Tendril's tables than publish_changes() adds by name: FOR
-- ALL TABLES and FOR TABLES IN SCHEMA. Realtime would tell every subscriber of each deleted row
-- there.
--
-- Arguments: none.
-- Answers: a row for each:
--   publication  its name
--   covers       what it covers
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
-- Notes: trellis migrate calls it, and check_agent() for tendril doctor.
CREATE OR REPLACE FUNCTION tendril.broad_publications() RETURNS TABLE (publication text, covers text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT p.pubname::text, CASE WHEN p.puballtables THEN 'all tables' ELSE 'all tables of schema ' || string_agg(quote_ident(n.nspname), ', ' ORDER BY n.nspname) END
  FROM pg_publication p
  LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid
  LEFT JOIN pg_namespace n ON n.oid = s.pnnspid AND n.nspname IN ('public', 'tendril')
  WHERE p.puballtables OR n.oid IS NOT NULL
  GROUP BY p.oid, p.pubname, p.puballtables
  ORDER BY 1
$$;

-- Notifies listeners of a channel of a provision's or cluster's id. Skipped while the server's
-- notification queue is half full, because a transaction that notifies fails when it is full;
-- listeners find changes by asking.
CREATE OR REPLACE FUNCTION tendril.notify(p_channel text, p_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_full CONSTANT double precision := 0.5; -- share of the queue
BEGIN
  IF pg_notification_queue_usage() < c_full THEN
    PERFORM pg_notify(p_channel, p_id::text);
  END IF;
END $$;

-- Where agents have logins of their own: revokes from PUBLIC what could fill the disk and what the
-- contract does not need, temporary tables and new large objects. PostgreSQL cannot revoke these
-- from one role, so it does so only in a database without other people's tables.
--
-- Arguments: none.
-- Answers: a row for each statement that is left for another role:
--   run_as     who must run it
--   statement  the statement
-- Errors: none.
-- Locks: tendril.locks (the table), for two at once.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.close_to_agents() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_ours    oid := (SELECT nspowner FROM pg_namespace WHERE nspname = 'tendril');
  v_alone   boolean;
  v_creates text;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolcanlogin AND NOT r.rolsuper
                 AND pg_has_role(r.oid, 'tendril_agent', 'USAGE') AND NOT pg_has_role(r.oid, v_ours, 'USAGE')) THEN
    RETURN;
  END IF;
  LOCK TABLE tendril.locks IN SHARE ROW EXCLUSIVE MODE;
  v_alone := NOT EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'tendril') AND c.relowner <> v_ours
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'));

  SELECT format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', d.datname), CASE WHEN o.rolsuper THEN 'a superuser' ELSE o.rolname END
  INTO statement, run_as
  FROM pg_database d JOIN pg_roles o ON o.oid = d.datdba, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a
  WHERE d.datname = current_database() AND a.grantee = 0 AND a.privilege_type = 'TEMPORARY';
  IF FOUND THEN
    IF v_alone AND pg_has_role((SELECT datdba FROM pg_database WHERE datname = current_database()), 'USAGE') THEN
      EXECUTE statement;
    ELSE
      RETURN NEXT;
    END IF;
  END IF;

  SELECT string_agg('pg_catalog.' || p.oid::regprocedure, ', ' ORDER BY p.proname), min(CASE WHEN o.rolsuper THEN 'a superuser' ELSE o.rolname END)
  INTO v_creates, run_as
  FROM pg_proc p JOIN pg_roles o ON o.oid = p.proowner, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
  WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname IN ('lo_creat', 'lo_create', 'lo_from_bytea') AND a.grantee = 0;
  IF v_creates IS NOT NULL THEN
    statement := 'REVOKE EXECUTE ON FUNCTION ' || v_creates || ' FROM PUBLIC';
    IF v_alone AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
      EXECUTE statement;
    ELSE
      RETURN NEXT;
    END IF;
  END IF;
END $$;

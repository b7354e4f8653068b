-- What the database shows to others than those it is for, and closes or names it.

-- Publications that carry more of our tables than people may watch (those that
-- tendril.publish_changes() adds by name): FOR ALL TABLES and FOR TABLES IN SCHEMA. Realtime
-- tells every subscriber of each deleted row there, and carries what nobody watches.
-- Called by trellis migrate (as the owner) and, by public.check_agent, for tendril doctor.
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

-- Tells sessions that listen of a provision or a cluster. The payload is an id, so neither it
-- nor its size says what happened. Everybody who may connect can fill the server's queue of
-- notifications, and a transaction that notifies fails then: nobody is told while it is half
-- full, and agents and pages find out by asking, as they do without notifications.
CREATE OR REPLACE FUNCTION tendril.notify(p_channel text, p_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify(p_channel, p_id::text);
  END IF;
END $$;

-- Where agents have logins: takes from PUBLIC what fills a disk and what no function of the
-- contract needs, temporary tables and new large objects. Nothing can be taken from one role
-- alone. So it is done only in a database that has nobody else's tables; otherwise, and where
-- the caller may not, the statements are returned.
--
-- Locks: tendril.locks (the table), for two at once.
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

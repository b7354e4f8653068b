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
-- listeners find changes by asking. On Supabase it also wakes agents that cannot listen.
CREATE OR REPLACE FUNCTION tendril.notify(p_channel text, p_id uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_full CONSTANT double precision := 0.5; -- share of the queue
BEGIN
  IF pg_notification_queue_usage() < c_full THEN
    PERFORM pg_notify(p_channel, p_id::text);
  END IF;
  -- This asks nothing of a schema that we may not use, and is all that it costs elsewhere.
  IF p_channel IN ('tendril_work', 'tendril_attention') AND to_regnamespace('realtime') IS NOT NULL THEN
    PERFORM tendril.broadcast(p_id, substr(p_channel, length('tendril_') + 1));
  END IF;
END $$;

-- The topic of Supabase's Realtime on which the holder of an agent token is woken: "tendril-" and,
-- in hexadecimal, SHA-256 of the text "tendril wake 1:" and the token's digest. The agent computes
-- the digest from its token, which is SHA-256 of SHA-256. The topic tells neither the token's hash,
-- with which one can act as the agent, nor the digest: both are random. A reader of the table's
-- digests can compute topics, and act as nobody.
CREATE OR REPLACE FUNCTION tendril.wake_topic(p_digest bytea) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN 'tendril-' || encode(sha256(convert_to('tendril wake 1:', 'UTF8') || p_digest), 'hex');

-- Whether the function realtime.send is Supabase's. Ours call it with their owner's rights, so one
-- of somebody else, who may make schemas in this database, is none.
CREATE OR REPLACE FUNCTION tendril.can_broadcast() RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid
    JOIN pg_roles s ON s.oid = n.nspowner JOIN pg_roles f ON f.oid = p.proowner
    WHERE n.nspname = 'realtime' AND p.proname = 'send' AND oidvectortypes(p.proargtypes) = 'jsonb, text, text, boolean'
      AND (s.rolsuper OR s.rolname IN ('supabase_admin', 'supabase_realtime_admin'))
      AND (f.rolsuper OR f.rolname IN ('supabase_admin', 'supabase_realtime_admin'))
      AND has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(p.oid, 'EXECUTE'));
END $$;

-- Sends an event without content to the agents of a cluster by Supabase's Realtime: a hint to ask,
-- for agents over HTTPS, which cannot listen. It never fails, and does nothing where Realtime is
-- missing. In one transaction the same event goes out once.
--
-- Locks: none.
-- Notes: What Realtime raises is dropped with what it wrote, and so is a cancel or time-out that
--   comes meanwhile: the deploy is worth more than the hint. We wait at most c_patience for a lock,
--   and after that this transaction sends nothing more. What is slow without a lock cannot be cut
--   short from within; realtime.send inserts one row.
CREATE OR REPLACE FUNCTION tendril.broadcast(p_cluster uuid, p_event text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET client_min_messages = 'error'
AS $$
DECLARE
  c_patience CONSTANT interval := '100 ms';
  c_longest  CONSTANT int := 4000; -- characters that say what was sent, about 45 for each cluster
  v_began    timestamptz := clock_timestamp();
  v_sent     text := coalesce(current_setting('tendril.sent', true), '');
  v_event    text := p_event || ':' || p_cluster || ' ';
  v_before   text := coalesce(current_setting('realtime.topic', true), '');
  v_topic    text;
BEGIN
  IF v_sent = 'enough' OR length(v_sent) > c_longest OR strpos(v_sent, v_event) > 0 THEN
    RETURN;
  END IF;
  PERFORM set_config('tendril.sent', v_sent || v_event, true);
  BEGIN
    IF NOT tendril.can_broadcast() THEN
      RETURN;
    END IF;
    FOR v_topic IN
      SELECT tendril.wake_topic(t.digest) FROM tendril.cluster_tokens t
      WHERE t.cluster_id = p_cluster AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
      ORDER BY t.created_at DESC, t.id LIMIT tendril.max_tokens_woken()
    LOOP
      PERFORM realtime.send('{}'::jsonb, p_event, v_topic, false);
      EXIT WHEN clock_timestamp() > v_began + c_patience;
    END LOOP;
    PERFORM set_config('realtime.topic', v_before, true); -- where send leaves the topic, for all to read
  EXCEPTION
    WHEN query_canceled OR assert_failure OR OTHERS THEN
      NULL;
  END;
  IF clock_timestamp() > v_began + c_patience THEN
    PERFORM set_config('tendril.sent', 'enough', true);
  END IF;
END $$;

-- Notifies the agent that has a claim, and after it the sessions of older releases, which know the
-- cluster's id alone: a listener that has heard tendril_agent ignores tendril_attention.
CREATE OR REPLACE FUNCTION tendril.attend(p_cluster uuid, p_instance uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.notify('tendril_agent', p_instance) WHERE p_instance IS NOT NULL;
  PERFORM tendril.notify('tendril_attention', p_cluster);
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

-- Roles, schemas and the few functions that everything after them leans on.
--
-- Two schemas: public is what outsiders may see (tables under row-level
-- security, and the functions they call); tendril is what they may not.
-- On plain Postgres this creates what Supabase brings, and only what is missing.

-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE
  v_role text;
  v_need text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END;
BEGIN
  FOREACH v_role IN ARRAY ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent'] LOOP
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = v_role) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
      EXCEPTION
        -- Roles belong to the server: another database may be migrating now.
        WHEN duplicate_object OR unique_violation THEN NULL;
      END;
    END IF;
  END LOOP;

  -- The control plane runs each request as authenticated (SET LOCAL ROLE).
  IF NOT pg_has_role(current_user, 'authenticated', v_need) THEN
    BEGIN
      GRANT authenticated TO CURRENT_USER;
    EXCEPTION
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role % may not act as role authenticated, which somebody else made', current_user
          USING HINT = format('have a superuser run: GRANT authenticated TO %I', current_user);
    END;
  END IF;
END $$;
-- +goose StatementEnd

CREATE SCHEMA IF NOT EXISTS tendril;
COMMENT ON SCHEMA tendril IS 'Tendril: what outsiders may not see. Token digests, claims, settings, internal functions.';
REVOKE ALL ON SCHEMA tendril FROM PUBLIC, anon, authenticated, service_role, tendril_agent;

GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role, tendril_agent;

-- +goose StatementBegin
DO $$
BEGIN
  -- Supabase's auth schema belongs to another role: never touch it.
  IF to_regprocedure('auth.uid()') IS NULL THEN
    CREATE SCHEMA IF NOT EXISTS auth;
    CREATE FUNCTION auth.uid() RETURNS uuid LANGUAGE sql STABLE AS
      $f$ SELECT nullif(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub', '')::uuid $f$;
    GRANT USAGE ON SCHEMA auth TO anon, authenticated, service_role;
  END IF;
END $$;
-- +goose StatementEnd

-- Who is asking, from the request's JWT claims. Null, never an error, for
-- missing or malformed claims: a policy must hide rows, not break the query.
-- +goose StatementBegin
CREATE FUNCTION tendril.current_user_id() RETURNS uuid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (current_setting('request.jwt.claims', true)::jsonb ->> 'sub')::uuid;
EXCEPTION
  WHEN data_exception THEN RETURN NULL;
END $$;
-- +goose StatementEnd

-- Raises an error that PostgREST turns into the HTTP status in its SQLSTATE
-- (PT409 is 409). p_reason is a stable word for programs, p_message and p_hint
-- are for people.
-- +goose StatementBegin
CREATE FUNCTION tendril.refuse(p_sqlstate text, p_reason text, p_message text, p_hint text DEFAULT '') RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = p_sqlstate, MESSAGE = p_message, DETAIL = p_reason, HINT = p_hint;
END $$;
-- +goose StatementEnd

-- Whether the request comes from a person rather than from the control plane's
-- own role. In a SECURITY DEFINER function current_user is the owner, so this
-- looks at SET ROLE and, without one, at who logged in.
-- +goose StatementBegin
CREATE FUNCTION tendril.is_person() RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce((
    SELECT NOT (r.rolsuper OR r.rolbypassrls
                OR pg_has_role(r.oid, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tendril'), 'MEMBER'))
    FROM pg_roles r
    WHERE r.rolname = coalesce(nullif(current_setting('role', true), 'none'), session_user)), true)
$$;
-- +goose StatementEnd

-- The few numbers that an operator (or a test) may want different.
CREATE TABLE tendril.settings (
  only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  lease           interval NOT NULL DEFAULT '2 minutes'  CHECK (lease > interval '0'),
  heartbeat       interval NOT NULL DEFAULT '10 seconds' CHECK (heartbeat > interval '0'),
  -- An agent that beat this recently is alive: its name and instance are taken.
  agent_alive     interval NOT NULL DEFAULT '30 seconds',
  poll            interval NOT NULL DEFAULT '5 seconds'  CHECK (poll > interval '0'),
  -- At most one NOTIFY per provision's log in this time.
  log_notify      interval NOT NULL DEFAULT '100 milliseconds',
  -- How long after its end a provision's newest claim may still append lines.
  late_log        interval NOT NULL DEFAULT '24 hours',
  newest_agent    text
);
INSERT INTO tendril.settings DEFAULT VALUES;

-- The contract's version; agents say which one they speak when they register.
CREATE FUNCTION tendril.contract_version() RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT 1';

-- Deny by default, whatever this database's default privileges are. Each
-- migration ends with it, naming what it added to public, so that nothing is
-- open even between two migrations; everything in tendril is closed again each
-- time, but for the functions that policies call as the person who asks.
-- +goose StatementBegin
CREATE FUNCTION tendril.deny_all(p_public_names text[]) RETURNS void
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
-- +goose StatementEnd

SELECT tendril.deny_all('{}');

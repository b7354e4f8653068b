-- Roles, schemas and the few functions that everything after them leans on.
--
-- Two schemas: public is what outsiders may see (tables under row-level
-- security, and the functions they call); tendril is what they may not.
-- On plain Postgres this creates what Supabase brings, and only what is missing.

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

CREATE SCHEMA IF NOT EXISTS tendril;
COMMENT ON SCHEMA tendril IS 'Tendril: what outsiders may not see. Token digests, claims, settings, internal functions.';
REVOKE ALL ON SCHEMA tendril FROM PUBLIC, anon, authenticated, service_role, tendril_agent;

GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role, tendril_agent;

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

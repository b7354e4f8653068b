-- Sign-in, sessions and API tokens.

-- Keeps what a person is called. What is not said stays as it was.
CREATE OR REPLACE FUNCTION tendril.name_person(p_user uuid, p_name text, p_email text, p_verified boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_name  text := left(btrim(coalesce(p_name, '')), 200);
  v_email text := lower(left(btrim(coalesce(p_email, '')), 320));
BEGIN
  INSERT INTO tendril.persons (user_id, name, email, email_verified)
  VALUES (p_user, v_name, v_email, v_email <> '' AND coalesce(p_verified, false))
  ON CONFLICT (user_id) DO UPDATE SET
    name = coalesce(nullif(v_name, ''), persons.name),
    email = coalesce(nullif(v_email, ''), persons.email),
    email_verified = CASE WHEN v_email IN ('', persons.email) THEN persons.email_verified OR EXCLUDED.email_verified ELSE EXCLUDED.email_verified END;
  INSERT INTO public.people (org_id, user_id, name, email)
  SELECT m.org_id, p.user_id, p.name, p.email FROM tendril.persons p JOIN public.org_members m ON m.user_id = p.user_id WHERE p.user_id = p_user
  ON CONFLICT (org_id, user_id) DO UPDATE SET name = EXCLUDED.name, email = EXCLUDED.email
  WHERE people.name <> EXCLUDED.name OR people.email <> EXCLUDED.email;
END $$;

-- Adds a credential. NULL p_lasts: until it is revoked.
CREATE OR REPLACE FUNCTION tendril.add_credential(p_kind text, p_user uuid, p_digest bytea, p_lasts interval, p_label text, p_challenge text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_id uuid;
BEGIN
  IF p_kind = 'session' THEN
    p_lasts := (SELECT session_lasts FROM tendril.settings);
  END IF;
  INSERT INTO tendril.credentials (kind, user_id, digest, label, challenge, expires_at, last_used_at)
  VALUES (p_kind, p_user, p_digest, left(btrim(coalesce(p_label, '')), 200), p_challenge, clock_timestamp() + p_lasts,
          CASE p_kind WHEN 'session' THEN clock_timestamp() END)
  RETURNING id INTO v_id;
  RETURN v_id;
END $$;

-- Whether a credential counts. A function, so that all ask alike.
CREATE OR REPLACE FUNCTION tendril.credential_lives(p_credential tendril.credentials) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN p_credential.revoked_at IS NULL
    AND (p_credential.expires_at IS NULL OR p_credential.expires_at > clock_timestamp())
    AND (p_credential.kind <> 'session' OR p_credential.last_used_at > clock_timestamp() - (SELECT session_idle FROM tendril.settings));
END $$;

-- Who shows a session or an API token; no row: it is nobody's, or no longer.
CREATE OR REPLACE FUNCTION tendril.find_person(p_kind text, p_digest bytea)
RETURNS TABLE (credential_id uuid, user_id uuid, name text, email text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_found tendril.credentials;
BEGIN
  SELECT c.* INTO v_found FROM tendril.credentials c
  WHERE c.digest = p_digest AND c.kind = p_kind AND p_kind IN ('session', 'api_token');
  IF v_found.id IS NULL OR NOT tendril.credential_lives(v_found) THEN
    RETURN;
  END IF;
  IF v_found.last_used_at IS NULL OR v_found.last_used_at < clock_timestamp() - interval '1 minute' THEN
    UPDATE tendril.credentials SET last_used_at = clock_timestamp()
    WHERE id = (SELECT id FROM tendril.credentials WHERE id = v_found.id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN QUERY SELECT v_found.id, v_found.user_id, coalesce(p.name, ''), coalesce(p.email, '')
    FROM (VALUES (1)) one (row) LEFT JOIN tendril.persons p ON p.user_id = v_found.user_id;
END $$;

-- Those that do not count any more.
CREATE OR REPLACE FUNCTION tendril.ended_credentials(p_credentials uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN ARRAY(
    SELECT i.id FROM unnest(p_credentials) i (id) LEFT JOIN tendril.credentials c ON c.id = i.id
    WHERE c.id IS NULL OR NOT tendril.credential_lives(c));
END $$;

-- Uses up a one-time link or a CLI's code, and answers whose it was; NULL: it is nobody's, was
-- used, or is too old. A wrong verifier uses it up as well.
CREATE OR REPLACE FUNCTION tendril.redeem(p_kind text, p_digest bytea, p_verifier text DEFAULT NULL, OUT user_id uuid, OUT label text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_used tendril.credentials;
BEGIN
  -- Of two at once the second finds it used.
  UPDATE tendril.credentials c SET revoked_at = clock_timestamp(), last_used_at = clock_timestamp()
  WHERE c.digest = p_digest AND c.kind = p_kind AND p_kind IN ('link', 'cli_code')
    AND c.revoked_at IS NULL AND c.expires_at > clock_timestamp()
  RETURNING c.* INTO v_used;
  IF v_used.challenge IS NULL
     OR v_used.challenge = rtrim(translate(encode(sha256(convert_to(p_verifier, 'UTF8')), 'base64'), '+/', '-_'), '=') THEN
    user_id := v_used.user_id;
    label := v_used.label;
  END IF;
END $$;

-- Ends the credential that is shown.
CREATE OR REPLACE FUNCTION tendril.end_credential(p_digest bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  UPDATE tendril.credentials SET revoked_at = clock_timestamp() WHERE digest = p_digest AND revoked_at IS NULL;
END $$;

-- A new API token, shown once. The server makes it, so that it appears in no statement.
CREATE OR REPLACE FUNCTION tendril.issue_api_token(p_user uuid, p_name text, p_lasts interval, OUT token_id uuid, OUT token text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
BEGIN
  token := 'trt_' || rtrim(translate(encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())), 'base64'), '+/', '-_'), '=');
  token_id := tendril.add_credential('api_token', p_user, sha256(convert_to(token, 'UTF8')), p_lasts, p_name);
  PERFORM tendril.audit_person(p_user, 'create_api_token', token_id, jsonb_build_object('name', p_name, 'lasts', p_lasts));
END $$;

-- Who asks, for what is about themselves.
CREATE OR REPLACE FUNCTION tendril.asking_person() RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_user uuid := tendril.current_user_id();
BEGIN
  IF v_user IS NULL THEN
    PERFORM tendril.refuse('PT401', 'not_signed_in', 'nobody is signed in', 'sign in first');
  END IF;
  RETURN v_user;
END $$;

-- The caller's own sessions and API tokens that count, the newest first.
CREATE OR REPLACE FUNCTION public.own_credentials()
RETURNS TABLE (id uuid, kind text, label text, created_at timestamptz, last_used_at timestamptz, expires_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user uuid;
BEGIN
  v_user := tendril.asking_person();
  RETURN QUERY SELECT c.id, c.kind, c.label, c.created_at, c.last_used_at, c.expires_at FROM tendril.credentials c
    WHERE c.user_id = v_user AND c.kind IN ('session', 'api_token') AND tendril.credential_lives(c) ORDER BY c.created_at DESC, c.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether the person is known by an API token: the control plane says so in the claims.
CREATE OR REPLACE FUNCTION tendril.by_api_token() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(current_setting('request.jwt.claims', true)::jsonb ->> 'credential' = 'api_token', false);
END $$;

-- Makes the caller an API token. It may do what they may, but for this: PT403
-- token_makes_token, so that one that has leaked ends when it is revoked.
CREATE OR REPLACE FUNCTION public.create_api_token(p_name text, p_lasts interval DEFAULT '90 days')
RETURNS TABLE (token_id uuid, token text, expires_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_user  uuid;
  v_made  record;
BEGIN
  v_user := tendril.asking_person();
  IF tendril.by_api_token() THEN
    PERFORM tendril.refuse('PT403', 'token_makes_token', 'an API token cannot make others', 'sign in with a browser and make it on the Account page');
  END IF;
  IF coalesce(length(btrim(p_name)), 0) NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_token_name', 'p_name: from 1 to 200 characters are needed', 'name what will use it');
  ELSIF p_lasts IS NULL OR p_lasts < interval '1 minute' OR p_lasts > interval '366 days' THEN
    PERFORM tendril.refuse('PT422', 'bad_token_life', 'p_lasts: from 1 minute to 366 days');
  ELSIF (SELECT count(*) FROM tendril.credentials c WHERE c.user_id = v_user AND c.kind = 'api_token' AND tendril.credential_lives(c)) >= 100 THEN
    PERFORM tendril.refuse('PT409', 'too_many_tokens', 'you have 100 API tokens', 'revoke those that nothing uses any more');
  END IF;
  v_made := tendril.issue_api_token(v_user, p_name, p_lasts);
  RETURN QUERY SELECT v_made.token_id, v_made.token, c.expires_at FROM tendril.credentials c WHERE c.id = v_made.token_id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Ends one of the caller's own sessions or API tokens. False: there is none.
CREATE OR REPLACE FUNCTION public.revoke_credential(p_credential uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_kind text;
BEGIN
  v_user := tendril.asking_person();
  UPDATE tendril.credentials SET revoked_at = clock_timestamp()
  WHERE id = p_credential AND user_id = v_user AND kind IN ('session', 'api_token') AND revoked_at IS NULL
  RETURNING kind INTO v_kind;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit_person(v_user, 'revoke_credential', p_credential, jsonb_build_object('kind', v_kind));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Ends all sessions of the caller's, and with p_tokens their API tokens as well. Returns how
-- many.
CREATE OR REPLACE FUNCTION public.sign_out_everywhere(p_tokens boolean DEFAULT false) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user  uuid;
  v_count int;
BEGIN
  v_user := tendril.asking_person();
  -- Links and codes too: one that is under way must not outlive this.
  UPDATE tendril.credentials SET revoked_at = clock_timestamp()
  WHERE user_id = v_user AND revoked_at IS NULL AND (kind <> 'api_token' OR p_tokens);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  PERFORM tendril.audit_person(v_user, 'sign_out_everywhere', NULL, jsonb_build_object('tokens', coalesce(p_tokens, false)));
  RETURN v_count;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whom an issuer calls so, where they have come before.
CREATE OR REPLACE FUNCTION tendril.find_identity(p_issuer text, p_subject text)
RETURNS TABLE (user_id uuid, name text, email text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT p.user_id, p.name, p.email FROM tendril.identities i JOIN tendril.persons p ON p.user_id = i.user_id
    WHERE i.issuer = p_issuer AND i.subject = p_subject;
END $$;

-- Finds, or makes, the person whom an issuer calls by that subject, and keeps their
-- name and e-mail address. Invitations stay open until the person accepts them
-- (own_invitations). p_user: the person's id, where the issuer's subjects are users'
-- ids already. p_first_admin: the address of the person who becomes admin where no
-- admin has ever signed in.
CREATE OR REPLACE FUNCTION tendril.sign_in(p_issuer text, p_subject text, p_name text, p_email text, p_verified boolean, p_first_admin text, p_user uuid) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s'
AS $$
DECLARE
  v_user uuid;
  v_org  uuid;
BEGIN
  SELECT i.user_id INTO v_user FROM tendril.identities i WHERE i.issuer = p_issuer AND i.subject = p_subject;
  IF v_user IS NULL THEN
    v_user := coalesce(p_user, gen_random_uuid());
    PERFORM tendril.name_person(v_user, p_name, p_email, p_verified);
    INSERT INTO tendril.identities (issuer, subject, user_id) VALUES (p_issuer, p_subject, v_user) ON CONFLICT (issuer, subject) DO NOTHING;
    IF NOT FOUND THEN -- two at once: the first one counts
      DELETE FROM tendril.persons p WHERE p.user_id = v_user AND p_user IS NULL;
      SELECT i.user_id INTO v_user FROM tendril.identities i WHERE i.issuer = p_issuer AND i.subject = p_subject;
    END IF;
  END IF;
  PERFORM tendril.name_person(v_user, p_name, p_email, p_verified);
  UPDATE tendril.persons p SET signed_in_at = clock_timestamp() WHERE p.user_id = v_user;

  IF coalesce(p_verified, false) AND lower(btrim(p_email)) = lower(btrim(p_first_admin)) AND p_email <> '' THEN
    LOCK TABLE public.orgs IN SHARE ROW EXCLUSIVE MODE; -- two at once must not make two
    IF NOT EXISTS (SELECT FROM public.org_members m JOIN tendril.identities i ON i.user_id = m.user_id WHERE m.role = 'admin') THEN
      SELECT o.id INTO v_org FROM public.orgs o ORDER BY o.created_at, o.id LIMIT 1;
      IF v_org IS NULL THEN
        INSERT INTO public.orgs (name) VALUES ('default') RETURNING id INTO v_org;
      END IF;
      INSERT INTO public.org_members (org_id, user_id, role) VALUES (v_org, v_user, 'admin')
      ON CONFLICT (org_id, user_id) DO UPDATE SET role = 'admin';
      INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
      VALUES (v_org, v_user, 'first_admin', 'user', v_user, jsonb_build_object('role', 'admin'));
    END IF;
  END IF;
  RETURN v_user;
END $$;

-- Canonical forms: when two spellings name the same repository, directory or workspace. Whatever
-- compares one of these compares the canonical form. internal/canonical does the same in Go, and
-- the tables in internal/canonical/testdata test both.

-- Brings the address of a repository to its canonical form. Answers p_canonical, the form to
-- compare, such as https://git.example/acme/app, or the address itself where it has no canonical
-- form; p_template, which names the repository whatever protocol, user, port or case addresses it,
-- for approval rules (null where there is no canonical form); and p_problem, why there is no
-- canonical form and which form to use. The problem completes the sentence "the address …" and
-- quotes nothing that may be a password.
--
-- Notes: Each deploy and each claim asks it, so one expression recognises the usual form.
CREATE OR REPLACE FUNCTION tendril.canonical_repo(p_repo text, OUT p_canonical text, OUT p_template text, OUT p_problem text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_longest CONSTANT int  := 500; -- characters
  c_form    CONSTANT text := 'must be https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH';
  c_no_path CONSTANT text := 'names no repository on its host';
  c_host    CONSTANT text := '^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$';
  c_ipv6    CONSTANT text := 'has a malformed IPv6 address; write it in its shortest form, such as [2001:db8::1]';
  v_at      int;
  v_parts   text[];
  v_scheme  text;
  v_user    text := '';
  v_host    text;
  v_port    text := '';
  v_path    text;
  v_usual   text := '';
  v_piece   text;
  v_ip      inet;
BEGIN
  p_canonical := CASE WHEN p_repo LIKE '%.git' THEN left(p_repo, -4) ELSE p_repo END;
  IF p_canonical ~ '^https://([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$'
     AND lower(right(p_canonical, 4)) <> '.git' AND length(p_repo) <= c_longest THEN
    p_template := lower(substr(p_canonical, 9) COLLATE "C");
    RETURN;
  END IF;

  p_canonical := p_repo;
  p_problem := CASE
    WHEN coalesce(p_repo, '') = '' THEN 'is missing'
    WHEN length(p_repo) > c_longest THEN format('has more than %s characters', c_longest)
    WHEN p_repo ~ '[\u0001-\u0020\u007F-\u00A0]' THEN 'has a blank or a control character in it'
    WHEN p_repo ~* '^([a-z][a-z0-9+.-]*://[^/]*:[^/]*@|https?://[^/]*@|[^/@]*:[^/@]*@)'
      THEN 'holds credentials; they belong to the agent, not into the URL'
    WHEN p_repo ~ '[?#]' THEN 'has a query or a fragment; leave it out'
  END;
  IF p_problem IS NOT NULL THEN
    RETURN;
  END IF;

  -- Scheme, host and path.
  v_at := strpos(p_repo, '://');
  IF v_at = 0 THEN
    v_parts := regexp_match(p_repo, '^([^@/:]+)@([^@/:\[\]]+):(.+)$');
    IF v_parts IS NULL THEN
      p_problem := c_form;
      RETURN;
    END IF;
    v_scheme := 'ssh';
    v_host := v_parts[1] || '@' || v_parts[2];
    v_path := '/' || regexp_replace(v_parts[3], '^/', '');
  ELSE
    v_scheme := lower(left(p_repo, v_at - 1) COLLATE "C");
    v_host := substr(p_repo, v_at + 3);
    v_at := strpos(v_host, '/');
    IF v_scheme NOT IN ('https', 'ssh', 'file') THEN
      p_problem := c_form;
      RETURN;
    ELSIF v_at = 0 THEN
      p_problem := c_no_path;
      RETURN;
    END IF;
    v_path := substr(v_host, v_at);
    v_host := left(v_host, v_at - 1);
  END IF;

  -- [USER@]HOST[:PORT]
  IF v_scheme = 'file' THEN
    IF v_host <> '' THEN
      p_problem := 'names a host; a file''s address has none: write file:///PATH';
      RETURN;
    END IF;
  ELSE
    v_at := strpos(v_host, '@');
    IF v_at > 0 THEN
      v_user := left(v_host, v_at - 1);
      v_host := substr(v_host, v_at + 1);
      IF v_user !~ '^[A-Za-z0-9._][A-Za-z0-9._-]*$' THEN
        p_problem := 'has a user name before its host that is none; write USER@HOST, or leave the user out';
        RETURN;
      END IF;
    ELSIF v_scheme = 'ssh' THEN
      v_user := 'git'; -- as the agent signs in where no user is named
    END IF;
    v_parts := regexp_match(v_host, '^(.*):([^:\]]*)$');
    IF v_parts IS NOT NULL THEN
      v_host := v_parts[1];
      v_port := v_parts[2];
      IF (CASE WHEN v_port ~ '^[1-9][0-9]{0,4}$' THEN v_port::int > 65535 ELSE true END) THEN
        p_problem := 'has a port that is none; write a number from 1 to 65535 without leading zeros, or leave the port out';
        RETURN;
      END IF;
      v_port := CASE WHEN (v_scheme, v_port) IN (('https', '443'), ('ssh', '22')) THEN '' ELSE ':' || v_port END;
    END IF;
    v_host := lower(v_host COLLATE "C");
    IF v_host LIKE '[%' THEN
      BEGIN
        v_ip := btrim(v_host, '[]')::inet;
      EXCEPTION WHEN invalid_text_representation THEN
        v_ip := NULL;
      END;
      -- ::/96 is an IPv4 address in an obsolete form, which programs write in two ways.
      IF v_ip IS NULL OR v_host !~ '^\[[0-9a-f:]+\]$' OR host(v_ip) <> btrim(v_host, '[]') OR (v_ip <<= '::/96' AND v_ip <> '::1') THEN
        p_problem := c_ipv6;
        RETURN;
      END IF;
    ELSE
      p_problem := CASE
        WHEN v_host ~ '(^|\.)(0x[0-9a-f]*|[0-9]+)$' THEN
          CASE WHEN v_host !~ '^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.(?!$)|$)){4}$'
               THEN 'has a malformed IPv4 address; write four decimal numbers, such as 192.0.2.1' END
        WHEN v_host LIKE '%.' AND left(v_host, -1) ~ c_host THEN format('has a dot after its host; write %s', left(v_host, -1))
        WHEN v_host ~ '[^\u0001-\u007F]' THEN 'has a host that is not in ASCII; write the host as xn--…'
        WHEN v_host !~ c_host THEN 'has a malformed host name'
      END;
      IF p_problem IS NOT NULL THEN
        RETURN;
      END IF;
    END IF;
  END IF;

  -- The path. %20 is the one escape accepted, because servers put blanks into project names;
  -- any other could hide a separator or a dot.
  v_path := regexp_replace(v_path, '/$', '');
  IF v_scheme = 'ssh' AND v_path LIKE '/~/%' THEN
    v_path := substr(v_path, 3); -- from the user's home directory, as USER@HOST:PATH is
  END IF;
  FOR v_piece IN SELECT m[1] FROM regexp_matches(v_path, '(%[0-9A-Fa-f]{2}|%)', 'g') m LOOP
    IF v_piece <> '%20' THEN
      p_problem := format('has the escape %s in its path; only %%20 is accepted', v_piece);
      IF length(v_piece) = 3 AND ('x' || substr(v_piece, 2))::bit(8)::int BETWEEN 33 AND 126 THEN
        v_usual := chr(('x' || substr(v_piece, 2))::bit(8)::int);
        IF v_usual ~ '^[A-Za-z0-9._~-]$' THEN
          p_problem := format('has the escape %s in its path; write %s', v_piece, v_usual);
        END IF;
      END IF;
      RETURN;
    END IF;
  END LOOP;
  IF v_path = '' THEN
    p_problem := c_no_path;
    RETURN;
  ELSIF v_path !~ '^[A-Za-z0-9._~+@,=:()/%-]*$' AND NOT (v_scheme = 'file'
          AND v_path ~ '^[A-Za-z0-9._~+@,=:()/%\u00C0-\u1FFF\u2C00-\u2FFF\u3040-\uD7A3-]*$' AND v_path IS NFC NORMALIZED) THEN
    p_problem := 'has a character in its path that does not belong there';
    RETURN;
  END IF;
  FOREACH v_piece IN ARRAY string_to_array(substr(v_path, 2), '/') LOOP
    p_problem := CASE
      WHEN v_piece = '..' THEN 'has a ".." segment in its path; write the path without it'
      WHEN v_piece LIKE '-%' THEN 'has a segment in its path that begins with "-"'
    END;
    IF p_problem IS NOT NULL THEN
      RETURN;
    ELSIF v_piece NOT IN ('', '.') THEN
      v_usual := v_usual || '/' || v_piece;
    END IF;
  END LOOP;
  v_scheme := v_scheme || '://' || CASE WHEN v_user = '' THEN '' ELSE v_user || '@' END;
  IF v_usual = '' THEN
    p_problem := c_no_path;
  ELSIF v_usual <> v_path THEN
    p_problem := format('has an empty or "." segment in its path; write %s%s%s%s', v_scheme, v_host, v_port, v_usual);
  ELSE
    v_path := regexp_replace(v_path, '(/?\.git)+$', '', 'i');
    IF v_path ~ '(^|/)(\.\.?)?$' THEN
      p_problem := c_no_path;
    ELSE
      p_canonical := v_scheme || coalesce(v_host, '') || v_port || v_path;
      p_template := lower(coalesce(v_host, '') || v_path COLLATE "C");
    END IF;
  END IF;
END $$;

-- The canonical form of a repository's address, or the address itself where it has none.
--
-- Arguments:
--   p_repo  address of the repository
-- Answers: the canonical form.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.plain_repo(p_repo text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (tendril.canonical_repo(p_repo)).p_canonical;
END $$;

-- The canonical form of a directory in a repository: '' for its root.
CREATE OR REPLACE FUNCTION tendril.plain_path(p_path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN btrim(regexp_replace('/' || coalesce(p_path, ''), '(/\.?)+(?=/|$)', '', 'g'), '/');
END $$;

-- Names a template for approval rules: equal for all addresses that usually fetch the same
-- repository. Null where the address has no canonical form.
CREATE OR REPLACE FUNCTION tendril.template_key(p_repo text, p_path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (tendril.canonical_repo(p_repo)).p_template || ' ' || tendril.plain_path(p_path);
END $$;

-- Why a text is not a workspace name, and which name to use instead; null where it is one. A
-- workspace has exactly one spelling, because policies, credentials and sealed values depend on it.
CREATE OR REPLACE FUNCTION tendril.workspace_problem(p_name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_longest CONSTANT int  := 128; -- characters
  c_name    CONSTANT text := '^[A-Za-z0-9][A-Za-z0-9._/-]*$';
  c_not     CONSTANT text := '\.\.|/\.?(/|$)'; -- no "..", and no segment that is empty or "."
  c_rule    CONSTANT text := 'may hold letters, digits and . _ / - only, must begin with a letter or digit, must not hold "..", and has at most 128 characters';
  v_usual   text := p_name;
  v_char    text;
BEGIN
  IF p_name ~ c_name AND p_name !~ c_not AND length(p_name) <= c_longest THEN
    RETURN NULL;
  ELSIF length(p_name) > 4 * c_longest THEN
    RETURN c_rule;
  END IF;
  v_char := substring(p_name FROM '[^\u0001-\u007F]');
  IF v_char IS NOT NULL THEN
    v_usual := normalize(p_name, NFKC);
  END IF;
  v_usual := regexp_replace(regexp_replace(regexp_replace(v_usual, '(/\.?)+/', '/', 'g'), '(/\.)+$', ''), '^[ /]+|[ /]+$', '', 'g');
  IF v_usual ~ c_name AND v_usual !~ c_not AND length(v_usual) <= c_longest THEN
    RETURN format('is not how this workspace is written; write %s', v_usual);
  ELSIF v_char IS NOT NULL THEN
    RETURN format('has the character U+%s, which is not ASCII; use letters A to Z, digits and . _ / - only',
      upper(lpad(to_hex(ascii(v_char)), greatest(4, length(to_hex(ascii(v_char)))), '0')));
  END IF;
  RETURN c_rule;
END $$;

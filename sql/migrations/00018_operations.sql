-- What a provision may ask for beyond an apply: the operations, which resources,
-- who must approve, how long and how often. And who may set the rules for it.

-- +goose Up

-- Those of the migrations after this one as well, as in migration 11.
SELECT tendril.lock_tables('public.clusters, public.agents, public.workspaces, tendril.claims, public.provisions, public.provision_progress,
  public.provision_events, public.provision_logs, public.resources, public.templates, public.audit_events, tendril.settings, tendril.log_heads');

ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_operation_check,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state')) NOT VALID,
  -- Which automatic attempt this is; retry_of is the one before. Nobody but our
  -- own functions may insert it, so it also tells that they do.
  ADD COLUMN attempt smallint NOT NULL DEFAULT 1,
  -- An automatic attempt waits until then.
  ADD COLUMN not_before timestamptz;

ALTER TABLE public.clusters
  -- When a plan must be approved: by cluster, by template, by the snapshot. The
  -- strictest counts.
  ADD COLUMN approval text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always')),
  -- The least role of who may approve.
  ADD COLUMN approvers text NOT NULL DEFAULT 'operator' CHECK (approvers IN ('operator', 'admin')),
  -- Who asked for it may not approve it.
  ADD COLUMN four_eyes boolean NOT NULL DEFAULT false,
  ADD COLUMN approval_expiry interval NOT NULL DEFAULT '7 days' CHECK (approval_expiry BETWEEN interval '1 minute' AND interval '90 days');

ALTER TABLE public.templates
  ADD COLUMN approval text NOT NULL DEFAULT 'never' CHECK (approval IN ('never', 'destructive', 'always'));
CREATE INDEX templates_approval ON public.templates (org_id) WHERE approval <> 'never';

-- When something that the workspace is reserved for is due: an approval that
-- nobody gave in time, or another attempt.
ALTER TABLE public.workspaces ADD COLUMN due_at timestamptz;
CREATE INDEX workspaces_due ON public.workspaces (due_at) WHERE due_at IS NOT NULL;

-- What kind of JSON it is, in the words of a message.
-- +goose StatementBegin
CREATE FUNCTION tendril.kind_of(p_json jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE jsonb_typeof(p_json) WHEN 'object' THEN 'an object' WHEN 'array' THEN 'a list' WHEN 'null' THEN 'null' ELSE 'a ' || jsonb_typeof(p_json) END;
END $$;

-- What is wrong with a text; null when nothing is. Here and below, and in
-- internal/provision, in the same words.
CREATE FUNCTION tendril.text_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_text text := p_text #>> '{}';
BEGIN
  RETURN CASE
    WHEN jsonb_typeof(p_text) <> 'string' THEN 'must be a string, not ' || tendril.kind_of(p_text)
    WHEN v_text = '' THEN 'missing'
    WHEN length(v_text) > p_longest THEN format('%s characters, at most %s are allowed', length(v_text), p_longest)
    WHEN v_text ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'must not contain control characters'
  END;
END $$;

-- Likewise what is given to an engine as an argument.
CREATE FUNCTION tendril.argument_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(tendril.text_problem(p_text, p_longest), CASE WHEN p_text #>> '{}' LIKE '-%' THEN 'must not start with a dash' END);
END $$;

-- What is wrong with a list of addresses.
CREATE FUNCTION tendril.address_problems(p_path text, p_list jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_list) <> 'array' THEN
    RETURN ARRAY[format('%s: must be a list, not %s', p_path, tendril.kind_of(p_list))];
  ELSIF jsonb_array_length(p_list) > 100 THEN
    RETURN ARRAY[format('%s: %s addresses, at most 100 are allowed', p_path, jsonb_array_length(p_list))];
  END IF;
  RETURN ARRAY(SELECT format('%s[%s]: %s', p_path, a.ord - 1, tendril.argument_problem(a.value, 512))
               FROM jsonb_array_elements(p_list) WITH ORDINALITY a (value, ord)
               WHERE tendril.argument_problem(a.value, 512) IS NOT NULL ORDER BY a.ord);
END $$;

-- What is wrong with a whole number; null when nothing is.
CREATE FUNCTION tendril.number_problem(p_number jsonb, p_least bigint, p_most bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_number) <> 'number' THEN
    RETURN 'must be a number, not ' || tendril.kind_of(p_number);
  ELSIF p_number::numeric <> trunc(p_number::numeric) OR p_number::numeric NOT BETWEEN p_least AND p_most THEN
    RETURN format('must be a whole number from %s to %s', p_least, p_most);
  END IF;
  RETURN NULL;
END $$;

-- What is wrong with the variables that are age messages.
CREATE FUNCTION tendril.sealed_problems(p_sealed jsonb, p_plain jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_problems text[] := '{}';
  v_sealed   record;
  v_problem  text;
BEGIN
  IF jsonb_typeof(p_sealed) <> 'object' THEN
    RETURN ARRAY['config_snapshot.sealed_vars: must be an object, not ' || tendril.kind_of(p_sealed)];
  END IF;
  FOR v_sealed IN SELECT key, value, value #>> '{}' AS text FROM jsonb_each(p_sealed) ORDER BY key COLLATE "C" LOOP
    v_problem := CASE
      WHEN v_sealed.key !~ '^[A-Za-z_][A-Za-z0-9_-]{0,199}$' THEN 'not a variable name; letters, digits, _ and - are allowed, a letter or _ first'
      WHEN jsonb_typeof(v_sealed.value) <> 'string' THEN 'must be a string, not ' || tendril.kind_of(v_sealed.value)
      WHEN octet_length(v_sealed.text) > 16384 THEN format('%s bytes, at most 16384 are allowed', octet_length(v_sealed.text))
      -- Not echoed: what does not fit may be the secret itself.
      WHEN v_sealed.text !~ '^-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=]{1,64}\r?\n)+-----END AGE ENCRYPTED FILE-----[\r\n]*$'
        THEN 'must be an armoured age message, as "trellis seal" makes it'
      WHEN jsonb_typeof(p_plain) = 'object' AND p_plain ? v_sealed.key THEN 'is in terraform_vars as well; give it once'
    END;
    IF v_problem IS NOT NULL THEN
      v_problems := v_problems || format('config_snapshot.sealed_vars.%s: %s', left(v_sealed.key, 100), v_problem);
    END IF;
  END LOOP;
  RETURN v_problems;
END $$;

-- What is wrong with a change to the state.
CREATE FUNCTION tendril.state_problems(p_state jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_path     CONSTANT text := 'config_snapshot.state';
  v_problems text[] := '{}';
  v_state    jsonb;
  v_command  text;
  v_args     int;
  v_problem  text;
BEGIN
  IF jsonb_typeof(p_state) <> 'object' THEN
    RETURN ARRAY[format('%s: must be an object, not %s', c_path, tendril.kind_of(p_state))];
  END IF;
  v_state := jsonb_strip_nulls(p_state);
  v_problem := CASE WHEN NOT v_state ? 'command' THEN 'missing' ELSE tendril.text_problem(v_state -> 'command', 20) END;
  IF v_problem IS NULL AND v_state ->> 'command' NOT IN ('pull', 'push', 'list', 'rm', 'mv', 'import', 'rollback', 'adopt') THEN
    v_problem := 'must be pull, push, list, rm, mv, import, rollback or adopt';
  END IF;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.command: %s', c_path, v_problem);
  ELSE
    v_command := v_state ->> 'command';
  END IF;

  IF v_state ? 'args' THEN
    v_problems := v_problems || tendril.address_problems(c_path || '.args', v_state -> 'args');
  END IF;
  IF (CASE jsonb_typeof(v_state -> 'args') WHEN 'array' THEN jsonb_array_length(v_state -> 'args') <= 100 ELSE NOT v_state ? 'args' END) THEN
    v_args := coalesce(jsonb_array_length(v_state -> 'args'), 0);
    IF v_command IN ('mv', 'import') AND v_args <> 2 THEN
      v_problems := v_problems || format('%s.args: %s takes 2 arguments, not %s', c_path, v_command, v_args);
    ELSIF v_command = 'rm' AND v_args = 0 THEN
      v_problems := v_problems || format('%s.args: rm takes an argument at least', c_path);
    ELSIF v_command NOT IN ('mv', 'import', 'rm') AND v_args > 0 THEN
      v_problems := v_problems || format('%s.args: %s takes no arguments', c_path, v_command);
    END IF;
  END IF;

  v_problem := CASE
    WHEN NOT v_state ? 'upload' THEN CASE WHEN v_command = 'push' THEN 'missing; push needs it' END
    WHEN v_command <> 'push' THEN 'only for push'
    WHEN jsonb_typeof(v_state -> 'upload') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(v_state -> 'upload')
    WHEN v_state ->> 'upload' !~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN 'must be the id of an upload, a UUID in lower case'
  END;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.upload: %s', c_path, v_problem);
  END IF;

  v_problem := CASE
    WHEN NOT v_state ? 'version' THEN CASE WHEN v_command = 'rollback' THEN 'missing; rollback needs it' END
    WHEN v_command NOT IN ('pull', 'rollback') THEN 'only for pull and rollback'
    ELSE tendril.number_problem(v_state -> 'version', 1, 9007199254740991)
  END;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.version: %s', c_path, v_problem);
  END IF;
  RETURN v_problems || ARRAY(
    SELECT format('%s.%s: unknown; known are command, args, upload, version', c_path, left(k, 100))
    FROM jsonb_object_keys(v_state) k WHERE k NOT IN ('command', 'args', 'upload', 'version') ORDER BY k COLLATE "C");
END $$;

-- What a snapshot lacks for an operation, or has in vain.
CREATE FUNCTION tendril.operation_problems(p_operation text, s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_operation NOT IN ('unlock', 'state') AND NOT s ?| ARRAY['targets', 'replace', 'state', 'lock_id'] THEN
    RETURN '{}'; -- as nearly always
  END IF;
  s := (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(s) WHERE jsonb_typeof(value) <> 'null');
  RETURN array_remove(ARRAY[
    CASE WHEN s ? 'targets' AND p_operation IN ('unlock', 'state') THEN format('config_snapshot.targets: not for operation %s', p_operation) END,
    CASE WHEN s ? 'replace' AND p_operation NOT IN ('plan', 'apply') THEN format('config_snapshot.replace: not for operation %s', p_operation) END,
    CASE WHEN p_operation = 'state' AND NOT s ? 'state' THEN 'config_snapshot.state: missing; operation state needs it'
         WHEN p_operation <> 'state' AND s ? 'state' THEN format('config_snapshot.state: not for operation %s', p_operation) END,
    CASE WHEN p_operation = 'unlock' AND NOT s ? 'lock_id' THEN 'config_snapshot.lock_id: missing; operation unlock needs it'
         WHEN p_operation <> 'unlock' AND s ? 'lock_id' THEN format('config_snapshot.lock_id: not for operation %s', p_operation) END
  ], NULL);
END $$;
-- +goose StatementEnd

-- What is wrong with how it is to be run.
-- +goose StatementBegin
CREATE FUNCTION tendril.life_problems(s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_problems text[] := '{}';
  v_key      text;
  v_value    text;
BEGIN
  FOREACH v_key IN ARRAY ARRAY['targets', 'replace'] LOOP
    IF s ? v_key THEN
      v_problems := v_problems || tendril.address_problems('config_snapshot.' || v_key, s -> v_key);
    END IF;
  END LOOP;
  FOR v_key, v_value IN VALUES
    ('approval', CASE WHEN jsonb_typeof(s -> 'approval') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(s -> 'approval')
                      WHEN s ->> 'approval' NOT IN ('never', 'destructive', 'always') THEN 'must be "never", "destructive" or "always"' END),
    ('timeout_seconds', tendril.number_problem(s -> 'timeout_seconds', 1, 604800)),
    ('max_attempts', tendril.number_problem(s -> 'max_attempts', 1, 10)),
    ('requester_key', CASE WHEN jsonb_typeof(s -> 'requester_key') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(s -> 'requester_key')
                           WHEN s ->> 'requester_key' !~ '^(age1[02-9ac-hj-np-z]{58}|ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}( [^\u0001-\u001f\u007f-\u009f]{1,200})?)$'
                             THEN 'must be a public key, age1… or ssh-ed25519 …' END),
    ('lock_id', tendril.argument_problem(s -> 'lock_id', 200))
  LOOP
    IF v_value IS NOT NULL THEN
      v_problems := v_problems || format('config_snapshot.%s: %s', v_key, v_value);
    END IF;
  END LOOP;
  IF s ? 'state' THEN
    v_problems := v_problems || tendril.state_problems(s -> 'state');
  END IF;
  RETURN v_problems;
END $$;
-- +goose StatementEnd

-- What is wrong with a snapshot, as before, and what came to it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.snapshot_problems(s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_known    CONSTANT text[] := ARRAY['template_source', 'terraform_vars', 'sealed_vars', 'workspace', 'terraform', 'targets', 'replace',
    'approval', 'timeout_seconds', 'max_attempts', 'requester_key', 'state', 'lock_id', 'meta'];
  v_problems text[] := '{}';
  v_source   jsonb;
  v_value    text;
  v_key      text;
BEGIN
  IF s IS NULL OR jsonb_typeof(s) <> 'object' THEN
    RETURN ARRAY['config_snapshot: must be a JSON object'];
  END IF;
  IF octet_length(s::text) > 262144 THEN
    RETURN ARRAY[format('config_snapshot: %s bytes, more than the 262144 allowed', octet_length(s::text))];
  END IF;
  -- null is absent
  s := (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(s) WHERE jsonb_typeof(value) <> 'null');
  FOR v_key IN SELECT k FROM jsonb_object_keys(s) k
               WHERE k <> ALL (c_known) LOOP
    v_problems := v_problems || format('config_snapshot.%s: unknown; known are %s', left(v_key, 100), array_to_string(c_known, ', '));
  END LOOP;

  -- template_source
  v_source := s -> 'template_source';
  IF v_source IS NULL THEN
    v_problems := v_problems || 'config_snapshot.template_source: missing'::text;
  ELSIF jsonb_typeof(v_source) <> 'object' THEN
    v_problems := v_problems || 'config_snapshot.template_source: must be an object'::text;
  ELSE
    FOR v_key IN SELECT k FROM jsonb_object_keys(v_source) k WHERE k NOT IN ('repo', 'version', 'path') LOOP
      v_problems := v_problems || format('config_snapshot.template_source.%s: unknown; known are repo, version, path', left(v_key, 100));
    END LOOP;

    v_value := v_source ->> 'repo';
    IF coalesce(v_value, '') = '' THEN
      v_problems := v_problems || 'config_snapshot.template_source.repo: missing'::text;
    ELSIF jsonb_typeof(v_source -> 'repo') <> 'string' THEN
      v_problems := v_problems || 'config_snapshot.template_source.repo: must be a string'::text;
    ELSIF v_value ~* '^([a-z][a-z0-9+.-]*://[^/]*:[^/]*@|https?://[^/]*@)' THEN
      -- Not echoed: it holds a password or a token.
      v_problems := v_problems || 'config_snapshot.template_source.repo: holds credentials; they belong to the agent, not into the URL'::text;
    ELSIF length(v_value) > 500 OR v_value ~ '[[:space:][:cntrl:]]'
       OR v_value !~ '^(https://[A-Za-z0-9\[][^/@?#]*/[^?#]+|ssh://([A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9\[][^/@]*/.+|file:///.+|[A-Za-z0-9._][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-].*)$' THEN
      -- Not echoed either: what does not fit may hold a password somewhere.
      v_problems := v_problems || 'config_snapshot.template_source.repo: must be https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH'::text;
    END IF;

    v_value := v_source ->> 'version';
    IF coalesce(v_value, '') = '' THEN
      v_problems := v_problems || 'config_snapshot.template_source.version: missing; a tag or a full commit is needed'::text;
    ELSIF jsonb_typeof(v_source -> 'version') <> 'string' THEN
      v_problems := v_problems || 'config_snapshot.template_source.version: must be a string'::text;
    ELSIF length(v_value) > 200 OR v_value ~ '[[:space:][:cntrl:]~^:?*\[\\]' OR v_value ~ '^(-|refs/)' OR v_value ~ '\.\.' THEN
      v_problems := v_problems || format('config_snapshot.template_source.version: %s is not a tag or a full commit', to_json(left(v_value, 200)));
    END IF;

    v_value := v_source ->> 'path';
    IF v_value IS NOT NULL AND (jsonb_typeof(v_source -> 'path') <> 'string' OR length(v_value) > 500
       OR v_value ~ '^/' OR v_value ~ '[[:cntrl:]\\]' OR v_value ~ '(^|/)\.\.(/|$)') THEN
      v_problems := v_problems || format('config_snapshot.template_source.path: %s must be a directory inside the repository, without ".."', to_json(left(v_value, 200)));
    END IF;
  END IF;

  -- terraform_vars
  IF s ? 'terraform_vars' THEN
    IF jsonb_typeof(s -> 'terraform_vars') <> 'object' THEN
      v_problems := v_problems || 'config_snapshot.terraform_vars: must be an object'::text;
    ELSE
      FOR v_key IN SELECT k FROM jsonb_object_keys(s -> 'terraform_vars') k
                   WHERE k !~ '^[A-Za-z_][A-Za-z0-9_-]{0,199}$' LOOP
        v_problems := v_problems || format('config_snapshot.terraform_vars.%s: not a variable name', left(v_key, 100));
      END LOOP;
    END IF;
  END IF;

  -- terraform
  IF s ? 'terraform' THEN
    IF jsonb_typeof(s -> 'terraform') <> 'object' THEN
      v_problems := v_problems || 'config_snapshot.terraform: must be an object'::text;
    ELSE
      FOR v_key IN SELECT k FROM jsonb_object_keys(s -> 'terraform') k WHERE k NOT IN ('engine', 'version') LOOP
        v_problems := v_problems || format('config_snapshot.terraform.%s: unknown; known are engine, version', left(v_key, 100));
      END LOOP;
      IF s -> 'terraform' ->> 'engine' NOT IN ('terraform', 'tofu') THEN
        v_problems := v_problems || 'config_snapshot.terraform.engine: must be "terraform" or "tofu"'::text;
      END IF;
      IF length(s -> 'terraform' ->> 'version') > 64 OR s -> 'terraform' ->> 'version' !~ '^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$' THEN
        v_problems := v_problems || 'config_snapshot.terraform.version: must be an exact version such as 1.11.4'::text;
      END IF;
    END IF;
  END IF;

  IF s ? 'meta' AND jsonb_typeof(s -> 'meta') <> 'object' THEN
    v_problems := v_problems || 'config_snapshot.meta: must be an object'::text;
  END IF;

  IF s ? 'sealed_vars' THEN
    v_problems := v_problems || tendril.sealed_problems(s -> 'sealed_vars', s -> 'terraform_vars');
  END IF;
  IF s ?| ARRAY['targets', 'replace', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key', 'lock_id', 'state'] THEN
    v_problems := v_problems || tendril.life_problems(s);
  END IF;

  -- workspace
  IF s ? 'workspace' AND jsonb_typeof(s -> 'workspace') <> 'string' THEN
    v_problems := v_problems || 'config_snapshot.workspace: must be a string'::text;
  ELSE
    v_value := tendril.snapshot_workspace(s);
    IF NOT s ? 'workspace' AND (s -> 'terraform_vars' ->> 'project_name' ~ '/' OR s -> 'terraform_vars' ->> 'environment' ~ '/') THEN
      -- a/b with c and a with b/c must not become one state.
      v_problems := v_problems || 'config_snapshot.workspace: missing; project_name and environment cannot stand for it, for one has a "/" in it'::text;
    ELSIF coalesce(v_value, '') = '' THEN
      v_problems := v_problems || 'config_snapshot.workspace: missing; give it, or the variables project_name and environment'::text;
    ELSIF v_value !~ '^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$' OR v_value ~ '\.\.|//' THEN
      v_problems := v_problems || format('config_snapshot.workspace: %s may hold letters, digits and . _ / - only, begin with a letter or digit, and have at most 128 characters', to_json(left(v_value, 200)));
    END IF;
  END IF;
  RETURN v_problems;
END $$;
-- +goose StatementEnd

-- As before, and: the operation is checked, who asks for it, and what the
-- snapshot has for it.
-- What our own functions ask for once more is asked by whoever asked first.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.accept_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_org       uuid;
  v_problems  text[];
  v_again     boolean := NEW.attempt > 1; -- by our own function, which has asked whether
  v_workspace public.workspaces;
  v_repo      text;
  v_path      text;
  v_person    boolean := tendril.is_person();
  v_most      int;
BEGIN
  -- First who asks, and one answer for "no such cluster" and "not yours":
  -- WITH CHECK runs only after triggers, and an error text must not tell a
  -- stranger what exists.
  -- Nor must the time that the answer takes: memberships are looked up for both.
  SELECT org_id INTO v_org FROM public.clusters WHERE id = NEW.cluster_id;
  IF NOT (tendril.may_act(v_org, 'operator') OR v_again) OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found',
      format('there is no cluster %s that you may deploy to', NEW.cluster_id),
      'check the id, and that you are an operator of its organisation');
  END IF;

  IF tendril.has_vast_number(NEW.config_snapshot) THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', 'config_snapshot: a number in it is larger than 1e400 or has more than 400 digits after the point');
  END IF;
  NEW.operation := coalesce(NEW.operation, 'apply');
  IF NEW.operation NOT IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state') THEN
    PERFORM tendril.refuse('PT422', 'bad_operation', format('operation: %s is not plan, apply, destroy, refresh, unlock or state', to_json(left(NEW.operation, 100))));
  END IF;
  v_problems := tendril.snapshot_problems(NEW.config_snapshot);
  IF v_problems = '{}' THEN
    v_problems := tendril.operation_problems(NEW.operation, NEW.config_snapshot);
  END IF;
  IF v_problems <> '{}' THEN
    -- Each unknown name is one: of a large snapshot they fill the server's log.
    PERFORM tendril.refuse('PT422', 'bad_snapshot', array_to_string(v_problems[1:20], E'\n')
      || CASE WHEN cardinality(v_problems) > 20 THEN format(E'\n(%s more)', cardinality(v_problems) - 20) ELSE '' END);
  ELSIF (NEW.operation = 'unlock' OR NEW.operation = 'state' AND NEW.config_snapshot -> 'state' ->> 'command' <> 'list')
        AND NOT tendril.may_act(v_org, 'admin') THEN
    -- Whoever changes a state, or takes its lock away, goes round all that is
    -- asked of an apply. A list has addresses alone.
    PERFORM tendril.refuse('PT403', 'not_an_admin',
      CASE NEW.operation WHEN 'unlock' THEN 'the lock of a state is taken away by an admin'
                         ELSE format('%s of a state is for an admin: a state holds every secret of its workspace, and says what belongs to it', NEW.config_snapshot -> 'state' ->> 'command') END,
      'ask an admin of the organisation');
  ELSIF NEW.id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_id', 'id: null; leave it out, or give a UUID');
  ELSIF coalesce(NEW.priority, 0) NOT BETWEEN -100 AND 100 THEN
    PERFORM tendril.refuse('PT422', 'bad_priority', format('priority: %s is not between -100 and 100', NEW.priority));
  END IF;

  -- SQL alone makes workspaces; their state is keyed by the id.
  INSERT INTO public.workspaces (org_id, cluster_id, name)
  VALUES (v_org, NEW.cluster_id, tendril.snapshot_workspace(NEW.config_snapshot))
  ON CONFLICT (cluster_id, name) DO NOTHING;
  -- The lock makes whoever ends a run here see this row, or wait for it.
  SELECT * INTO STRICT v_workspace FROM public.workspaces
  WHERE cluster_id = NEW.cluster_id AND name = tendril.snapshot_workspace(NEW.config_snapshot)
  FOR NO KEY UPDATE;

  v_repo := tendril.plain_repo(NEW.config_snapshot -> 'template_source' ->> 'repo');
  v_path := tendril.plain_path(NEW.config_snapshot -> 'template_source' ->> 'path');
  PERFORM tendril.check_binding(v_workspace, v_repo, v_path);

  IF v_person AND NOT v_again THEN
    -- A script, or a model, that deploys in a loop stops here.
    v_most := (SELECT queue_limit FROM tendril.settings);
    -- In the order of the queue's index, so that no plan reads another one.
    PERFORM FROM public.provisions WHERE workspace_id = v_workspace.id AND status = 'QUEUED'
    ORDER BY priority DESC, number OFFSET v_most - 1 LIMIT 1;
    IF FOUND THEN
      PERFORM tendril.refuse('PT429', 'queue_full',
        format('%s provisions are queued in workspace %s, which is the most', v_most, to_json(v_workspace.name)),
        'cancel what is not needed, or wait until some of it has run');
    END IF;
  END IF;

  NEW.org_id       := v_org;
  NEW.workspace_id := v_workspace.id;
  NEW.status       := 'QUEUED';
  NEW.priority     := coalesce(NEW.priority, 0);
  NEW.created_at   := now();
  IF NOT v_again AND (v_person OR NEW.requested_by IS NULL) THEN
    NEW.requested_by := tendril.current_user_id();
  END IF;
  NEW.resolved_commit := NULL; NEW.engine := NULL; NEW.engine_version := NULL;
  NEW.plan_summary := NULL; NEW.outputs := NULL; NEW.error_code := NULL; NEW.error_message := NULL;
  NEW.started_at := NULL; NEW.finished_at := NULL;
  NEW.cancel_requested_at := NULL; NEW.cancel_requested_by := NULL;
  NEW.plan_digest := NULL; NEW.approved_plan := NULL; NEW.approved_at := NULL; NEW.approved_by := NULL;
  NEW.not_before := CASE WHEN v_again THEN NEW.not_before END;
  RETURN NEW;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN program_limit_exceeded THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', format('config_snapshot: %s', SQLERRM));
END $$;
-- +goose StatementEnd

-- What is asked of a state is audited, as people's functions are.
-- +goose StatementBegin
CREATE FUNCTION tendril.audit_state() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.audit(NEW.org_id, CASE NEW.operation WHEN 'unlock' THEN 'unlock_state' ELSE 'state_' || (NEW.config_snapshot -> 'state' ->> 'command') END,
    'provision', NEW.id, jsonb_strip_nulls(jsonb_build_object('workspace', NEW.workspace_id, 'lock_id', NEW.config_snapshot -> 'lock_id')
      || coalesce(NEW.config_snapshot -> 'state', '{}') - 'command'));
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_audit_state AFTER INSERT ON public.provisions
  FOR EACH ROW WHEN (NEW.operation IN ('unlock', 'state')) EXECUTE FUNCTION tendril.audit_state();

-- Which template it is, however it is written: what one address has fetched
-- another fetches as well, by another protocol, for another user, in capitals, by
-- way of the same directory. Null where that cannot be seen.
-- +goose StatementBegin
CREATE FUNCTION tendril.template_key(p_repo text, p_path text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_repo ~ '%|\.\.' THEN
    RETURN NULL;
  END IF;
  p_repo := regexp_replace(lower(p_repo), '^([a-z]+://)?([^/@]*@)?', '');
  p_repo := regexp_replace(p_repo, '^([^/:\[]+|\[[^]]*\])(:[0-9]*(?=/))?[/:]', '\1/'); -- no port, and HOST:PATH is HOST/PATH
  p_repo := regexp_replace(regexp_replace(p_repo, '(/\.?)+(?=/|$)', '', 'g'), '(\.git)?$', '');
  RETURN regexp_replace(p_repo, '^([^/]*)\./', '\1/') || ' ' || btrim(regexp_replace('/' || coalesce(p_path, ''), '(/\.?)+(?=/|$)', '', 'g'), '/');
END $$;
-- +goose StatementEnd

-- When the plan of a provision must be approved: the strictest of what its
-- snapshot, its template in the catalogue and its cluster say.
-- +goose StatementBegin
CREATE FUNCTION tendril.approval_for(p_provision public.provisions) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_rules CONSTANT text[] := ARRAY['never', 'destructive', 'always'];
  v_rule  int;
  v_key   text;
BEGIN
  IF p_provision.operation NOT IN ('apply', 'destroy') THEN
    RETURN 'never';
  END IF;
  v_rule := greatest(1, array_position(c_rules, p_provision.config_snapshot ->> 'approval'),
    (SELECT array_position(c_rules, c.approval) FROM public.clusters c WHERE c.id = p_provision.cluster_id));
  -- Asked with each claim: to see that no template has a rule takes less time
  -- than to say which one it is.
  PERFORM FROM public.templates t WHERE t.org_id = p_provision.org_id AND t.approval <> 'never' LIMIT 1;
  IF FOUND THEN
    v_key := tendril.template_key(p_provision.config_snapshot -> 'template_source' ->> 'repo', p_provision.config_snapshot -> 'template_source' ->> 'path');
    -- What does not show which template it is counts as each of them.
    v_rule := greatest(v_rule, (
      SELECT max(array_position(c_rules, t.approval)) FROM public.templates t
      WHERE t.org_id = p_provision.org_id AND t.approval <> 'never' AND coalesce(tendril.template_key(t.repo, t.path) = v_key, true)));
  END IF;
  RETURN c_rules[v_rule];
END $$;

-- Refuses the apply of a plan that a person must approve first. Asked under the
-- rules of now: an admin may have made them stricter since the plan was made.
CREATE FUNCTION tendril.guard_apply(p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_rule text := tendril.approval_for(p_provision);
  v_plan jsonb := coalesce(p_detail -> 'plan', p_provision.plan_summary);
BEGIN
  IF p_provision.operation IN ('plan', 'refresh') THEN
    PERFORM tendril.refuse('PT409', 'operation_refused', format('a %s is not applied', p_provision.operation));
  ELSIF p_provision.approved_plan IS NOT NULL THEN
    IF NOT tendril.plan_bundle_stored(p_provision.id, p_provision.approved_plan) THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan that was approved is not stored any more, and no other may be applied', 'deploy again');
    ELSIF p_detail ->> 'plan_digest' IS DISTINCT FROM p_provision.approved_plan THEN
      -- Such as an agent that is too old to know of approved plans, and has made
      -- one of its own.
      PERFORM tendril.refuse('PT409', 'plan_invalid', 'the plan that was approved must be applied, and the agent tells of another or of none', 'update the agent, and deploy again');
    END IF;
  ELSIF v_rule = 'always' OR v_rule = 'destructive' AND (
          p_provision.operation = 'destroy'
          -- Nothing told of the plan is no word that it destroys nothing.
          OR coalesce(jsonb_typeof(v_plan), 'null') <> 'object'
          OR coalesce((v_plan ->> 'destroy')::bigint, 0) + coalesce((v_plan ->> 'replace')::bigint, 0) + coalesce((v_plan ->> 'forget')::bigint, 0) > 0) THEN
    PERFORM tendril.refuse('PT409', 'approval_needed',
      CASE v_rule WHEN 'always' THEN 'this plan must be approved before it is applied'
                  ELSE 'this plan destroys, replaces or forgets something, and must be approved before it is applied' END,
      'report AWAITING_APPROVAL, with the plan stored');
  END IF;
END $$;
-- +goose StatementEnd

-- Which contract an agent must speak at least to run a provision: one that knows
-- less would leave out what it does not know, or fail when it comes to it.
-- +goose StatementBegin
CREATE FUNCTION tendril.contract_needed(p_provision public.provisions) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE WHEN p_provision.operation <> 'apply' OR p_provision.approved_plan IS NOT NULL
                OR p_provision.config_snapshot ?| ARRAY['sealed_vars', 'targets', 'replace', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key']
                OR tendril.approval_for(p_provision) <> 'never'
              THEN 3 ELSE 1 END;
END $$;

-- Whether an agent that speaks an older contract may run a provision.
CREATE FUNCTION tendril.suits(p_provision uuid, p_contract int) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT tendril.contract_needed(p) <= p_contract FROM public.provisions p WHERE p.id = p_provision);
END $$;
-- +goose StatementEnd

-- As before, and: whether the plan must be approved, the plan that was, and which
-- attempt it is. An agent of an older contract gets only what it can run.
DROP FUNCTION public.fetch_next_provision(text, uuid, uuid, uuid);
-- +goose StatementBegin
CREATE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
RETURNS TABLE (claim_id uuid, provision_id uuid, number bigint, workspace_id uuid, workspace_name text,
               operation text, config_snapshot jsonb, pinned_commit text,
               approval text, approved_plan text, attempt smallint, has_resources boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
  v_caller    record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_claim     tendril.claims;
  v_workspace public.workspaces;
  v_found     public.workspaces;
  v_group     record;
  v_passed    uuid;
  v_provision uuid;
  v_contract  int;
BEGIN
  SELECT * INTO v_claim FROM tendril.claims WHERE id = p_claim_id;
  IF FOUND THEN
    -- A repeat after a lost reply, or somebody else's id.
    IF v_claim.cluster_id <> v_caller.cluster_id OR v_claim.instance_id <> p_instance OR v_claim.boot_id <> p_boot OR v_claim.state <> 'running' THEN
      PERFORM tendril.refuse('PT409', 'claim_lost', format('claim %s is used up', p_claim_id), 'claim with a new id');
    END IF;
    v_provision := v_claim.provision_id;
  ELSIF p_claim_id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'claim_id_missing', 'p_claim_id: missing; the agent chooses it, a new UUID for each claim');
  ELSIF v_caller.paused_at IS NOT NULL THEN
    RETURN;
  END IF;
  WHILE v_provision IS NULL LOOP
    v_workspace := NULL;
    v_passed := NULL;
    -- The most urgent of what anybody may do, and of what only this agent may.
    FOR v_group IN
      SELECT u.only_instance, u.head_priority, u.head_number FROM (
        (SELECT w.only_instance, w.head_priority, w.head_number FROM public.workspaces w
         WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = '00000000-0000-0000-0000-000000000000'
           AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
         ORDER BY w.head_priority DESC, w.head_number LIMIT 1)
        UNION ALL
        (SELECT w.only_instance, w.head_priority, w.head_number FROM public.workspaces w
         WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = p_instance
           AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
         ORDER BY w.head_priority DESC, w.head_number LIMIT 1)) u
      ORDER BY u.head_priority DESC, u.head_number
    LOOP
      -- Usually the first group's first is free, and goes before all of the second.
      EXIT WHEN (v_workspace.head_priority, v_group.head_number) > (v_group.head_priority, v_workspace.head_number);
      -- Locked: a later boot that registers meanwhile waits until this claim can
      -- be seen by its sweep.
      SELECT contract INTO v_contract FROM public.agents WHERE id = v_caller.agent_id AND boot_id = p_boot FOR SHARE;
      IF NOT FOUND THEN
        PERFORM tendril.current_agent(v_caller.cluster_id, p_instance, p_boot);
        PERFORM tendril.refuse('PT503', 'busy', 'the agent was registered just now', 'try again');
      END IF;
      SELECT * INTO v_found FROM public.workspaces w
      WHERE w.cluster_id = v_caller.cluster_id AND w.only_instance = v_group.only_instance
        AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
        AND CASE WHEN v_contract >= 3 THEN true ELSE tendril.suits(w.head_id, v_contract) END
      ORDER BY w.head_priority DESC, w.head_number
      LIMIT 1
      FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND;
      IF v_workspace.id IS NULL OR (v_found.head_priority, v_workspace.head_number) > (v_workspace.head_priority, v_found.head_number) THEN
        v_passed := v_workspace.id;
        v_workspace := v_found;
      ELSE
        v_passed := v_found.id;
      END IF;
    END LOOP;
    -- Locked for nothing until we commit: who passed over it is told.
    PERFORM tendril.wake(v_passed) WHERE v_passed IS NOT NULL;
    IF v_workspace.id IS NULL THEN
      RETURN; -- others claim it, or deploy to it and wake us then
    END IF;

    -- CASE, for status = 'QUEUED' would imply the queue's index.
    UPDATE public.provisions SET status = 'PROCESSING', started_at = coalesce(started_at, clock_timestamp())
    WHERE id = v_workspace.head_id AND CASE status WHEN 'QUEUED' THEN true ELSE false END;
    IF NOT FOUND THEN
      -- Somebody changed or deleted it by hand: one such row must not stop the
      -- whole cluster.
      PERFORM tendril.refresh_head(v_workspace.id);
      CONTINUE;
    END IF;

    WITH claim AS (
      INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, directory, lease_until)
      SELECT p_claim_id, v_workspace.head_id, v_workspace.id, v_caller.cluster_id, p_instance, p_boot, v_caller.host, v_caller.directory,
             clock_timestamp() + s.lease FROM tendril.settings s
    ), lost AS ( -- what was lost here before can never settle now
      UPDATE tendril.claims SET state = 'ended'
      WHERE id IN (SELECT id FROM tendril.claims WHERE workspace_id = v_workspace.id AND state = 'lost' FOR NO KEY UPDATE SKIP LOCKED)
    ), progress AS (
      INSERT INTO public.provision_progress (provision_id, org_id, stage)
      VALUES (v_workspace.head_id, v_workspace.org_id, 'checkout')
      ON CONFLICT (provision_id) DO UPDATE SET stage = 'checkout', percent = NULL, updated_at = clock_timestamp()
    )
    -- The next head is chosen when this one ends; until then nothing runs here.
    UPDATE public.workspaces
    SET running_claim = p_claim_id,
        (head_id, head_priority, head_number) = (
          SELECT p.id, p.priority, p.number FROM public.provisions p
          WHERE p.workspace_id = v_workspace.id AND p.status = 'QUEUED' AND v_workspace.reserved_by IS NULL
          ORDER BY p.priority DESC, p.number LIMIT 1)
    WHERE id = v_workspace.id;
    v_provision := v_workspace.head_id;
  END LOOP;

  RETURN QUERY
  SELECT p_claim_id, p.id, p.number, w.id, w.name, p.operation, p.config_snapshot,
         (SELECT t.commit FROM public.template_pins t
          WHERE t.org_id = p.org_id AND t.repo = tendril.plain_repo(p.config_snapshot -> 'template_source' ->> 'repo')
            AND t.version = p.config_snapshot -> 'template_source' ->> 'version'),
         tendril.approval_for(p), p.approved_plan, p.attempt,
         EXISTS (SELECT FROM public.resources r WHERE r.workspace_id = w.id)
  FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = v_provision;
EXCEPTION
  -- unique_violation: the same claim id, of a call that is not committed yet.
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- As before, and: a run may end with a plan that awaits approval, and no apply
-- begins that needs one and has none.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.update_provision_status(p_token_hash text, p_claim_id uuid, p_status text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster   public.clusters := tendril.authenticate(p_token_hash);
  v_detail    jsonb := coalesce(p_detail, '{}');
  v_id        uuid;
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_holds     boolean; -- lost, and the workspace is kept for it
  v_as_left   boolean; -- nobody has set another status by hand
  v_events    bigint := 0;
  v_most      bigint;
BEGIN
  IF p_status IS NULL OR p_status NOT IN ('PROCESSING', 'SUCCESS', 'FAILED', 'CANCELLED', 'AWAITING_APPROVAL') THEN
    PERFORM tendril.refuse('PT422', 'bad_status', format('p_status: %s is not PROCESSING, SUCCESS, FAILED, CANCELLED or AWAITING_APPROVAL', coalesce(to_json(left(p_status, 100))::text, 'missing')));
  ELSIF jsonb_typeof(v_detail) <> 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail must be an object');
  ELSIF tendril.has_vast_number(v_detail) THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail: a number in it is larger than 1e400 or has more than 400 digits after the point');
  ELSIF p_status = 'AWAITING_APPROVAL' AND coalesce(v_detail ->> 'plan_digest', '') !~ '^[0-9a-f]{64}$' THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', 'p_detail.plan_digest: the SHA-256 of the plan, in hexadecimal, is needed');
  ELSIF octet_length(v_detail::text) > 1048576 THEN
    PERFORM tendril.refuse('PT413', 'detail_too_large', format('p_detail has %s bytes, more than the 1048576 allowed', octet_length(v_detail::text)));
  END IF;

  SELECT workspace_id INTO v_id FROM tendril.claims WHERE id = p_claim_id AND cluster_id = v_cluster.id;
  IF NOT FOUND THEN
    PERFORM tendril.claim_lost(p_claim_id, 'is not known here');
  END IF;
  -- Progress leaves the workspace alone, but for what binds it.
  IF p_status <> 'PROCESSING' OR v_detail ?| ARRAY['commit', 'local_state', 'state_unsaved'] THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = v_id FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim_id FOR NO KEY UPDATE;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_claim.provision_id FOR NO KEY UPDATE;
  -- Whoever ends the hold waits for the claim's lock.
  v_holds := v_claim.state = 'lost' AND EXISTS (SELECT FROM public.workspaces WHERE id = v_id AND held_by_claim = p_claim_id);
  v_as_left := CASE v_claim.state WHEN 'running' THEN v_provision.status = 'PROCESSING'
                                  ELSE v_provision.status = 'FAILED' AND v_provision.error_code IS NOT DISTINCT FROM 'agent_lost' END;

  IF p_status <> 'PROCESSING' AND v_claim.state = 'ended' AND v_provision.status = p_status
     AND v_provision.error_code IS NOT DISTINCT FROM v_detail ->> 'error_code' THEN
    RETURN; -- a repeat after a lost reply
  ELSIF p_status = 'AWAITING_APPROVAL' AND v_claim.state = 'ended' AND v_provision.plan_digest = v_detail ->> 'plan_digest' THEN
    RETURN; -- likewise, and somebody may have spoken since
  ELSIF v_claim.state = 'ended' THEN
    PERFORM tendril.claim_lost(p_claim_id, format('has ended: the provision is %s', v_provision.status));
  ELSIF v_claim.state = 'lost' THEN
    IF p_status = 'AWAITING_APPROVAL' OR p_status = 'PROCESSING' AND (v_claim.apply_begun_at IS NULL OR v_detail ->> 'stage' = 'apply') THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease');
    ELSIF NOT v_holds AND NOT v_as_left
          OR EXISTS (SELECT FROM tendril.claims c WHERE c.workspace_id = v_id AND c.number > v_claim.number) THEN
      PERFORM tendril.claim_lost(p_claim_id, 'has lost its lease, and the workspace has been used since');
    ELSIF NOT v_as_left THEN
      -- Somebody has set another status by hand: where the state is still
      -- matters, and no more.
      v_detail := jsonb_strip_nulls(jsonb_build_object('n', v_detail -> 'n', 'state_unsaved', v_detail -> 'state_unsaved'));
    ELSIF NOT v_holds AND v_claim.apply_begun_at IS NOT NULL THEN
      -- An admin has released the workspace: what the run tells is recorded, no
      -- more.
      v_detail := v_detail - ARRAY['state_unsaved', 'local_state'];
    END IF;
  ELSIF p_status = 'PROCESSING' AND v_detail ->> 'stage' = 'apply' THEN
    -- Also when it is asked again: the first answer was lost, so the apply has
    -- not begun.
    IF v_claim.cancel_requested_at IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'cancel_requested', 'the provision is to be cancelled; apply must not begin');
    ELSIF v_claim.lease_until < clock_timestamp() THEN
      PERFORM tendril.refuse('PT503', 'lease_expired', 'the claim''s lease has run out; apply must not begin', 'send a heartbeat, then ask again');
    ELSIF v_claim.apply_begun_at IS NULL THEN
      PERFORM tendril.guard_apply(v_provision, v_detail);
    END IF;
  ELSIF p_status = 'AWAITING_APPROVAL' AND v_as_left THEN
    IF v_claim.cancel_requested_at IS NOT NULL AND v_claim.apply_begun_at IS NULL THEN
      -- Nobody wants to know any more what the plan would do.
      p_status := 'CANCELLED';
      v_detail := v_detail || '{"error_code": "cancelled", "error_message": "Cancelled before apply had begun."}';
    ELSIF v_provision.operation NOT IN ('apply', 'destroy') THEN
      PERFORM tendril.refuse('PT409', 'operation_refused', format('a %s is not applied, so nobody need approve it', v_provision.operation));
    ELSIF v_provision.approved_plan IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'already_approved', 'a plan of this provision is approved; that very one must be applied, or none');
    ELSIF NOT tendril.plan_bundle_stored(v_provision.id, v_detail ->> 'plan_digest') THEN
      PERFORM tendril.refuse('PT409', 'plan_missing', 'the plan that is to be approved is not stored', 'store it with put_blob first');
    END IF;
  END IF;
  IF p_status = 'PROCESSING' AND (v_detail ->> 'n')::bigint <= v_claim.last_report THEN
    RETURN; -- a repeat as well: reports are numbered, and come in order
  END IF;

  IF p_status <> 'PROCESSING' AND v_detail ->> 'stage' = 'apply' THEN
    v_detail := v_detail - 'stage'; -- a result asks for no acknowledgement
  END IF;
  IF v_detail ? 'events' THEN
    v_events := octet_length((v_detail -> 'events')::text);
    v_most := (SELECT event_limit FROM tendril.settings);
    IF v_claim.event_bytes + v_events > v_most THEN
      v_detail := v_detail - 'events';
      IF v_claim.event_bytes <= v_most THEN
        PERFORM tendril.system_line(v_provision.id, format('This run has reported %s of events, the most that the database keeps (tendril.settings.event_limit). Further ones are left out.', pg_size_pretty(v_most)));
      END IF;
    END IF;
  END IF;
  IF v_detail ? 'n' OR v_events > 0 THEN
    UPDATE tendril.claims SET last_report = coalesce((v_detail ->> 'n')::bigint, last_report), event_bytes = event_bytes + v_events WHERE id = p_claim_id;
  END IF;
  PERFORM tendril.record_progress(v_claim, v_provision, v_detail);
  IF v_detail ->> 'state_unsaved' IS NOT NULL THEN
    PERFORM tendril.note_unsaved_state(v_claim, (v_detail ->> 'state_unsaved')::boolean);
  END IF;
  IF p_status <> 'PROCESSING' AND NOT v_as_left THEN
    -- Somebody has set another status by hand: it stays, and the run is over.
    PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported %s; the provision had been set to %s.', v_claim.host, p_status, v_provision.status));
    PERFORM tendril.end_claim(p_claim_id, v_id);
  ELSIF p_status = 'AWAITING_APPROVAL' THEN
    PERFORM tendril.await_approval(p_claim_id, v_detail ->> 'plan_digest');
  ELSIF p_status <> 'PROCESSING' THEN
    IF v_claim.state = 'lost' THEN
      PERFORM tendril.system_line(v_provision.id, format('The agent on %s reported after all: %s.', v_claim.host, p_status));
    END IF;
    PERFORM tendril.end_provision(v_provision.id, p_status, v_detail ->> 'error_code', left(v_detail ->> 'error_message', 16384));
    PERFORM tendril.end_claim(p_claim_id, v_id);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail cannot be stored: %s', left(SQLERRM, 500)));
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['fetch_next_provision']);
GRANT EXECUTE ON FUNCTION public.fetch_next_provision(text, uuid, uuid, uuid) TO anon, tendril_agent;
GRANT INSERT (operation) ON public.provisions TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';

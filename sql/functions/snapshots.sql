-- Snapshots: checks, and the workspace that follows from one.

-- The snapshot's workspace, else project_name/environment from its variables, else null.
CREATE OR REPLACE FUNCTION tendril.snapshot_workspace(p_snapshot jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(p_snapshot ->> 'workspace',
                  (p_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (p_snapshot -> 'terraform_vars' ->> 'environment'));
END $$;

-- What is wrong with a snapshot; empty when nothing is.
--
-- Arguments:
--   s  config_snapshot, an object of at most 262144 bytes; a key that is null counts as absent
--     template_source  {repo, version, path}: https://, ssh:// or file:/// address of the Git
--                      repository, a tag or full commit, and the directory in it (optional)
--     terraform_vars   object of variables by name. Optional
--     sealed_vars      object of age messages, armoured, by variable name: values sealed to the
--                      cluster's key, at most 16384 bytes each. Optional
--     workspace        name of the workspace, at most 128 characters; without it
--                      project_name/environment from terraform_vars
--     terraform        {engine, version}: terraform or tofu, and an exact version. Optional
--     targets          list of at most 100 resource addresses: run only these. Optional
--     replace          list of at most 100 resource addresses: replace these. Optional
--     power            for the operation power: start, stop, restart, rescue or unrescue
--     approval         when the plan needs approval: never, destructive or always. Optional
--     timeout_seconds  longest duration of the run, 1 to 604800. Optional
--     max_attempts     attempts if a failure may be transient, 1 to 10; without it 1
--     requester_key    age recipient, ssh-ed25519 key or certificate that results are sealed to.
--                      Optional
--     state            for the operation state: {command, args, upload, version, order}, where
--                      command is pull, push, list, rm, mv, import, rollback, adopt or reveal;
--                      args are resource addresses, and a reveal without one is of all machines;
--                      push needs upload, the id of an upload; rollback needs
--                      version, the number of a state; order is a signed order that an agent's
--                      policy may demand
--     lock_id          for the operation unlock: the id of the state's lock
--     meta             object that is kept and shown, for example {triggered_by, reason}. Optional
CREATE OR REPLACE FUNCTION tendril.snapshot_problems(s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_known    CONSTANT text[] := ARRAY['template_source', 'terraform_vars', 'sealed_vars', 'workspace', 'terraform', 'targets', 'replace',
    'power', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key', 'state', 'lock_id', 'meta'];
  c_version  CONSTANT int := 200; -- characters
  c_path     CONSTANT int := 500;
  c_engine   CONSTANT int := 64;  -- of its version
  v_problems text[] := '{}';
  v_source   jsonb;
  v_value    text;
  v_key      text;
BEGIN
  IF s IS NULL OR jsonb_typeof(s) <> 'object' THEN
    RETURN ARRAY['config_snapshot: must be a JSON object'];
  END IF;
  IF octet_length(s::text) > tendril.max_snapshot_bytes() THEN
    RETURN ARRAY[format('config_snapshot: %s bytes, more than the 262144 allowed', octet_length(s::text))];
  END IF;
  -- null is absent
  s := (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(s) WHERE jsonb_typeof(value) <> 'null');
  FOR v_key IN SELECT k FROM jsonb_object_keys(s) k
               WHERE k <> ALL (c_known) LOOP
    v_problems := v_problems || format('config_snapshot.%s: unknown; known are %s', left(v_key, tendril.quoted_name()), array_to_string(c_known, ', '));
  END LOOP;

  -- template_source
  v_source := s -> 'template_source';
  IF v_source IS NULL THEN
    v_problems := v_problems || 'config_snapshot.template_source: missing'::text;
  ELSIF jsonb_typeof(v_source) <> 'object' THEN
    v_problems := v_problems || 'config_snapshot.template_source: must be an object'::text;
  ELSE
    FOR v_key IN SELECT k FROM jsonb_object_keys(v_source) k WHERE k NOT IN ('repo', 'version', 'path') LOOP
      v_problems := v_problems || format('config_snapshot.template_source.%s: unknown; known are repo, version, path', left(v_key, tendril.quoted_name()));
    END LOOP;

    v_value := v_source ->> 'repo';
    IF coalesce(v_value, '') = '' THEN
      v_problems := v_problems || 'config_snapshot.template_source.repo: missing'::text;
    ELSIF jsonb_typeof(v_source -> 'repo') <> 'string' THEN
      v_problems := v_problems || 'config_snapshot.template_source.repo: must be a string'::text;
    ELSIF (tendril.canonical_repo(v_value)).p_problem IS NOT NULL THEN
      v_problems := v_problems || ('config_snapshot.template_source.repo: ' || (tendril.canonical_repo(v_value)).p_problem);
    END IF;

    v_value := v_source ->> 'version';
    IF coalesce(v_value, '') = '' THEN
      v_problems := v_problems || 'config_snapshot.template_source.version: missing; a tag or a full commit is needed'::text;
    ELSIF jsonb_typeof(v_source -> 'version') <> 'string' THEN
      v_problems := v_problems || 'config_snapshot.template_source.version: must be a string'::text;
    ELSIF length(v_value) > c_version OR v_value ~ '[[:space:][:cntrl:]~^:?*\[\\]' OR v_value ~ '^(-|refs/)' OR v_value ~ '\.\.' THEN
      v_problems := v_problems || format('config_snapshot.template_source.version: %s is not a tag or a full commit', to_json(left(v_value, tendril.quoted_value())));
    END IF;

    v_value := v_source ->> 'path';
    IF v_value IS NOT NULL AND (jsonb_typeof(v_source -> 'path') <> 'string' OR length(v_value) > c_path
       OR v_value ~ '^/' OR v_value ~ '[[:cntrl:]\\]' OR v_value ~ '(^|/)\.\.(/|$)') THEN
      v_problems := v_problems || format('config_snapshot.template_source.path: %s must be a directory inside the repository, without ".."', to_json(left(v_value, tendril.quoted_value())));
    END IF;
  END IF;

  -- terraform_vars
  IF s ? 'terraform_vars' THEN
    IF jsonb_typeof(s -> 'terraform_vars') <> 'object' THEN
      v_problems := v_problems || 'config_snapshot.terraform_vars: must be an object'::text;
    ELSE
      FOR v_key IN SELECT k FROM jsonb_object_keys(s -> 'terraform_vars') k
                   WHERE k !~ '^[A-Za-z_][A-Za-z0-9_-]{0,199}$' LOOP
        v_problems := v_problems || format('config_snapshot.terraform_vars.%s: not a variable name', left(v_key, tendril.quoted_name()));
      END LOOP;
    END IF;
  END IF;

  -- terraform
  IF s ? 'terraform' THEN
    IF jsonb_typeof(s -> 'terraform') <> 'object' THEN
      v_problems := v_problems || 'config_snapshot.terraform: must be an object'::text;
    ELSE
      FOR v_key IN SELECT k FROM jsonb_object_keys(s -> 'terraform') k WHERE k NOT IN ('engine', 'version') LOOP
        v_problems := v_problems || format('config_snapshot.terraform.%s: unknown; known are engine, version', left(v_key, tendril.quoted_name()));
      END LOOP;
      IF s -> 'terraform' ->> 'engine' NOT IN ('terraform', 'tofu') THEN
        v_problems := v_problems || 'config_snapshot.terraform.engine: must be "terraform" or "tofu"'::text;
      END IF;
      IF length(s -> 'terraform' ->> 'version') > c_engine OR s -> 'terraform' ->> 'version' !~ '^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$' THEN
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
  IF s ?| ARRAY['targets', 'replace', 'power', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key', 'lock_id', 'state'] THEN
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
    ELSIF tendril.workspace_problem(v_value) IS NOT NULL THEN
      v_problems := v_problems || format('config_snapshot.workspace: %s %s', to_json(left(v_value, tendril.quoted_value())), tendril.workspace_problem(v_value));
    END IF;
  END IF;
  RETURN v_problems;
END $$;

-- What is wrong with a snapshot's sealed variables, which are age messages.
CREATE OR REPLACE FUNCTION tendril.sealed_problems(p_sealed jsonb, p_plain jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_sealed   CONSTANT int := 16384; -- bytes
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
      WHEN octet_length(v_sealed.text) > c_sealed THEN format('%s bytes, at most %s are allowed', octet_length(v_sealed.text), c_sealed)
      -- Not echoed: what does not fit may be the secret itself.
      WHEN v_sealed.text !~ '^-----BEGIN AGE ENCRYPTED FILE-----\r?\n([A-Za-z0-9+/=]{1,64}\r?\n)+-----END AGE ENCRYPTED FILE-----[\r\n]*$'
        THEN 'must be an armoured age message, as "trellis seal" makes it'
      WHEN jsonb_typeof(p_plain) = 'object' AND p_plain ? v_sealed.key THEN 'is in terraform_vars as well; give it once'
    END;
    IF v_problem IS NOT NULL THEN
      v_problems := v_problems || format('config_snapshot.sealed_vars.%s: %s', left(v_sealed.key, tendril.quoted_name()), v_problem);
    END IF;
  END LOOP;
  RETURN v_problems;
END $$;

-- What is wrong with a snapshot's state, the change of a state that it asks for.
CREATE OR REPLACE FUNCTION tendril.state_problems(p_state jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_path     CONSTANT text := 'config_snapshot.state';
  c_command  CONSTANT int := 20; -- characters
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
  v_problem := CASE WHEN NOT v_state ? 'command' THEN 'missing' ELSE tendril.text_problem(v_state -> 'command', c_command) END;
  IF v_problem IS NULL AND v_state ->> 'command' NOT IN ('pull', 'push', 'list', 'rm', 'mv', 'import', 'rollback', 'adopt', 'reveal') THEN
    v_problem := 'must be pull, push, list, rm, mv, import, rollback, adopt or reveal';
  END IF;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.command: %s', c_path, v_problem);
  ELSE
    v_command := v_state ->> 'command';
  END IF;

  IF v_state ? 'args' THEN
    v_problems := v_problems || tendril.address_problems(c_path || '.args', v_state -> 'args');
  END IF;
  IF (CASE jsonb_typeof(v_state -> 'args') WHEN 'array' THEN jsonb_array_length(v_state -> 'args') <= tendril.max_addresses() ELSE NOT v_state ? 'args' END) THEN
    v_args := coalesce(jsonb_array_length(v_state -> 'args'), 0);
    IF v_command IN ('mv', 'import') AND v_args <> 2 THEN
      v_problems := v_problems || format('%s.args: %s takes 2 arguments, not %s', c_path, v_command, v_args);
    ELSIF v_command = 'reveal' AND v_args > 1 THEN
      v_problems := v_problems || format('%s.args: reveal takes 1 argument at most, not %s', c_path, v_args);
    ELSIF v_command = 'rm' AND v_args = 0 THEN
      v_problems := v_problems || format('%s.args: rm takes an argument at least', c_path);
    ELSIF v_command NOT IN ('mv', 'import', 'rm', 'reveal') AND v_args > 0 THEN
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
    ELSE tendril.number_problem(v_state -> 'version', 1, tendril.max_exact_number())
  END;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.version: %s', c_path, v_problem);
  END IF;
  -- Whether it counts is for an agent's policy to say: it has the signers' keys.
  v_problem := CASE
    WHEN NOT v_state ? 'order' THEN NULL
    WHEN v_command NOT IN ('push', 'rollback') THEN 'only for push and rollback'
    WHEN jsonb_typeof(v_state -> 'order') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(v_state -> 'order')
    WHEN octet_length(v_state ->> 'order') > tendril.max_object_bytes() OR v_state ->> 'order' !~ '^tendril-order-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$'
      THEN 'must be a signed order, as trellis state push and rollback make it'
  END;
  IF v_problem IS NOT NULL THEN
    v_problems := v_problems || format('%s.order: %s', c_path, v_problem);
  END IF;
  RETURN v_problems || ARRAY(
    SELECT format('%s.%s: unknown; known are command, args, upload, version, order', c_path, left(k, tendril.quoted_name()))
    FROM jsonb_object_keys(v_state) k WHERE k NOT IN ('command', 'args', 'upload', 'version', 'order') ORDER BY k COLLATE "C");
END $$;

-- What a snapshot lacks for an operation, or has without use for it.
CREATE OR REPLACE FUNCTION tendril.operation_problems(p_operation text, s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_operation NOT IN ('unlock', 'state', 'power') AND NOT s ?| ARRAY['targets', 'replace', 'state', 'lock_id', 'power'] THEN
    RETURN '{}'; -- as nearly always
  END IF;
  s := (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(s) WHERE jsonb_typeof(value) <> 'null');
  RETURN array_remove(ARRAY[
    CASE WHEN s ? 'targets' AND p_operation IN ('unlock', 'state') THEN format('config_snapshot.targets: not for operation %s', p_operation)
         WHEN p_operation = 'power' AND NOT s ? 'targets' THEN 'config_snapshot.targets: missing; operation power needs it' END,
    CASE WHEN s ? 'replace' AND p_operation NOT IN ('plan', 'apply') THEN format('config_snapshot.replace: not for operation %s', p_operation) END,
    CASE WHEN p_operation = 'state' AND NOT s ? 'state' THEN 'config_snapshot.state: missing; operation state needs it'
         WHEN p_operation <> 'state' AND s ? 'state' THEN format('config_snapshot.state: not for operation %s', p_operation) END,
    CASE WHEN p_operation = 'unlock' AND NOT s ? 'lock_id' THEN 'config_snapshot.lock_id: missing; operation unlock needs it'
         WHEN p_operation <> 'unlock' AND s ? 'lock_id' THEN format('config_snapshot.lock_id: not for operation %s', p_operation) END,
    CASE WHEN p_operation = 'power' AND NOT s ? 'power' THEN 'config_snapshot.power: missing; operation power needs it'
         WHEN p_operation <> 'power' AND s ? 'power' THEN format('config_snapshot.power: not for operation %s', p_operation) END
  ], NULL);
END $$;

-- What is wrong with a snapshot's options: targets, replace, power, approval, timeout_seconds,
-- max_attempts, requester_key, lock_id and state.
CREATE OR REPLACE FUNCTION tendril.life_problems(s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_timeout  CONSTANT int := 604800; -- seconds: a week
  c_attempts CONSTANT int := 10;
  c_lock_id  CONSTANT int := 200;    -- characters
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
    ('power', CASE WHEN jsonb_typeof(s -> 'power') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(s -> 'power')
                   WHEN s ->> 'power' NOT IN ('start', 'stop', 'restart', 'rescue', 'unrescue') THEN 'must be "start", "stop", "restart", "rescue" or "unrescue"' END),
    ('approval', CASE WHEN jsonb_typeof(s -> 'approval') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(s -> 'approval')
                      WHEN s ->> 'approval' NOT IN ('never', 'destructive', 'always') THEN 'must be "never", "destructive" or "always"' END),
    ('timeout_seconds', tendril.number_problem(s -> 'timeout_seconds', 1, c_timeout)),
    ('max_attempts', tendril.number_problem(s -> 'max_attempts', 1, c_attempts)),
    ('requester_key', CASE WHEN jsonb_typeof(s -> 'requester_key') <> 'string' THEN 'must be a string, not ' || tendril.kind_of(s -> 'requester_key')
                           WHEN s ->> 'requester_key' !~ '^(age1[02-9ac-hj-np-z]{58}|ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}( [^\u0001-\u001f\u007f-\u009f]{1,200})?)$'
                            AND (octet_length(s ->> 'requester_key') > tendril.max_object_bytes() OR s ->> 'requester_key' !~ '^tendril-certificate-1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}$')
                             THEN 'must be a public key, age1… or ssh-ed25519 …, or a certificate of one' END),
    ('lock_id', tendril.argument_problem(s -> 'lock_id', c_lock_id))
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

-- Refuses a repository, version or path that a snapshot could not have.
--
-- Errors: PT422 bad_template.
CREATE OR REPLACE FUNCTION tendril.check_source(p_repo text, p_version text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_problems text[] := tendril.snapshot_problems(jsonb_build_object('workspace', 'w',
    'template_source', jsonb_build_object('repo', p_repo, 'version', p_version, 'path', p_path)));
BEGIN
  IF v_problems <> '{}' THEN
    PERFORM tendril.refuse('PT422', 'bad_template', replace(tendril.problem_list(v_problems), 'config_snapshot.template_source.', 'p_'));
  END IF;
END $$;

-- A deploy is one INSERT of (cluster_id, config_snapshot): what is checked and
-- filled in when it comes.

-- +goose Up

-- The same repository written in two ways is one repository: hosts have no
-- case, https has a port, a path may end in .git and hold empty segments.
CREATE FUNCTION tendril.plain_repo(p_repo text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT regexp_replace(regexp_replace(CASE
    WHEN p_repo ~ '^[a-z]+://'
      THEN regexp_replace(lower(substring(p_repo FROM '^[a-z]+://[^/]*')), '^(https://.*):443$', '\1')
           || regexp_replace(substring(p_repo FROM '^[a-z]+://[^/]*(.*)$'), '/{2,}', '/', 'g')
    ELSE lower(split_part(p_repo, ':', 1)) || ':' || substr(p_repo, strpos(p_repo, ':') + 1)
  END, '/+$', ''), '\.git$', '')
$$;

CREATE FUNCTION tendril.plain_path(p_path text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT btrim(regexp_replace(coalesce(p_path, ''), '^(\./)+', ''), '/') $$;

-- The snapshot's workspace, else project_name/environment from its variables,
-- else null.
CREATE FUNCTION tendril.snapshot_workspace(p_snapshot jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT coalesce(p_snapshot ->> 'workspace',
                  (p_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (p_snapshot -> 'terraform_vars' ->> 'environment'))
$$;

-- What is wrong with a snapshot, each problem named by its path; empty when
-- nothing is. internal/provision/snapshot.go checks the same for programs that
-- want to know before they insert; this is the one that decides.
-- +goose StatementBegin
CREATE FUNCTION tendril.snapshot_problems(s jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
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
               WHERE k NOT IN ('template_source', 'terraform_vars', 'workspace', 'terraform', 'meta') LOOP
    v_problems := v_problems || format('config_snapshot.%s: unknown; known are template_source, terraform_vars, workspace, terraform, meta', left(v_key, 100));
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

-- +goose StatementBegin
CREATE FUNCTION tendril.accept_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_org       uuid;
  v_problems  text[];
  v_workspace public.workspaces;
  v_repo      text;
  v_path      text;
BEGIN
  -- First who asks, and one answer for "no such cluster" and "not yours":
  -- WITH CHECK runs only after triggers, and an error text must not tell a
  -- stranger what exists.
  SELECT org_id INTO v_org FROM public.clusters WHERE id = NEW.cluster_id;
  IF v_org IS NULL OR NOT tendril.may_act(v_org, 'operator') THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found',
      format('there is no cluster %s that you may deploy to', NEW.cluster_id),
      'check the id, and that you are an operator of its organisation');
  END IF;

  v_problems := tendril.snapshot_problems(NEW.config_snapshot);
  IF v_problems <> '{}' THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', array_to_string(v_problems, E'\n'));
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

  NEW.org_id       := v_org;
  NEW.workspace_id := v_workspace.id;
  NEW.status       := 'QUEUED';
  NEW.created_at   := now();
  IF tendril.is_person() OR NEW.requested_by IS NULL THEN
    NEW.requested_by := tendril.current_user_id();
  END IF;
  NEW.resolved_commit := NULL; NEW.engine := NULL; NEW.engine_version := NULL;
  NEW.plan_summary := NULL; NEW.outputs := NULL; NEW.error_code := NULL; NEW.error_message := NULL;
  NEW.started_at := NULL; NEW.finished_at := NULL;
  NEW.cancel_requested_at := NULL; NEW.cancel_requested_by := NULL;
  RETURN NEW;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

-- A workspace belongs to the template that used it first: applying another one
-- there would destroy what the first one made.
-- +goose StatementBegin
CREATE FUNCTION tendril.check_binding(p_workspace public.workspaces, p_repo text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_workspace.repo IS NOT NULL AND (p_workspace.repo, p_workspace.path) <> (p_repo, p_path) THEN
    PERFORM tendril.refuse('PT409', 'workspace_bound',
      format('workspace %s belongs to the template %s; %s would destroy what that made', to_json(p_workspace.name),
             p_workspace.repo || CASE WHEN p_workspace.path = '' THEN '' ELSE ', path ' || p_workspace.path END,
             p_repo || CASE WHEN p_path = '' THEN '' ELSE ', path ' || p_path END),
      'use another workspace, or have an admin bind this one to the new template');
  END IF;
END $$;
-- +goose StatementEnd

CREATE TRIGGER provisions_accept BEFORE INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.accept_deploy();

-- Wakes agents if the workspace has something that may run.
CREATE FUNCTION tendril.wake(p_workspace uuid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  SELECT pg_notify('tendril_work', cluster_id::text) FROM public.workspaces
  WHERE id = p_workspace AND head_id IS NOT NULL AND running_claim IS NULL AND held_by_claim IS NULL AND locked_at IS NULL
$$;

-- +goose StatementBegin
CREATE FUNCTION tendril.queue_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- Usually the queue has a head already and nothing is to be done.
  UPDATE public.workspaces SET head_id = NEW.id, head_priority = NEW.priority, head_number = NEW.number
  WHERE id = NEW.workspace_id AND reserved_by IS NULL
    AND (head_id IS NULL OR head_priority < NEW.priority
         -- numbers are drawn before the workspace is locked
         OR head_priority = NEW.priority AND head_number > NEW.number);
  -- Also when the head is another: who was woken for it may have passed over
  -- the workspace because this insert held its lock.
  PERFORM tendril.wake(NEW.workspace_id);
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_queue AFTER INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.queue_deploy();

SELECT tendril.deny_all('{}');

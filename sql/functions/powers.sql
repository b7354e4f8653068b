-- Powers: what an API token may do less than its person. A token without powers may do all that
-- its person may, unless a tool for language models uses it.

-- What is wrong with a token's powers; NULL: nothing.
CREATE OR REPLACE FUNCTION tendril.powers_problem(p_powers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_keys     CONSTANT text[] := ARRAY['change', 'may_apply', 'workspaces', 'destroy', 'approve', 'calls_per_minute', 'runs_per_hour'];
  c_patterns CONSTANT int := 50;
  c_most     CONSTANT int := 1000; -- runs an hour, and a sixth of the calls a minute
  v_key   text;
  v_value jsonb;
BEGIN
  IF jsonb_typeof(p_powers) IS DISTINCT FROM 'object' THEN
    RETURN 'must be an object';
  END IF;
  FOR v_key, v_value IN SELECT key, value FROM jsonb_each(p_powers) LOOP
    IF v_key <> ALL (c_keys) THEN
      RETURN format('%s: unknown; known are %s', left(v_key, tendril.quoted_name()), array_to_string(c_keys, ', '));
    ELSIF v_key = 'change' AND v_value NOT IN ('"nothing"', '"propose"') THEN
      RETURN 'change: must be nothing or propose';
    ELSIF v_key IN ('destroy', 'approve') AND jsonb_typeof(v_value) <> 'boolean' THEN
      RETURN format('%s: must be true or false', v_key);
    ELSIF v_key IN ('may_apply', 'workspaces')
          AND (jsonb_typeof(v_value) <> 'array' OR jsonb_array_length(v_value) > c_patterns
               OR EXISTS (SELECT FROM jsonb_array_elements(v_value) e WHERE jsonb_typeof(e) <> 'string' OR length(e #>> '{}') NOT BETWEEN 1 AND tendril.max_name())) THEN
      RETURN format('%s: must be a list of at most %s patterns of 1 to %s characters, such as lab/*', v_key, c_patterns, tendril.max_name());
    ELSIF v_key IN ('calls_per_minute', 'runs_per_hour')
          AND (jsonb_typeof(v_value) = 'number' AND v_value #>> '{}' ~ '^[1-9][0-9]{0,3}$' AND (v_value #>> '{}')::int <= c_most * CASE v_key WHEN 'runs_per_hour' THEN 1 ELSE 6 END) IS NOT TRUE THEN
      RETURN format('%s: must be a whole number from 1 to %s', v_key, c_most * CASE v_key WHEN 'runs_per_hour' THEN 1 ELSE 6 END);
    END IF;
  END LOOP;
  RETURN NULL;
END $$;

-- The API token by which the caller is known, which the control plane writes into the claims;
-- NULL: none.
CREATE OR REPLACE FUNCTION tendril.token_id() RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'token')::uuid;
EXCEPTION
  WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
END $$;

-- The powers of the caller; NULL: all that the person may. A tool for language models proposes and
-- no more, where its token has no powers of its own. What can't be read may change nothing.
CREATE OR REPLACE FUNCTION tendril.powers() RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_none CONSTANT jsonb := '{"change": "nothing"}';
  c_tool CONSTANT jsonb := '{"change": "propose"}';
  v_claims jsonb;
  v_powers jsonb;
BEGIN
  v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
  IF (v_claims ?| ARRAY['token', 'tool']) IS NOT TRUE THEN
    RETURN NULL;
  ELSIF v_claims ? 'token' THEN
    SELECT powers INTO v_powers FROM tendril.credentials WHERE id = (v_claims ->> 'token')::uuid AND user_id = (v_claims ->> 'sub')::uuid;
    IF NOT FOUND THEN
      RETURN c_none;
    END IF;
  END IF;
  RETURN coalesce(v_powers, CASE WHEN v_claims ? 'tool' THEN c_tool END);
EXCEPTION
  WHEN data_exception OR program_limit_exceeded THEN RETURN c_none;
END $$;

-- Whether a name matches one of the patterns under a key of powers; p_absent where there is none.
CREATE OR REPLACE FUNCTION tendril.power_matches(p_powers jsonb, p_key text, p_name text, p_absent boolean) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE WHEN p_powers ? p_key THEN EXISTS (SELECT FROM jsonb_array_elements_text(p_powers -> p_key) e WHERE tendril.matches(p_name, e)) ELSE p_absent END;
END $$;

-- Refuses what a token may not do in a workspace.
--
-- Arguments:
--   p_workspace   the workspace's name
--   p_what        propose: ask for a run, which waits for a person if may_apply does not have the
--                 workspace; change: what nobody has to approve; end: cancel or reject a run;
--                 approve: approve a plan
--   p_provision   the run that is meant, if one is
-- Errors: PT403 token_may_not.
-- Notes: Its callers have found that the person may do it, so that it tells no stranger anything.
CREATE OR REPLACE FUNCTION tendril.check_token(p_workspace text, p_what text, p_provision public.provisions DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_says CONSTANT int := 200; -- characters of a list
  v_powers jsonb := tendril.powers();
  v_own    boolean := coalesce(p_provision.asked_with = tendril.token_id(), false);
  v_free   boolean;
  v_bare   public.provisions;
BEGIN
  IF v_powers IS NULL THEN
    RETURN;
  ELSIF v_powers ->> 'change' = 'nothing' THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', 'this API token may only read', 'use one that was made to propose changes');
  ELSIF NOT tendril.power_matches(v_powers, 'workspaces', p_workspace, true) THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', format('this API token may change nothing in workspace %s, only in %s', to_json(p_workspace),
      left(array_to_string(ARRAY(SELECT jsonb_array_elements_text(v_powers -> 'workspaces')), ', '), c_says)), 'use another workspace, or a token that was made for this one');
  ELSIF p_what = 'propose' THEN
    RETURN;
  END IF;
  v_free := tendril.power_matches(v_powers, 'may_apply', p_workspace, false);
  IF p_what IN ('change', 'end') THEN
    IF NOT (v_free OR p_what = 'end' AND v_own) THEN
      PERFORM tendril.refuse('PT403', 'token_may_not', format('this API token may only propose runs in workspace %s', to_json(p_workspace)), 'a person can do this in the console');
    END IF;
    RETURN;
  END IF;
  -- Of its own runs it approves destroys alone, where no other rule wants a yes than that their plan
  -- is read; of others' those that no token and no tool of the same person has asked for.
  v_bare := p_provision;
  v_bare.least_approval := NULL;
  v_bare.config_snapshot := p_provision.config_snapshot - 'approval';
  IF NOT (v_free AND v_own AND p_provision.operation = 'destroy' AND coalesce((v_powers ->> 'destroy')::boolean, true) AND tendril.approval_for(v_bare) = 'never'
          OR coalesce((v_powers ->> 'approve')::boolean, false)
             AND (p_provision.asked_with IS NULL AND p_provision.least_approval IS NULL OR p_provision.requested_by IS DISTINCT FROM tendril.current_user_id())) THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', format('this API token may not approve run %s', p_provision.number), 'a person approves it in the console');
  END IF;
END $$;

-- Refuses what only a token without powers may do.
--
-- Errors: PT403 token_may_not.
CREATE OR REPLACE FUNCTION tendril.check_whole_token() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF tendril.powers() IS NOT NULL THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', 'this API token may not do that', 'do it in the console, or with a token that may do all that you may');
  END IF;
END $$;

-- Whether a person stands behind a template at a version: it is in the catalogue, at the version that
-- is offered first or at a tag, or a person has run it in the workspace.
CREATE OR REPLACE FUNCTION tendril.is_vouched(p_workspace public.workspaces, p_source jsonb) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_newest CONSTANT int := 1000; -- runs of the workspace
BEGIN
  RETURN EXISTS (
      SELECT FROM public.templates t
      WHERE t.org_id = p_workspace.org_id AND tendril.template_key(t.repo, t.path) = tendril.template_key(p_source ->> 'repo', p_source ->> 'path')
        AND (t.version = p_source ->> 'version'
             OR EXISTS (SELECT FROM public.template_tags g, jsonb_array_elements(g.tags) e
                        WHERE g.org_id = t.org_id AND g.repo = tendril.plain_repo(t.repo) AND e ->> 'tag' = p_source ->> 'version')))
    OR EXISTS (
      SELECT FROM (SELECT p.config_snapshot, p.asked_with, p.least_approval FROM public.provisions p WHERE p.workspace_id = p_workspace.id ORDER BY p.number DESC LIMIT c_newest) p
      WHERE p.asked_with IS NULL AND p.least_approval IS NULL AND p.config_snapshot -> 'template_source' = p_source);
END $$;

-- How the plan of a run must be approved because of the token that asks for it; NULL: by the other
-- rules alone. A destroy is never without its plan being approved. Where its plans wait, it asks only
-- for templates that a person stands behind: a plan runs their code before anybody's yes.
--
-- Errors: PT403 token_may_not, PT429 too_many_runs.
CREATE OR REPLACE FUNCTION tendril.token_approval(p_workspace public.workspaces, p_operation text, p_snapshot jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_newest CONSTANT int := 10000; -- runs of the organisation that are counted
  c_hour   CONSTANT interval := '1 hour';
  v_powers jsonb := tendril.powers();
  v_free   boolean;
BEGIN
  IF v_powers IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM tendril.check_token(p_workspace.name, CASE WHEN p_operation IN ('plan', 'apply', 'destroy', 'refresh', 'state', 'inspect') THEN 'propose' ELSE 'change' END);
  IF p_operation = 'destroy' AND NOT coalesce((v_powers ->> 'destroy')::boolean, true) THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', 'this API token may destroy nothing', 'a person can do this in the console');
  ELSIF v_powers ? 'runs_per_hour'
        AND (SELECT count(*) FROM (SELECT p.asked_with, p.created_at FROM public.provisions p WHERE p.org_id = p_workspace.org_id ORDER BY p.number DESC LIMIT c_newest) p
             WHERE p.asked_with = tendril.token_id() AND p.created_at > clock_timestamp() - c_hour) >= (v_powers ->> 'runs_per_hour')::int THEN
    PERFORM tendril.refuse('PT429', 'too_many_runs', format('this API token has asked for %s runs within an hour, the most it may', v_powers ->> 'runs_per_hour'), 'wait, or use another token');
  END IF;
  v_free := tendril.power_matches(v_powers, 'may_apply', p_workspace.name, false);
  IF NOT v_free AND NOT tendril.is_vouched(p_workspace, p_snapshot -> 'template_source') THEN
    PERFORM tendril.refuse('PT403', 'token_may_not', 'this API token may only use templates of the catalogue, at the version offered there or at a tag', 'ask an admin to add the template, or a person to deploy it');
  END IF;
  RETURN CASE WHEN p_operation = 'destroy' OR NOT v_free THEN 'always'
              WHEN NOT coalesce((v_powers ->> 'destroy')::boolean, true) THEN 'destructive' END;
END $$;

-- Records in the audit what the control plane has seen of an API token: a call of a tool for language
-- models (tool_call), or how many calls were refused (calls_refused). No role of outsiders may call
-- it, so that such a record is what the control plane's own server did.
--
-- Arguments:
--   p_user    the person whose token it is
--   p_token   the token
--   p_org     id or name of the organisation that they have named; where it is not one of theirs, or
--             empty, each of theirs gets the record
--   p_action  tool_call or calls_refused
--   p_detail  an object with few short texts
-- Answers: nothing.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.record_calls(p_user uuid, p_token uuid, p_org text, p_action text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_org uuid;
BEGIN
  SELECT o.id INTO v_org FROM public.orgs o JOIN public.org_members m ON m.org_id = o.id AND m.user_id = p_user
  WHERE o.id::text = lower(p_org) OR o.name = p_org ORDER BY o.id::text = lower(p_org) DESC LIMIT 1;
  INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
  SELECT m.org_id, p_user, p_action, 'credential', p_token, p_detail FROM public.org_members m
  WHERE m.user_id = p_user AND (v_org IS NULL OR m.org_id = v_org);
END $$;

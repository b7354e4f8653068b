-- Deploys and retries.

-- The trace that a request belongs to: what trellis says of it, or the header traceparent of one that
-- came through PostgREST. NULL: none, or one that is no traceparent of version 00.
CREATE OR REPLACE FUNCTION tendril.traceparent() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT t.text FROM (SELECT coalesce(nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'traceparent',
                                      nullif(current_setting('request.headers', true), '')::jsonb ->> 'traceparent') AS text) t
  WHERE t.text ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
$$;

-- Accepts an INSERT into provisions as a deploy: checks the caller's role, the operation and the
-- snapshot, and fills in the organisation, the workspace and the requester. People set id,
-- cluster_id, config_snapshot, priority and operation, and nothing else. Needs the role operator;
-- admin for the operation unlock, and for state unless its command is list.
--
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT404 cluster_not_found, PT409 workspace_bound,
--   PT422 bad_id, PT422 bad_operation, PT422 bad_priority, PT422 bad_snapshot, PT429 queue_full,
--   PT429 too_many_runs, PT503 busy.
-- Locks: workspace.
-- Notes: Checks come here rather than in constraints, which would write the row, and with it its
--   variables, to the server's log. An automatic retry (attempt > 1) keeps its requester and skips
--   the queue limit. Retries, drift checks and attempts insert snapshots that were accepted under
--   earlier rules: a new check must let those pass. An inspection, which people request by inspect_template(), has a hidden
--   workspace.
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
  v_inspect   boolean := coalesce(NEW.operation = 'inspect', false);
  v_name      text;
BEGIN
  -- First who asks, and one answer for "no such cluster" and "not yours":
  -- WITH CHECK runs only after triggers, and an error text must not tell a
  -- stranger what exists.
  -- Nor must the time that the answer takes: memberships are looked up for both.
  SELECT org_id INTO v_org FROM public.clusters WHERE id = NEW.cluster_id;
  IF NOT (tendril.may_act(v_org, 'operator') OR v_again) OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found',
      format('cluster %s not found, or you may not deploy to it', NEW.cluster_id),
      'check the id, and that you are an operator of its organisation');
  END IF;

  IF tendril.has_vast_number(NEW.config_snapshot) THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', 'config_snapshot: a number in it is larger than 1e400 or has more than 400 digits after the point');
  END IF;
  NEW.operation := coalesce(NEW.operation, 'apply');
  IF NEW.operation NOT IN ('plan', 'apply', 'destroy', 'refresh', 'power', 'unlock', 'state', 'inspect') OR v_inspect AND v_person THEN
    PERFORM tendril.refuse('PT422', 'bad_operation', format('operation: %s is not plan, apply, destroy, refresh, power, unlock or state', to_json(left(NEW.operation, tendril.quoted_name()))));
  END IF;
  v_problems := tendril.snapshot_problems(NEW.config_snapshot);
  IF v_problems = '{}' THEN
    v_problems := tendril.operation_problems(NEW.operation, NEW.config_snapshot);
  END IF;
  IF v_problems <> '{}' THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', tendril.problem_list(v_problems));
  ELSIF (NEW.operation = 'unlock' OR NEW.operation = 'state' AND NEW.config_snapshot -> 'state' ->> 'command' <> 'list')
        AND NOT tendril.may_act(v_org, 'admin') THEN
    -- Whoever changes a state, or takes its lock away, goes round all that is
    -- asked of an apply. A list has addresses alone.
    PERFORM tendril.refuse('PT403', 'not_an_admin',
      CASE NEW.operation WHEN 'unlock' THEN 'only an admin may remove the lock of a state'
                         ELSE format('only an admin may run state %s: a state holds every secret of its workspace', NEW.config_snapshot -> 'state' ->> 'command') END,
      'ask an admin of the organisation');
  ELSIF NEW.id IS NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_id', 'id: must not be null; omit it, or use a UUID');
  ELSIF coalesce(NEW.priority, 0) NOT BETWEEN tendril.least_priority() AND tendril.most_priority() THEN
    PERFORM tendril.refuse('PT422', 'bad_priority', format('priority: %s is not between -100 and 100', NEW.priority));
  END IF;

  v_repo := tendril.plain_repo(NEW.config_snapshot -> 'template_source' ->> 'repo');
  v_path := tendril.plain_path(NEW.config_snapshot -> 'template_source' ->> 'path');
  -- No snapshot's workspace begins with a full stop.
  v_name := CASE WHEN v_inspect THEN '.inspect/' || md5(v_repo || ' ' || v_path) ELSE tendril.snapshot_workspace(NEW.config_snapshot) END;
  -- The lock makes whoever ends a run here see this row, or wait for it.
  v_workspace := tendril.lock_workspace_of(v_org, NEW.cluster_id, v_name, v_inspect);
  IF NOT v_again THEN -- an attempt is asked for as the run that failed was
    NEW.asked_with := CASE WHEN tendril.powers() IS NOT NULL THEN tendril.token_id() END;
    NEW.least_approval := tendril.token_approval(v_workspace, NEW.operation, NEW.config_snapshot);
    NEW.traceparent := tendril.traceparent();
  END IF;
  PERFORM tendril.check_binding(v_workspace, v_repo, v_path);

  IF v_person AND NOT v_again THEN
    -- A script, or a model, that deploys in a loop stops here.
    v_most := (SELECT queue_limit FROM tendril.settings);
    -- In the order of the queue's index, so that no plan reads another one.
    PERFORM FROM public.provisions WHERE workspace_id = v_workspace.id AND status = 'QUEUED'
    ORDER BY priority DESC, number OFFSET v_most - 1 LIMIT 1;
    IF FOUND THEN
      PERFORM tendril.refuse('PT429', 'queue_full',
        format('workspace %s has %s queued runs, the most allowed (tendril.settings.queue_limit)', to_json(v_workspace.name), v_most),
        'cancel some, or wait until some have run');
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

CREATE OR REPLACE TRIGGER provisions_accept BEFORE INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.accept_deploy();

-- Locks the workspace of a name, which is made where there is none: SQL alone makes workspaces, and
-- their state is keyed by the id.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.lock_workspace_of(p_org uuid, p_cluster uuid, p_name text, p_hidden boolean) RETURNS public.workspaces
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace public.workspaces;
BEGIN
  INSERT INTO public.workspaces (org_id, cluster_id, name, hidden) VALUES (p_org, p_cluster, p_name, p_hidden) ON CONFLICT (cluster_id, name) DO NOTHING;
  SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE cluster_id = p_cluster AND name = p_name FOR NO KEY UPDATE;
  RETURN v_workspace;
END $$;

-- Refuses another template in a workspace than the one that used it first: applying it would
-- destroy what that one made.
--
-- Errors: PT409 workspace_bound.
CREATE OR REPLACE FUNCTION tendril.check_binding(p_workspace public.workspaces, p_repo text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_workspace.repo IS NOT NULL AND (p_workspace.repo, p_workspace.path) <> (p_repo, p_path) THEN
    PERFORM tendril.refuse('PT409', 'workspace_bound',
      format('workspace %s belongs to template %s; template %s would destroy what that one made', to_json(p_workspace.name),
             p_workspace.repo || CASE WHEN p_workspace.path = '' THEN '' ELSE ', path ' || p_workspace.path END,
             p_repo || CASE WHEN p_path = '' THEN '' ELSE ', path ' || p_path END),
      'use another workspace, or ask an admin to bind this one to the new template');
  END IF;
END $$;

-- Puts a new provision into its workspace's queue and wakes agents. try_again() does so for an
-- automatic retry.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.queue_deploy() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NEW.not_before IS NOT NULL THEN
    RETURN NULL; -- an attempt, which waits: try_again() says for what
  END IF;
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

CREATE OR REPLACE TRIGGER provisions_queue AFTER INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.queue_deploy();

-- Queues the snapshot of an ended provision once more. While such a retry has not ended, it is the
-- answer: two clicks are one deploy. Needs the role operator.
--
-- Arguments:
--   p_provision      the provision
--   p_requester_key  public key that the agent seals results to; without one, that of the earlier
--                    snapshot if the same person requested it
-- Answers: the id of the new provision.
-- Errors: PT403 not_an_admin, PT403 token_may_not, PT404 cluster_not_found,
--   PT404 provision_not_found, PT409 not_ended, PT409 workspace_bound, PT422 bad_operation,
--   PT422 bad_snapshot, PT429 queue_full, PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.retry_provision(p_provision uuid, p_requester_key text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_retry     uuid;
  v_key       text;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator', 'propose');
  IF v_provision.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT409', 'not_ended', format('run %s is %s and cannot be retried yet', v_provision.number, v_provision.status),
      'wait until it has ended, or cancel it');
  END IF;
  SELECT id INTO v_retry FROM public.provisions
  WHERE workspace_id = v_provision.workspace_id AND number > v_provision.number
    AND retry_of = p_provision AND status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED') LIMIT 1;
  IF FOUND THEN
    RETURN v_retry;
  END IF;
  v_key := coalesce(p_requester_key,
    CASE WHEN v_provision.requested_by IS NOT DISTINCT FROM tendril.current_user_id() THEN v_provision.config_snapshot ->> 'requester_key' END);
  INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority, retry_of)
  VALUES (v_provision.cluster_id,
    (v_provision.config_snapshot - 'requester_key') || CASE WHEN v_key IS NULL THEN '{}' ELSE jsonb_build_object('requester_key', v_key) END,
    v_provision.operation, v_provision.priority, p_provision)
  RETURNING id INTO v_retry;
  PERFORM tendril.audit(v_provision.org_id, 'retry_provision', 'provision', p_provision, jsonb_build_object('retry', v_retry));
  RETURN v_retry;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Workspaces: what runs next, what keeps it from running, and people's locks.

-- Chooses which provision a workspace runs next. The caller holds the workspace's lock. A reserved
-- workspace runs only what it is reserved for, once that is due.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.refresh_head(p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace record;
  v_head      record;
BEGIN
  SELECT reserved_by, due_at INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.reserved_by IS NULL THEN
    SELECT p.id, p.priority, p.number INTO v_head
    FROM public.provisions p
    WHERE p.workspace_id = p_workspace AND p.status = 'QUEUED'
    ORDER BY p.priority DESC, p.number
    LIMIT 1;
  ELSE
    SELECT p.id, p.priority, p.number INTO v_head
    FROM public.provisions p
    WHERE p.id = v_workspace.reserved_by AND CASE p.status WHEN 'QUEUED' THEN v_workspace.due_at IS NULL ELSE false END;
  END IF;
  UPDATE public.workspaces
  SET head_id = v_head.id, head_priority = v_head.priority, head_number = v_head.number
  WHERE id = p_workspace AND head_id IS DISTINCT FROM v_head.id;
END $$;

-- Notifies listening agents that a workspace has become runnable, and the one agent that may run it
-- where it is bound to one. It is a hint: an agent that misses it polls.
CREATE OR REPLACE FUNCTION tendril.notify_runnable() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.notify_work(NEW.cluster_id, NEW.only_instance);
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER workspaces_notify AFTER UPDATE ON public.workspaces
  FOR EACH ROW
  WHEN (NEW.head_id IS NOT NULL AND NEW.running_claim IS NULL AND NEW.held_by_claim IS NULL AND NEW.locked_at IS NULL
  AND (OLD.head_id IS DISTINCT FROM NEW.head_id OR OLD.running_claim IS NOT NULL
  OR OLD.held_by_claim IS NOT NULL OR OLD.locked_at IS NOT NULL
  OR OLD.unsaved_state_on IS NOT NULL AND NEW.unsaved_state_on IS NULL))
  EXECUTE FUNCTION tendril.notify_runnable();

-- Notifies listening agents of work, and the agent that alone may do it.
CREATE OR REPLACE FUNCTION tendril.notify_work(p_cluster uuid, p_only_instance uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.notify('tendril_work', p_cluster);
  IF p_only_instance <> '00000000-0000-0000-0000-000000000000' THEN
    PERFORM tendril.notify('tendril_agent', p_only_instance);
  END IF;
END $$;

-- Notifies listening agents if a workspace has something that may run.
CREATE OR REPLACE FUNCTION tendril.wake(p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace record;
BEGIN
  SELECT cluster_id, only_instance, head_id, running_claim, held_by_claim, locked_at INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.head_id IS NOT NULL AND v_workspace.running_claim IS NULL AND v_workspace.held_by_claim IS NULL AND v_workspace.locked_at IS NULL THEN
    PERFORM tendril.notify_work(v_workspace.cluster_id, v_workspace.only_instance);
  END IF;
END $$;

-- Locks a provision, after its workspace, where the caller has the role, and a token may do p_what
-- there, as check_token() has it.
--
-- Errors: PT403 token_may_not, PT404 provision_not_found.
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.lock_provision_for(p_provision uuid, p_least text, p_what text DEFAULT 'change') RETURNS public.provisions
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_provision public.provisions;
BEGIN
  SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision;
  -- In this order, so that both answers take the same time.
  IF tendril.may_act(v_provision.org_id, p_least) AND v_provision.id IS NOT NULL THEN
    PERFORM FROM public.workspaces WHERE id = v_provision.workspace_id FOR NO KEY UPDATE;
    SELECT * INTO v_provision FROM public.provisions WHERE id = p_provision FOR NO KEY UPDATE;
    IF FOUND THEN
      PERFORM tendril.check_token((SELECT name FROM public.workspaces WHERE id = v_provision.workspace_id), p_what, v_provision);
      RETURN v_provision;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'provision_not_found', format('run %s not found, or you are not %s there', p_provision, p_least));
END $$;

-- Locks a workspace where the caller has the role. Hidden workspaces do not exist for people.
--
-- Errors: PT403 token_may_not, PT404 workspace_not_found.
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.lock_workspace_for(p_workspace uuid, p_least text, p_what text DEFAULT 'change') RETURNS public.workspaces
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace public.workspaces;
BEGIN
  SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace AND NOT hidden;
  IF tendril.may_act(v_workspace.org_id, p_least) AND v_workspace.id IS NOT NULL THEN
    SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE;
    IF FOUND THEN
      PERFORM tendril.check_token(v_workspace.name, p_what);
      RETURN v_workspace;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'workspace_not_found', format('workspace %s not found, or you are not %s there', p_workspace, p_least));
END $$;

-- Keeps a workspace from running anything until it is unlocked. What runs continues, and deploys
-- are queued. A repeat changes nothing. Needs the role operator.
--
-- Arguments:
--   p_workspace  the workspace
--   p_reason     why, 1 to 1000 characters
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 workspace_not_found, PT409 workspace_locked, PT422 bad_reason,
--   PT503 busy.
-- Locks: workspace.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.lock_workspace(p_workspace uuid, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_who       uuid := tendril.current_user_id();
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  v_reason := tendril.reason(p_reason, true);
  IF v_workspace.locked_at IS NOT NULL AND v_workspace.locked_by IS NOT DISTINCT FROM v_who AND v_workspace.lock_reason = v_reason THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_workspace.locked_at IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_locked',
      format('workspace %s has been locked since %s: %s', to_json(v_workspace.name),
             to_char(v_workspace.locked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), v_workspace.lock_reason),
      'unlock it first');
  END IF;
  UPDATE public.workspaces SET locked_at = clock_timestamp(), locked_by = v_who, lock_reason = v_reason WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'lock_workspace', 'workspace', p_workspace, jsonb_build_object('reason', v_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Unlocks a workspace. Needs the role operator for one's own lock, admin for another person's.
--
-- Arguments:
--   p_workspace  the workspace
--   p_reason     for the audit, at most 1000 characters
-- Answers: nothing.
-- Errors: PT403 locked_by_another, PT403 token_may_not, PT404 workspace_not_found,
--   PT422 bad_reason, PT503 busy.
-- Locks: workspace.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.unlock_workspace(p_workspace uuid, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'operator');
  v_reason := tendril.reason(p_reason);
  IF v_workspace.locked_at IS NULL THEN
    RETURN; -- a repeat after a lost reply
  ELSIF v_workspace.locked_by IS DISTINCT FROM tendril.current_user_id() AND NOT tendril.may_act(v_workspace.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT403', 'locked_by_another', format('another person has locked workspace %s: %s', to_json(v_workspace.name), v_workspace.lock_reason),
      'ask them, or an admin');
  END IF;
  -- The trigger wakes agents.
  UPDATE public.workspaces SET locked_at = NULL, locked_by = NULL, lock_reason = NULL WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'unlock_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'locked_by', v_workspace.locked_by, 'lock_reason', v_workspace.lock_reason));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Ends what holds a workspace without a run: a claim that was lost during apply, or a state that an
-- agent keeps. For an agent that will not come back. If it does, it is told to stop, and what it
-- reports is recorded unless the workspace was used since. Needs the role admin.
--
-- Arguments:
--   p_workspace  the workspace
--   p_reason     for the log and the audit, at most 1000 characters
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 workspace_not_found, PT409 workspace_not_held,
--   PT409 workspace_running, PT422 bad_reason, PT503 busy.
-- Locks: workspace, claim.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.release_workspace(p_workspace uuid, p_reason text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_claim     tendril.claims;
  v_running   bigint;
  v_reason    text := btrim(regexp_replace(coalesce(p_reason, ''), '[[:cntrl:][:space:]]+', ' ', 'g'));
BEGIN
  SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace;
  IF v_workspace.id IS NULL OR NOT tendril.may_act(v_workspace.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT404', 'workspace_not_found', format('workspace %s not found, or you may not release it', p_workspace),
      'check the id, and that you are an admin of its organisation');
  ELSIF length(v_reason) > tendril.max_reason() THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: %s characters; at most %s are allowed', length(v_reason), tendril.max_reason()));
  END IF;

  SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE;
  IF v_workspace.running_claim IS NOT NULL THEN
    SELECT p.number INTO v_running FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.id = v_workspace.running_claim;
    PERFORM tendril.refuse('PT409', 'workspace_running',
      format('run %s runs in workspace %s: there is nothing to release', v_running, to_json(v_workspace.name)), 'cancel the provision instead');
  ELSIF v_workspace.held_by_claim IS NULL AND v_workspace.unsaved_state_on IS NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_not_held', format('workspace %s is not held: there is nothing to release', to_json(v_workspace.name)));
  END IF;

  -- Whose run it was, for the log that tells of it.
  SELECT * INTO v_claim FROM tendril.claims
  WHERE workspace_id = p_workspace AND (id = v_workspace.held_by_claim OR v_workspace.held_by_claim IS NULL AND instance_id = v_workspace.unsaved_state_on)
  ORDER BY number DESC LIMIT 1 FOR NO KEY UPDATE;
  UPDATE tendril.claims SET cancel_requested_at = clock_timestamp()
  WHERE id = v_workspace.held_by_claim AND cancel_requested_at IS NULL;
  PERFORM tendril.attend(v_workspace.cluster_id, v_claim.instance_id);
  PERFORM tendril.system_line(v_claim.provision_id, 'An admin released the workspace'
    || CASE WHEN v_reason = '' THEN '.' ELSE format(' (%s).', v_reason) END
    || CASE WHEN v_workspace.unsaved_state_on IS NULL THEN '' ELSE format(' The agent on %s may still have a state that was not stored.', v_claim.host) END);

  UPDATE public.workspaces
  SET held_by_claim = NULL, unsaved_state_on = NULL,
      reserved_by = CASE WHEN v_workspace.held_by_claim IS NOT NULL AND reserved_by = v_claim.provision_id THEN NULL ELSE reserved_by END
  WHERE id = p_workspace;
  PERFORM tendril.refresh_head(p_workspace);
  PERFORM tendril.wake(p_workspace); -- who passed over it while we held the lock
  PERFORM tendril.audit(v_workspace.org_id, 'release_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'held_by_claim', v_workspace.held_by_claim, 'unsaved_state_on', v_workspace.unsaved_state_on));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Binds a workspace to another template. The next apply there destroys what that template does not
-- have. Needs the role admin.
--
-- Arguments:
--   p_workspace  the workspace
--   p_repo       address of the template's repository
--   p_reason     why, 1 to 1000 characters
--   p_path       directory in the repository; empty: its root
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 workspace_not_found, PT409 workspace_reserved,
--   PT409 workspace_running, PT422 bad_reason, PT422 bad_template, PT503 busy.
-- Locks: workspace.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.rebind_workspace(p_workspace uuid, p_repo text, p_reason text, p_path text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_reason    text;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'admin');
  v_reason := tendril.reason(p_reason, true);
  PERFORM tendril.check_source(p_repo, 'v0', coalesce(p_path, ''));
  IF v_workspace.running_claim IS NOT NULL OR v_workspace.held_by_claim IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'workspace_running', format('something runs in workspace %s, or holds it', to_json(v_workspace.name)),
      'wait until it has ended, or cancel or release it');
  ELSIF v_workspace.reserved_by IS NOT NULL THEN
    -- It is applied without its template being looked at again.
    PERFORM tendril.refuse('PT409', 'workspace_reserved', format('a plan of workspace %s awaits a person or is approved', to_json(v_workspace.name)),
      'reject it, or cancel its provision');
  END IF;
  UPDATE public.workspaces SET repo = tendril.plain_repo(p_repo), path = tendril.plain_path(p_path) WHERE id = p_workspace;
  PERFORM tendril.audit(v_workspace.org_id, 'rebind_workspace', 'workspace', p_workspace,
    jsonb_build_object('reason', v_reason, 'was', jsonb_build_object('repo', v_workspace.repo, 'path', v_workspace.path), 'repo', p_repo, 'path', p_path));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Ends a workspace's reservation when its provision is cancelled, by a function or by hand.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.end_reservation() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.workspaces SET reserved_by = NULL, due_at = NULL WHERE id = NEW.workspace_id AND reserved_by = NEW.id;
  IF FOUND THEN
    PERFORM tendril.refresh_head(NEW.workspace_id);
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_end_reservation AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IN ('QUEUED', 'AWAITING_APPROVAL', 'AWAITING_INPUT') AND NEW.status = 'CANCELLED')
  EXECUTE FUNCTION tendril.end_reservation();

-- Does what is due in reserved workspaces: expires approvals, reminds of what a person is to do and
-- expires that, and starts automatic retries and runs that waited for room. At most p_limit; answers how many.
--
-- Locks: workspace, provision, skipping what another session has locked, as reap_claim() does.
-- Notes: A workspace that fails is postponed by a minute, so that the others have their turn.
CREATE OR REPLACE FUNCTION tendril.settle_due(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_later     CONSTANT interval := '1 minute';
  v_now       timestamptz := clock_timestamp();
  v_due       record;
  v_workspace record;
  v_provision record;
  v_count     int := 0;
BEGIN
  FOR v_due IN SELECT id FROM public.workspaces WHERE due_at <= v_now ORDER BY due_at LIMIT p_limit LOOP
    BEGIN
      SELECT reserved_by, due_at INTO v_workspace FROM public.workspaces WHERE id = v_due.id FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN v_workspace.due_at > v_now OR v_workspace.due_at IS NULL;
      SELECT id, status INTO v_provision FROM public.provisions WHERE id = v_workspace.reserved_by FOR NO KEY UPDATE SKIP LOCKED;
      CONTINUE WHEN NOT FOUND AND EXISTS (SELECT FROM public.provisions WHERE id = v_workspace.reserved_by);
      UPDATE public.workspaces SET due_at = NULL WHERE id = v_due.id;
      IF v_provision.status = 'AWAITING_INPUT' THEN
        PERFORM tendril.settle_input(v_provision.id, v_due.id);
      ELSIF v_provision.status = 'AWAITING_APPROVAL' THEN
        PERFORM tendril.system_line(v_provision.id, 'The plan was not approved in time.');
        PERFORM tendril.end_provision(v_provision.id, 'CANCELLED', 'approval_expired', 'The plan was not approved in time, so nothing was changed. Deploy again to get a new plan.');
      END IF;
      -- The trigger tells agents if there is something to run now.
      PERFORM tendril.refresh_head(v_due.id);
      v_count := v_count + 1;
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'what is due in workspace % failed: % (%)', v_due.id, SQLERRM, SQLSTATE;
        -- Later once more; until then others have their turn.
        UPDATE public.workspaces SET due_at = v_now + c_later
        WHERE id IN (SELECT id FROM public.workspaces WHERE id = v_due.id AND due_at <= v_now FOR NO KEY UPDATE SKIP LOCKED);
    END;
  END LOOP;
  RETURN v_count;
END $$;

-- Refuses a local state file for a workspace whose state is managed: an agent that started with an
-- empty file would create everything a second time.
--
-- Errors: PT409 workspace_managed.
CREATE OR REPLACE FUNCTION tendril.refuse_second_state() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.refuse('PT409', 'workspace_managed',
    format('the state of workspace %s is managed, not a file of this agent', to_json(NEW.name)),
    'set state.default = "managed" in the agent''s configuration');
END $$;

CREATE OR REPLACE TRIGGER workspaces_one_state BEFORE UPDATE OF home_instance ON public.workspaces
  FOR EACH ROW WHEN (NEW.home_instance IS NOT NULL AND NEW.state_version IS NOT NULL)
  EXECUTE FUNCTION tendril.refuse_second_state();

-- Stores whether an agent keeps a state that it could not store. The caller holds the workspace's
-- lock.
--
-- Locks: workspace.
CREATE OR REPLACE FUNCTION tendril.note_unsaved_state(p_claim tendril.claims, p_unsaved boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_unsaved THEN
    UPDATE public.workspaces SET unsaved_state_on = p_claim.instance_id WHERE id = p_claim.workspace_id;
  ELSE
    UPDATE public.workspaces SET unsaved_state_on = NULL WHERE id = p_claim.workspace_id AND unsaved_state_on = p_claim.instance_id;
  END IF;
END $$;

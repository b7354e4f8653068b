-- What a template declares, found out before anybody deploys it: by trellis where
-- it can reach the repository, else by a run of its own on an agent that can. And
-- by every run that is the first of its version.

-- +goose Up

SELECT tendril.lock_tables('public.orgs, public.workspaces, public.provisions, public.templates');

-- One version of one template. An inspection is wanted (trellis has a minute to
-- take it), handed (an agent must look, for trellis cannot), queued (as a provision
-- of operation inspect), done or failed.
CREATE TABLE public.template_inspections (
  org_id       uuid NOT NULL REFERENCES public.orgs,
  repo         text NOT NULL, -- as tendril.plain_repo() has it
  version      text NOT NULL,
  path         text NOT NULL, -- as tendril.plain_path() has it
  address      text NOT NULL, -- of the repository, as somebody wrote it
  status       text NOT NULL DEFAULT 'wanted' CHECK (status IN ('wanted', 'handed', 'queued', 'done', 'failed')),
  commit       text CHECK (commit ~ '^[0-9a-f]{40}$'),
  -- As internal/provision has them. What was found out before stays while it is
  -- looked at again.
  variables    jsonb,
  inspected_by text CHECK (inspected_by IN ('trellis', 'agent', 'run')),
  inspected_at timestamptz,
  -- Why nothing is known, or why trellis leaves it to an agent; for people.
  problem_code text,
  problem      text,
  provision_id uuid, -- the newest run that looks, or did; no foreign key, as with retry_of
  requested_by uuid,
  requested_at timestamptz NOT NULL DEFAULT now(),
  tried        uuid[] NOT NULL DEFAULT '{}', -- clusters whose agents could not
  -- Which trellis has it, and until when.
  lease        uuid,
  lease_until  timestamptz,
  PRIMARY KEY (org_id, repo, version, path)
);
CREATE INDEX template_inspections_due ON public.template_inspections (requested_at) WHERE status IN ('wanted', 'handed');
CREATE INDEX template_inspections_queued ON public.template_inspections (org_id) WHERE status = 'queued';
CREATE INDEX template_inspections_failed ON public.template_inspections (requested_at) WHERE status = 'failed' AND variables IS NULL;

-- The tags that a repository had when trellis looked last: [{"tag", "commit"}].
CREATE TABLE public.template_tags (
  org_id    uuid NOT NULL REFERENCES public.orgs,
  repo      text NOT NULL,
  tags      jsonb NOT NULL,
  listed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org_id, repo)
);

ALTER TABLE public.template_inspections ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.template_inspections FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.template_tags ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.template_tags FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_operation_check,
  ADD CONSTRAINT provisions_operation_check CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state', 'inspect')) NOT VALID;

-- A workspace that is none: an inspection needs the queue's place, and no state.
-- Lists leave it out, and people's functions do not find it.
ALTER TABLE public.workspaces ADD COLUMN hidden boolean NOT NULL DEFAULT false;

-- Contract 4: the operation inspect, and variables in a report. An agent of
-- contract 3 gets no such provisions, and finds all else as it was.
CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT 4';

-- Asks for an inspection. One that is under way goes on. What came to nothing a
-- month ago, and is not in the catalogue, goes when something new comes.
-- +goose StatementBegin
CREATE FUNCTION tendril.want_inspection(p_org uuid, p_address text, p_version text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  DELETE FROM public.template_inspections WHERE (org_id, repo, version, path) IN (
    SELECT i.org_id, i.repo, i.version, i.path FROM public.template_inspections i
    WHERE i.status = 'failed' AND i.variables IS NULL AND i.requested_at < now() - interval '30 days'
      AND NOT EXISTS (SELECT FROM public.templates t WHERE t.org_id = i.org_id AND t.version = i.version
                      AND tendril.plain_repo(t.repo) = i.repo AND tendril.plain_path(t.path) = i.path)
    ORDER BY i.requested_at LIMIT 20 FOR UPDATE OF i SKIP LOCKED);
  INSERT INTO public.template_inspections AS i (org_id, repo, version, path, address, requested_by)
  VALUES (p_org, tendril.plain_repo(p_address), p_version, tendril.plain_path(p_path), p_address, tendril.current_user_id())
  ON CONFLICT (org_id, repo, version, path) DO UPDATE
  SET address = EXCLUDED.address, requested_by = EXCLUDED.requested_by, requested_at = now(), status = 'wanted',
      problem = NULL, problem_code = NULL, tried = '{}', lease = NULL, lease_until = NULL
  WHERE i.status <> 'queued';
END $$;

-- Whatever comes into the catalogue is looked at.
CREATE FUNCTION tendril.inspect_saved() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.want_inspection(NEW.org_id, NEW.repo, NEW.version, NEW.path)
  WHERE NOT EXISTS (SELECT FROM public.template_inspections
                    WHERE org_id = NEW.org_id AND repo = tendril.plain_repo(NEW.repo) AND version = NEW.version
                      AND path = tendril.plain_path(NEW.path) AND status = 'done');
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER templates_inspect AFTER INSERT OR UPDATE OF repo, version, path ON public.templates
  FOR EACH ROW EXECUTE FUNCTION tendril.inspect_saved();

-- What is in the catalogue already.
SELECT tendril.want_inspection(org_id, repo, version, path) FROM public.templates;

-- Asks for an inspection of any version of any template (operator), again as well:
-- one that no agent has come for begins anew, for another way there may be.
-- +goose StatementBegin
CREATE FUNCTION public.inspect_template(p_org uuid, p_repo text, p_version text, p_path text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_waits uuid;
BEGIN
  IF NOT tendril.may_act(p_org, 'operator') OR NOT EXISTS (SELECT FROM public.orgs WHERE id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('there is no organisation %s where you are operator', p_org));
  END IF;
  PERFORM tendril.check_source(p_repo, p_version, coalesce(p_path, ''));
  PERFORM FROM public.template_inspections WHERE org_id = p_org AND status IN ('wanted', 'handed') OFFSET 999 LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT429', 'too_many_inspections', '1000 templates wait to be looked at, which is the most', 'wait until some of it is done');
  END IF;
  SELECT p.id INTO v_waits FROM public.template_inspections i JOIN public.provisions p ON p.id = i.provision_id
  WHERE i.org_id = p_org AND i.repo = tendril.plain_repo(p_repo) AND i.version = p_version AND i.path = tendril.plain_path(coalesce(p_path, ''))
    AND i.status = 'queued' AND p.status = 'QUEUED' AND p.created_at < clock_timestamp() - interval '1 minute';
  IF v_waits IS NOT NULL THEN
    PERFORM public.cancel_provision(v_waits);
  END IF;
  PERFORM tendril.want_inspection(p_org, p_repo, p_version, coalesce(p_path, ''));
  PERFORM tendril.audit(p_org, 'inspect_template', 'template', NULL, jsonb_build_object('repo', p_repo, 'version', p_version, 'path', coalesce(p_path, '')));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Gives one inspection to a trellis, which has it until p_until; no row: there is
-- nothing to do. One that was killed has had its time.
CREATE FUNCTION tendril.claim_inspection(p_lease uuid, p_for interval)
RETURNS TABLE (org_id uuid, repo text, version text, path text, address text, pinned_commit text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN QUERY
  UPDATE public.template_inspections i
  SET lease = p_lease, lease_until = clock_timestamp() + p_for
  WHERE (i.org_id, i.repo, i.version, i.path) IN (
    SELECT w.org_id, w.repo, w.version, w.path FROM public.template_inspections w
    WHERE w.status = 'wanted' AND coalesce(w.lease_until, '-infinity') < clock_timestamp()
    ORDER BY w.requested_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
  RETURNING i.org_id, i.repo, i.version, i.path, i.address,
    (SELECT t.commit FROM public.template_pins t WHERE t.org_id = i.org_id AND t.repo = i.repo AND t.version = i.version);
END $$;

-- Stores what a trellis has found out. With a commit: that is what the version
-- means, from now on. With p_hand an agent is to look.
CREATE FUNCTION tendril.settle_inspection(p_org uuid, p_repo text, p_version text, p_path text, p_lease uuid, p_commit text, p_variables jsonb,
  p_code text, p_problem text, p_hand boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_pinned text;
  v_status text;
BEGIN
  IF p_commit IS NOT NULL THEN
    INSERT INTO public.template_pins (org_id, repo, version, commit) VALUES (p_org, p_repo, p_version, p_commit)
    ON CONFLICT (org_id, repo, version) DO NOTHING;
    SELECT t.commit INTO STRICT v_pinned FROM public.template_pins t WHERE t.org_id = p_org AND t.repo = p_repo AND t.version = p_version;
    IF v_pinned <> p_commit THEN
      p_variables := NULL;
      p_hand := false;
      p_code := 'tag_moved';
      p_problem := format('%s of %s was %s when it was first used and is %s now. Give the new commit a new tag, or deploy the full commit.', p_version, p_repo, v_pinned, p_commit);
    END IF;
  END IF;
  UPDATE public.template_inspections
  SET status = CASE WHEN p_variables IS NOT NULL THEN 'done' WHEN p_hand THEN 'handed' ELSE 'failed' END,
      commit = CASE WHEN p_variables IS NULL THEN commit ELSE p_commit END, variables = coalesce(p_variables, variables),
      inspected_by = CASE WHEN p_variables IS NULL THEN inspected_by ELSE 'trellis' END,
      inspected_at = CASE WHEN p_variables IS NULL THEN inspected_at ELSE clock_timestamp() END,
      problem_code = CASE WHEN p_variables IS NULL THEN p_code END, problem = CASE WHEN p_variables IS NULL THEN left(p_problem, 4000) END,
      lease = NULL, lease_until = NULL
  -- Somebody else's by now, or asked for again: what is newer counts.
  WHERE org_id = p_org AND repo = p_repo AND version = p_version AND path = p_path AND lease = p_lease
  RETURNING status INTO v_status;
  RETURN v_status;
END $$;

-- Stores which tags a repository has.
CREATE FUNCTION tendril.record_tags(p_org uuid, p_repo text, p_tags jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.template_tags (org_id, repo, tags) VALUES (p_org, p_repo, p_tags)
  ON CONFLICT (org_id, repo) DO UPDATE SET tags = EXCLUDED.tags, listed_at = now();
END $$;

-- Stores the variables that a run has found in its checkout, of that commit. What
-- is known already an ordinary run need not tell again.
CREATE FUNCTION tendril.record_variables(p_provision public.provisions, p_commit text, p_variables jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_source jsonb := p_provision.config_snapshot -> 'template_source';
BEGIN
  IF p_commit IS NULL OR jsonb_typeof(p_variables) <> 'array' OR octet_length(p_variables::text) > 524288 THEN
    RETURN;
  END IF;
  INSERT INTO public.template_inspections AS i (org_id, repo, version, path, address, status, commit, variables, inspected_by, inspected_at, provision_id, requested_by)
  VALUES (p_provision.org_id, tendril.plain_repo(v_source ->> 'repo'), v_source ->> 'version', tendril.plain_path(v_source ->> 'path'), v_source ->> 'repo',
          'done', p_commit, p_variables, CASE p_provision.operation WHEN 'inspect' THEN 'agent' ELSE 'run' END, clock_timestamp(), p_provision.id, p_provision.requested_by)
  ON CONFLICT (org_id, repo, version, path) DO UPDATE
  SET status = 'done', commit = EXCLUDED.commit, variables = EXCLUDED.variables, inspected_by = EXCLUDED.inspected_by, inspected_at = EXCLUDED.inspected_at,
      provision_id = EXCLUDED.provision_id, problem = NULL, problem_code = NULL, lease = NULL, lease_until = NULL
  WHERE i.status <> 'done' AND i.status <> 'queued' OR i.provision_id = EXCLUDED.provision_id;
END $$;

-- Which of an organisation's clusters has an agent that can look at a repository:
-- one that is online, new enough and grants it. Best one that has used the
-- repository, for its policy allows it. With p_free only where none is queued or
-- runs: they come before whatever people deploy, and must not have every slot.
CREATE FUNCTION tendril.cluster_to_inspect(p_org uuid, p_repo text, p_without uuid[], p_free boolean) RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (
    SELECT c.id FROM public.clusters c JOIN public.agents a ON a.cluster_id = c.id
    WHERE c.org_id = p_org AND c.paused_at IS NULL AND c.id <> ALL (p_without)
      AND tendril.is_online(a.last_heartbeat_at) AND a.contract >= 4 AND (a.operations IS NULL OR 'inspect' = ANY (a.operations))
      AND NOT (p_free AND EXISTS (SELECT FROM public.template_inspections q JOIN public.provisions p ON p.id = q.provision_id
                                  WHERE q.org_id = p_org AND q.status = 'queued' AND p.cluster_id = c.id))
    ORDER BY EXISTS (SELECT FROM public.workspaces w WHERE w.cluster_id = c.id AND w.repo = p_repo AND NOT w.hidden) DESC, a.last_heartbeat_at DESC
    LIMIT 1);
END $$;

-- Queues what trellis leaves to agents, or where there is no trellis; at most
-- p_limit, and says how many. What nobody can look at now waits.
CREATE FUNCTION tendril.hand_inspections(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_due       public.template_inspections;
  v_cluster   uuid;
  v_provision uuid;
  v_count     int := 0;
BEGIN
  -- One at a time: the rows themselves are locked last, after a workspace.
  IF NOT pg_try_advisory_xact_lock(hashtextextended('tendril.hand_inspections', 0)) THEN
    RETURN 0;
  END IF;
  FOR v_due IN
    WITH due AS MATERIALIZED (
      SELECT i.* FROM public.template_inspections i
      WHERE i.status = 'handed' OR i.status = 'wanted' AND i.requested_at < clock_timestamp() - interval '1 minute' AND coalesce(i.lease_until, '-infinity') < clock_timestamp()
    ), able AS MATERIALIZED ( -- asked once, not for each of a thousand
      SELECT o.org_id FROM (SELECT DISTINCT due.org_id FROM due) o WHERE tendril.cluster_to_inspect(o.org_id, '', '{}', true) IS NOT NULL
    )
    SELECT due.* FROM due
    WHERE CASE WHEN due.org_id IN (SELECT able.org_id FROM able) THEN tendril.cluster_to_inspect(due.org_id, due.repo, due.tried, true) IS NOT NULL ELSE false END
    ORDER BY due.requested_at LIMIT p_limit
  LOOP
    v_cluster := tendril.cluster_to_inspect(v_due.org_id, v_due.repo, v_due.tried, true);
    CONTINUE WHEN v_cluster IS NULL; -- it was given another just now
    BEGIN
      INSERT INTO public.provisions (cluster_id, operation, priority, requested_by, config_snapshot)
      VALUES (v_cluster, 'inspect', 100, v_due.requested_by, jsonb_build_object('workspace', 'inspection', 'meta', jsonb_build_object('triggered_by', 'template inspection'),
              'template_source', jsonb_build_object('repo', v_due.address, 'version', v_due.version, 'path', v_due.path)))
      RETURNING id INTO v_provision;
      UPDATE public.template_inspections SET status = 'queued', provision_id = v_provision, lease = NULL, lease_until = NULL
      WHERE (org_id, repo, version, path) = (v_due.org_id, v_due.repo, v_due.version, v_due.path) AND status = v_due.status AND requested_at = v_due.requested_at;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'asked for again meanwhile' USING ERRCODE = 'serialization_failure';
      END IF;
      v_count := v_count + 1;
    EXCEPTION
      WHEN serialization_failure THEN
        NULL; -- its turn comes
      WHEN OTHERS THEN
        RAISE WARNING 'the inspection of % cannot be queued: % (%)', v_due.repo, SQLERRM, SQLSTATE;
        UPDATE public.template_inspections SET requested_at = clock_timestamp() -- others have their turn
        WHERE (org_id, repo, version, path) = (v_due.org_id, v_due.repo, v_due.version, v_due.path) AND status = v_due.status;
    END;
  END LOOP;
  RETURN v_count;
END $$;

-- How an inspection's run has ended. What another cluster's agent may be allowed
-- or able to reach is left to it.
CREATE FUNCTION tendril.inspection_over() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_source jsonb := NEW.config_snapshot -> 'template_source';
  v_tried  uuid[];
  v_other  boolean;
BEGIN
  SELECT tried || NEW.cluster_id INTO v_tried FROM public.template_inspections
  WHERE org_id = NEW.org_id AND repo = tendril.plain_repo(v_source ->> 'repo') AND version = v_source ->> 'version' AND path = tendril.plain_path(v_source ->> 'path')
    AND provision_id = NEW.id AND status = 'queued'
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL; -- its variables are there, or nobody waits for it any more
  END IF;
  v_other := NEW.status = 'FAILED' AND NEW.error_code IN ('repo_refused', 'operation_refused', 'checkout_failed', 'agent_lost', 'agent_restarted', 'agent_drained', 'exec_died')
             AND tendril.cluster_to_inspect(NEW.org_id, tendril.plain_repo(v_source ->> 'repo'), v_tried, false) IS NOT NULL;
  UPDATE public.template_inspections
  SET status = CASE WHEN v_other THEN 'handed' ELSE 'failed' END, tried = v_tried,
      problem_code = coalesce(NEW.error_code, CASE NEW.status WHEN 'CANCELLED' THEN 'cancelled' ELSE 'no_variables' END),
      problem = CASE NEW.status WHEN 'SUCCESS' THEN 'The run ended without telling what the template declares.'
                                ELSE left(coalesce(NEW.error_message, 'The run that looked at it was cancelled.'), 4000) END
  WHERE org_id = NEW.org_id AND repo = tendril.plain_repo(v_source ->> 'repo') AND version = v_source ->> 'version' AND path = tendril.plain_path(v_source ->> 'path');
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER provisions_inspection_over AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (NEW.operation = 'inspect' AND NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED')) EXECUTE FUNCTION tendril.inspection_over();

-- As before, and: an inspection, which people ask for by inspect_template(), has a
-- workspace of its own kind.
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
      format('there is no cluster %s that you may deploy to', NEW.cluster_id),
      'check the id, and that you are an operator of its organisation');
  END IF;

  IF tendril.has_vast_number(NEW.config_snapshot) THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', 'config_snapshot: a number in it is larger than 1e400 or has more than 400 digits after the point');
  END IF;
  NEW.operation := coalesce(NEW.operation, 'apply');
  IF NEW.operation NOT IN ('plan', 'apply', 'destroy', 'refresh', 'unlock', 'state', 'inspect') OR v_inspect AND v_person THEN
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

  v_repo := tendril.plain_repo(NEW.config_snapshot -> 'template_source' ->> 'repo');
  v_path := tendril.plain_path(NEW.config_snapshot -> 'template_source' ->> 'path');
  -- No snapshot's workspace begins with a full stop.
  v_name := CASE WHEN v_inspect THEN '.inspect/' || md5(v_repo || ' ' || v_path) ELSE tendril.snapshot_workspace(NEW.config_snapshot) END;
  -- SQL alone makes workspaces; their state is keyed by the id.
  INSERT INTO public.workspaces (org_id, cluster_id, name, hidden)
  VALUES (v_org, NEW.cluster_id, v_name, v_inspect)
  ON CONFLICT (cluster_id, name) DO NOTHING;
  -- The lock makes whoever ends a run here see this row, or wait for it.
  SELECT * INTO STRICT v_workspace FROM public.workspaces
  WHERE cluster_id = NEW.cluster_id AND name = v_name
  FOR NO KEY UPDATE;

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

-- As before; and nothing is applied by an inspection.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.guard_apply(p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_rule text := tendril.approval_for(p_provision);
  v_plan jsonb := coalesce(p_detail -> 'plan', p_provision.plan_summary);
BEGIN
  IF p_provision.operation IN ('plan', 'refresh', 'inspect') THEN
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

-- As before, and: inspections.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.contract_needed(p_provision public.provisions) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE WHEN p_provision.operation = 'inspect' THEN 4
              WHEN p_provision.operation <> 'apply' OR p_provision.approved_plan IS NOT NULL
                OR p_provision.config_snapshot ?| ARRAY['sealed_vars', 'targets', 'replace', 'approval', 'timeout_seconds', 'max_attempts', 'requester_key']
                OR tendril.approval_for(p_provision) <> 'never'
              THEN 3 ELSE 1 END;
END $$;
-- +goose StatementEnd

-- As before, for contract 4.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION public.fetch_next_provision(p_token_hash text, p_instance uuid, p_boot uuid, p_claim_id uuid)
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
        AND CASE WHEN v_contract >= 4 THEN true ELSE tendril.suits(w.head_id, v_contract) END
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

-- As before, and: what is hidden is none.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.lock_workspace_for(p_workspace uuid, p_least text) RETURNS public.workspaces
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace public.workspaces;
BEGIN
  SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace AND NOT hidden;
  IF tendril.may_act(v_workspace.org_id, p_least) AND v_workspace.id IS NOT NULL THEN
    SELECT * INTO v_workspace FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN v_workspace;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'workspace_not_found', format('there is no workspace %s where you are %s', p_workspace, p_least));
END $$;
-- +goose StatementEnd

-- As before, and: the variables that a run has found; an inspection binds nothing.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.record_progress(p_claim tendril.claims, p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_stage     text := p_detail ->> 'stage';
  v_commit    text := p_detail ->> 'commit';
  v_repo      text := tendril.plain_repo(p_provision.config_snapshot -> 'template_source' ->> 'repo');
  v_path      text := tendril.plain_path(p_provision.config_snapshot -> 'template_source' ->> 'path');
  v_version   text := p_provision.config_snapshot -> 'template_source' ->> 'version';
  v_pinned    text;
  v_workspace public.workspaces;
  v_shown     public.provision_progress;
  v_percent   smallint;
  v_running   jsonb;
  v_now       timestamptz;
BEGIN
  -- The apply acknowledgement: Terraform applies only after this has said yes. What
  -- else speaks against it the caller has asked.
  IF v_stage = 'apply' AND p_claim.apply_begun_at IS NULL THEN
    IF coalesce(v_commit, p_provision.resolved_commit) IS NULL THEN
      PERFORM tendril.refuse('PT409', 'commit_missing', 'no commit is recorded for this provision, so neither its pin nor its workspace was checked',
        'report the commit first');
    END IF;
    UPDATE tendril.claims SET apply_begun_at = clock_timestamp() WHERE id = p_claim.id;
  END IF;

  IF v_commit IS NOT NULL THEN
    INSERT INTO public.template_pins (org_id, repo, version, commit)
    VALUES (p_provision.org_id, v_repo, v_version, v_commit)
    ON CONFLICT (org_id, repo, version) DO NOTHING;
    SELECT commit INTO STRICT v_pinned FROM public.template_pins
    WHERE org_id = p_provision.org_id AND repo = v_repo AND version = v_version;
    IF v_pinned <> v_commit THEN
      PERFORM tendril.refuse('PT409', 'tag_moved',
        format('%s of %s was %s when it was first used and is %s now', v_version, v_repo, v_pinned, v_commit),
        'give the new commit a new tag, or deploy the full commit');
    END IF;
    IF p_provision.operation <> 'inspect' THEN
      SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
      PERFORM tendril.check_binding(v_workspace, v_repo, v_path);
      UPDATE public.workspaces SET repo = v_repo, path = v_path WHERE id = v_workspace.id AND repo IS NULL;
    END IF;
  END IF;

  IF (p_detail ->> 'local_state')::boolean THEN
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
    IF v_workspace.home_instance <> p_claim.instance_id THEN
      PERFORM tendril.refuse('PT409', 'workspace_elsewhere',
        format('the state of workspace %s is a file on another agent (instance %s)', to_json(v_workspace.name), v_workspace.home_instance),
        'let that agent run it, or configure a shared state backend');
    END IF;
    UPDATE public.workspaces SET home_instance = p_claim.instance_id WHERE id = v_workspace.id AND home_instance IS NULL;
  END IF;

  IF v_stage IS NOT NULL OR p_detail ?| ARRAY['percent', 'running'] THEN
    SELECT * INTO v_shown FROM public.provision_progress WHERE provision_id = p_provision.id;
    v_percent := coalesce((p_detail ->> 'percent')::smallint, p_claim.percent_due, v_shown.percent);
    -- What was worked on in one stage is not worked on in the next.
    v_running := CASE WHEN p_detail ->> 'running' IS NOT NULL THEN tendril.plain_running(p_detail -> 'running')
                      WHEN v_stage <> v_shown.stage THEN '[]'
                      ELSE coalesce(p_claim.running_due, v_shown.running) END;
    v_now := clock_timestamp();
    IF v_stage <> v_shown.stage OR v_percent = 100 AND v_percent IS DISTINCT FROM v_shown.percent
       OR (v_percent, v_running) IS DISTINCT FROM (v_shown.percent, v_shown.running)
          AND v_shown.updated_at NOT BETWEEN v_now - interval '1 second' AND v_now THEN
      UPDATE public.provision_progress SET stage = coalesce(v_stage, stage), percent = v_percent, running = v_running, updated_at = v_now
      WHERE provision_id = p_provision.id;
      v_percent := NULL;
      v_running := NULL;
    ELSE
      v_percent := nullif(v_percent, v_shown.percent);
      v_running := nullif(v_running, v_shown.running);
    END IF;
    UPDATE tendril.claims SET stage = coalesce(v_stage, stage), percent_due = v_percent, running_due = v_running
    WHERE id = p_claim.id AND (stage, percent_due, running_due) IS DISTINCT FROM (coalesce(v_stage, stage), v_percent, v_running);
    IF v_stage IS NOT NULL AND v_stage IS DISTINCT FROM p_claim.stage THEN
      IF p_claim.stage IS NULL THEN
        PERFORM tendril.begin_stages(p_claim, p_provision.org_id);
      END IF;
      PERFORM tendril.enter_stage(p_provision.id, p_provision.org_id, v_stage, p_claim.stage, p_claim.state = 'lost');
      INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
      VALUES (p_provision.id, p_provision.org_id, 'stage', clock_timestamp(), jsonb_build_object('stage', v_stage));
      PERFORM pg_notify('tendril_provision', p_provision.id::text);
    END IF;
  END IF;

  INSERT INTO public.provision_events (provision_id, org_id, kind, at, detail)
  SELECT p_provision.id, p_provision.org_id, e ->> 'kind', (e ->> 'at')::timestamptz, e - 'kind' - 'at'
  FROM jsonb_array_elements(p_detail -> 'events') e;

  UPDATE public.provisions
  SET resolved_commit = coalesce(v_commit, resolved_commit),
      engine          = coalesce(p_detail ->> 'engine', engine),
      engine_version  = coalesce(p_detail ->> 'engine_version', engine_version),
      plan_summary    = coalesce(p_detail -> 'plan', plan_summary),
      -- Whatever the agent sends: the value of a sensitive output is not stored.
      outputs         = coalesce((SELECT jsonb_object_agg(o.key, CASE WHEN (o.value ->> 'sensitive')::boolean THEN o.value - 'value' ELSE o.value END)
                                  FROM jsonb_each(p_detail -> 'outputs') o), outputs)
  WHERE id = p_provision.id AND p_detail ?| ARRAY['commit', 'engine', 'engine_version', 'plan', 'outputs'];

  IF p_detail ->> 'variables' IS NOT NULL THEN
    PERFORM tendril.record_variables(p_provision, coalesce(v_commit, p_provision.resolved_commit), p_detail -> 'variables');
  END IF;
  IF p_detail ?| ARRAY['plan', 'resources', 'drift', 'state_lock'] THEN
    PERFORM tendril.record_findings(p_claim, p_provision, p_detail);
  END IF;
END $$;
-- +goose StatementEnd

-- As before, and: inspections.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.schedule_jobs() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_job record;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
    RETURN;
  END IF;
  statement := format('GRANT USAGE ON SCHEMA cron TO %I', current_user);
  run_as := 'a superuser';
  FOR v_job IN VALUES ('tendril-reap', 'SELECT tendril.reap()'), ('tendril-drift', 'SELECT tendril.queue_drift()'), ('tendril-inspect', 'SELECT tendril.hand_inspections()'), ('tendril-expire', 'SELECT tendril.expire_blobs()') LOOP
    IF NOT EXISTS (SELECT FROM cron.job WHERE jobname = v_job.column1 AND database = current_database()) THEN
      PERFORM cron.schedule(v_job.column1, '* * * * *', v_job.column2);
    END IF;
  END LOOP;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.schedule_jobs() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['template_inspections', 'template_tags', 'inspect_template']);
GRANT SELECT ON public.template_inspections, public.template_tags TO authenticated, service_role;
GRANT EXECUTE ON FUNCTION public.inspect_template(uuid, text, text, text) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';

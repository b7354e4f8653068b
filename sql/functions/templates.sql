-- The template catalogue, and inspections of what templates declare.

-- Adds a template to the organisation's catalogue, or changes the one of that name. Needs the role
-- admin.
--
-- Arguments:
--   p_org          the organisation
--   p_name         name, 1 to 200 characters
--   p_repo         address of its Git repository
--   p_version      tag or full commit that the console offers first
--   p_path         directory in the repository; empty: its root
--   p_description  description, at most 4000 characters
--   p_approval     when its plans need approval: never, destructive or always; null: as before,
--                  never for a new one
-- Answers: the id of the template.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT422 bad_template, PT429 inspections_full,
--   PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.save_template(p_org uuid, p_name text, p_repo text, p_version text, p_path text DEFAULT '', p_description text DEFAULT '',
  p_approval text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_template uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF coalesce(length(p_name), 0) NOT BETWEEN 1 AND tendril.max_name() THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_name: must have 1 to %s characters, not %s', tendril.max_name(), coalesce(length(p_name), 0)));
  ELSIF length(p_description) > tendril.max_description() THEN
    PERFORM tendril.refuse('PT422', 'bad_template', format('p_description: %s characters; at most %s are allowed', length(p_description), tendril.max_description()));
  ELSIF p_approval NOT IN ('never', 'destructive', 'always') THEN
    PERFORM tendril.refuse('PT422', 'bad_template', 'p_approval: must be "never", "destructive" or "always"');
  END IF;
  PERFORM tendril.check_source(p_repo, p_version, coalesce(p_path, ''));
  INSERT INTO public.templates (org_id, name, repo, version, path, description, approval)
  VALUES (p_org, p_name, p_repo, p_version, coalesce(p_path, ''), coalesce(p_description, ''), coalesce(p_approval, 'never'))
  ON CONFLICT (org_id, name) DO UPDATE
  SET repo = EXCLUDED.repo, version = EXCLUDED.version, path = EXCLUDED.path, description = EXCLUDED.description,
      approval = coalesce(p_approval, templates.approval)
  RETURNING id INTO v_template;
  PERFORM tendril.audit(p_org, 'save_template', 'template', v_template,
    jsonb_build_object('name', p_name, 'repo', p_repo, 'version', p_version, 'path', coalesce(p_path, ''))
      || CASE WHEN p_approval IS NULL THEN '{}' ELSE jsonb_build_object('approval', p_approval) END);
  RETURN v_template;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Removes a template from the catalogue. What was deployed stays. Needs the role admin.
--
-- Arguments:
--   p_org   the organisation
--   p_name  name of the template
-- Answers: whether there was one of that name.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.remove_template(p_org uuid, p_name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_template uuid;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  DELETE FROM public.templates WHERE org_id = p_org AND name = p_name RETURNING id INTO v_template;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM tendril.audit(p_org, 'remove_template', 'template', v_template, jsonb_build_object('name', p_name));
  RETURN true;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Whether an organisation may store the variables of a template version: it has them already, or
-- has room.
CREATE OR REPLACE FUNCTION tendril.may_inspect(p_org uuid, p_repo text, p_version text, p_path text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM public.template_inspections WHERE org_id = p_org AND repo = p_repo AND version = p_version AND path = p_path)
    OR (SELECT count(*) FROM public.template_inspections WHERE org_id = p_org) < (SELECT inspection_limit FROM tendril.settings);
END $$;

-- Requests an inspection. One that is queued as a provision goes on.
--
-- Errors: PT429 inspections_full.
CREATE OR REPLACE FUNCTION tendril.want_inspection(p_org uuid, p_address text, p_version text, p_path text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT tendril.may_inspect(p_org, tendril.plain_repo(p_address), p_version, tendril.plain_path(p_path)) THEN
    PERFORM tendril.refuse('PT429', 'inspections_full', format('this organisation stores the variables of %s template versions, the most allowed (tendril.settings.inspection_limit)',
      (SELECT inspection_limit FROM tendril.settings)), 'raise the setting, or let those outside the catalogue expire sooner (inspection_delete_after)');
  END IF;
  INSERT INTO public.template_inspections AS i (org_id, repo, version, path, address, requested_by)
  VALUES (p_org, tendril.plain_repo(p_address), p_version, tendril.plain_path(p_path), p_address, tendril.current_user_id())
  ON CONFLICT (org_id, repo, version, path) DO UPDATE
  SET address = EXCLUDED.address, requested_by = EXCLUDED.requested_by, requested_at = now(), status = 'wanted',
      problem = NULL, problem_code = NULL, tried = '{}', lease = NULL, lease_until = NULL
  WHERE i.status <> 'queued';
END $$;

-- Requests an inspection of what is saved in the catalogue. What a run has reported does not count:
-- the holder of a leaked token of one cluster could invent it.
CREATE OR REPLACE FUNCTION tendril.inspect_saved() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.want_inspection(NEW.org_id, NEW.repo, NEW.version, NEW.path)
  WHERE NOT EXISTS (SELECT FROM public.template_inspections
                    WHERE org_id = NEW.org_id AND repo = tendril.plain_repo(NEW.repo) AND version = NEW.version
                      AND path = tendril.plain_path(NEW.path) AND status = 'done' AND inspected_by = 'trellis');
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER templates_inspect AFTER INSERT OR UPDATE OF repo, version, path ON public.templates
  FOR EACH ROW EXECUTE FUNCTION tendril.inspect_saved();

-- Requests an inspection of a template version, again as well: one that no agent has taken within a
-- minute starts over. Needs the role operator.
--
-- Arguments:
--   p_org      the organisation
--   p_repo     address of the repository
--   p_version  tag or full commit
--   p_path     directory in the repository; empty: its root
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT404 provision_not_found, PT409 already_ended,
--   PT422 bad_template, PT429 inspections_full, PT429 too_many_inspections, PT503 busy.
-- Locks: workspace, provision, claim.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.inspect_template(p_org uuid, p_repo text, p_version text, p_path text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_waits uuid;
BEGIN
  IF NOT tendril.may_act(p_org, 'operator') OR NOT EXISTS (SELECT FROM public.orgs WHERE id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('organisation %s not found, or you are not operator there', p_org));
  END IF;
  PERFORM tendril.check_source(p_repo, p_version, coalesce(p_path, ''));
  PERFORM FROM public.template_inspections WHERE org_id = p_org AND status IN ('wanted', 'handed') OFFSET tendril.max_waiting_inspections() - 1 LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT429', 'too_many_inspections', format('%s inspections are waiting, the most allowed', tendril.max_waiting_inspections()), 'wait until some are done');
  END IF;
  SELECT p.id INTO v_waits FROM public.template_inspections i JOIN public.provisions p ON p.id = i.provision_id
  WHERE i.org_id = p_org AND i.repo = tendril.plain_repo(p_repo) AND i.version = p_version AND i.path = tendril.plain_path(coalesce(p_path, ''))
    AND i.status = 'queued' AND p.status = 'QUEUED' AND p.created_at < clock_timestamp() - tendril.inspection_head_start();
  IF v_waits IS NOT NULL THEN
    PERFORM public.cancel_provision(v_waits);
  END IF;
  PERFORM tendril.want_inspection(p_org, p_repo, p_version, coalesce(p_path, ''));
  PERFORM tendril.audit(p_org, 'inspect_template', 'template', NULL, jsonb_build_object('repo', p_repo, 'version', p_version, 'path', coalesce(p_path, '')));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Gives one wanted inspection to a trellis process.
--
-- Arguments:
--   p_lease  id of the process's lease, a new UUID
--   p_for    how long the lease lasts
-- Answers: one row, or none: there is nothing to do:
--   org_id         the organisation
--   repo           canonical address of the repository
--   version        tag or full commit
--   path           canonical directory
--   address        address of the repository as a person wrote it
--   pinned_commit  the commit that the version means; null: not pinned yet
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.claim_inspection(p_lease uuid, p_for interval)
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

-- Stores what a trellis process has found out about a version, and pins the version to the commit.
--
-- Arguments:
--   p_org        the organisation
--   p_repo       canonical address of the repository
--   p_version    tag or full commit
--   p_path       canonical directory
--   p_lease      the lease of claim_inspection()
--   p_commit     the commit that the version means; null: not known
--   p_variables  the declared variables; null: not known
--   p_code       why they are not known, as a code
--   p_problem    the same for people
--   p_hand       true: an agent shall inspect it
--   p_about      what it says of itself: {title, description, icon, provisioner}; null: not known
-- Answers: the status now: done, handed or failed; null where another process has it or it was
--   requested again.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.settle_inspection(p_org uuid, p_repo text, p_version text, p_path text, p_lease uuid, p_commit text, p_variables jsonb,
  p_code text, p_problem text, p_hand boolean, p_about jsonb DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_moved  text;
  v_status text;
BEGIN
  IF p_commit IS NOT NULL THEN
    v_moved := tendril.pin_inspected(p_org, p_repo, p_version, p_commit);
    IF v_moved IS NOT NULL THEN
      p_variables := NULL;
      p_hand := false;
      p_code := 'tag_moved';
      p_problem := v_moved;
    END IF;
  END IF;
  UPDATE public.template_inspections
  SET status = CASE WHEN p_variables IS NOT NULL THEN 'done' WHEN p_hand THEN 'handed' ELSE 'failed' END,
      commit = CASE WHEN p_variables IS NULL THEN commit ELSE p_commit END, variables = coalesce(p_variables, variables),
      about = CASE WHEN p_variables IS NULL THEN about ELSE tendril.plain_about(p_about) END, file = CASE WHEN p_variables IS NULL THEN file ELSE tendril.template_file(p_about) END,
      readme = CASE WHEN p_variables IS NULL THEN readme ELSE tendril.template_readme(p_about) END,
      inspected_by = CASE WHEN p_variables IS NULL THEN inspected_by ELSE 'trellis' END,
      inspected_at = CASE WHEN p_variables IS NULL THEN inspected_at ELSE clock_timestamp() END,
      problem_code = CASE WHEN p_variables IS NULL THEN p_code END, problem = CASE WHEN p_variables IS NULL THEN left(p_problem, tendril.max_description()) END,
      lease = NULL, lease_until = NULL
  -- Somebody else's by now, or asked for again: what is newer counts.
  WHERE org_id = p_org AND repo = p_repo AND version = p_version AND path = p_path AND lease = p_lease
  RETURNING status INTO v_status;
  RETURN v_status;
END $$;

-- Stores which tags a repository has.
--
-- Arguments:
--   p_org   the organisation
--   p_repo  canonical address of the repository
--   p_tags  list of {tag, commit}
-- Answers: nothing.
-- Errors: none.
-- Locks: none.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.record_tags(p_org uuid, p_repo text, p_tags jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.template_tags (org_id, repo, tags) VALUES (p_org, p_repo, p_tags)
  ON CONFLICT (org_id, repo) DO UPDATE SET tags = EXCLUDED.tags, listed_at = now();
END $$;

-- What a template says of itself as the catalogue shows it: texts of their lengths, and one of the
-- provisioners. Null of what is no object.
CREATE OR REPLACE FUNCTION tendril.plain_about(p_about jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_title       CONSTANT int := 100; -- characters
  c_description CONSTANT int := 4000;
BEGIN
  IF jsonb_typeof(p_about) <> 'object' THEN
    RETURN NULL;
  END IF;
  RETURN jsonb_strip_nulls(jsonb_build_object(
    'title', left(p_about ->> 'title', c_title), 'description', left(p_about ->> 'description', c_description),
    'icon', CASE WHEN p_about ->> 'icon' ~ '^[a-z0-9-]{1,40}$' THEN p_about ->> 'icon' END,
    'provisioner', CASE WHEN p_about ->> 'provisioner' IN ('terraform', 'script', 'manual', 'machine') THEN p_about ->> 'provisioner' ELSE 'terraform' END));
END $$;

-- The tendril.hcl that comes with what a template says of itself; null where there is none, or it is
-- larger than is stored.
CREATE OR REPLACE FUNCTION tendril.template_file(p_about jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := 65536; -- bytes
BEGIN
  RETURN CASE WHEN jsonb_typeof(p_about -> 'file') = 'string' AND octet_length(p_about ->> 'file') <= c_most THEN p_about ->> 'file' END;
END $$;

-- The README.md that comes with what a template says of itself; null where there is none, or it is
-- larger than is stored.
CREATE OR REPLACE FUNCTION tendril.template_readme(p_about jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := 32768; -- bytes
BEGIN
  RETURN CASE WHEN jsonb_typeof(p_about -> 'readme') = 'string' AND octet_length(p_about ->> 'readme') <= c_most THEN p_about ->> 'readme' END;
END $$;

-- Stores the variables that a run found in its checkout. An ordinary run does not replace known
-- ones. Without room nothing is stored and the run goes on.
CREATE OR REPLACE FUNCTION tendril.record_variables(p_provision public.provisions, p_commit text, p_variables jsonb, p_about jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_source jsonb := p_provision.config_snapshot -> 'template_source';
BEGIN
  IF p_commit IS NULL OR jsonb_typeof(p_variables) <> 'array' OR octet_length(p_variables::text) > tendril.max_variables_bytes()
     OR NOT tendril.may_inspect(p_provision.org_id, tendril.plain_repo(v_source ->> 'repo'), v_source ->> 'version', tendril.plain_path(v_source ->> 'path')) THEN
    RETURN;
  END IF;
  INSERT INTO public.template_inspections AS i (org_id, repo, version, path, address, status, commit, variables, about, file, readme, inspected_by, inspected_at, provision_id, requested_by)
  VALUES (p_provision.org_id, tendril.plain_repo(v_source ->> 'repo'), v_source ->> 'version', tendril.plain_path(v_source ->> 'path'), v_source ->> 'repo',
          'done', p_commit, p_variables, tendril.plain_about(p_about), tendril.template_file(p_about), tendril.template_readme(p_about), CASE p_provision.operation WHEN 'inspect' THEN 'agent' ELSE 'run' END, clock_timestamp(), p_provision.id, p_provision.requested_by)
  ON CONFLICT (org_id, repo, version, path) DO UPDATE
  SET status = 'done', commit = EXCLUDED.commit, variables = EXCLUDED.variables, about = EXCLUDED.about, file = EXCLUDED.file, readme = EXCLUDED.readme, inspected_by = EXCLUDED.inspected_by, inspected_at = EXCLUDED.inspected_at,
      provision_id = EXCLUDED.provision_id, problem = NULL, problem_code = NULL, lease = NULL, lease_until = NULL
  WHERE i.status <> 'done' AND i.status <> 'queued' OR i.provision_id = EXCLUDED.provision_id;
END $$;

-- The cluster of an organisation whose agent can inspect a repository: online, new enough, and
-- allowed to; best one that has used the repository. With p_free only clusters without an
-- inspection in progress, which would take slots from deploys.
CREATE OR REPLACE FUNCTION tendril.cluster_to_inspect(p_org uuid, p_repo text, p_without uuid[], p_free boolean) RETURNS uuid
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

-- Queues inspections that trellis leaves to agents, or that no trellis has taken, as provisions.
-- What no agent can inspect now waits.
--
-- Arguments:
--   p_limit  inspections in a call
-- Answers: how many it queued.
-- Errors: none.
-- Locks: workspace.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.hand_inspections(p_limit int DEFAULT 20) RETURNS int
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
  PERFORM FROM tendril.locks WHERE name = 'hand_inspections' FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  FOR v_due IN
    WITH due AS MATERIALIZED (
      SELECT i.* FROM public.template_inspections i
      WHERE i.status = 'handed' OR i.status = 'wanted' AND i.requested_at < clock_timestamp() - tendril.inspection_head_start() AND coalesce(i.lease_until, '-infinity') < clock_timestamp()
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
      VALUES (v_cluster, 'inspect', tendril.most_priority(), v_due.requested_by, jsonb_build_object('workspace', 'inspection', 'meta', jsonb_build_object('triggered_by', 'template inspection'),
              'template_source', jsonb_build_object('repo', v_due.address, 'version', v_due.version, 'path', v_due.path)))
      RETURNING id INTO v_provision;
      UPDATE public.template_inspections SET status = 'queued', provision_id = v_provision, lease = NULL, lease_until = NULL
      WHERE (org_id, repo, version, path) = (v_due.org_id, v_due.repo, v_due.version, v_due.path) AND status = v_due.status AND requested_at = v_due.requested_at;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'requested again meanwhile' USING ERRCODE = 'serialization_failure';
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

-- Stores how an inspection's run ended. Where another cluster's agent may succeed, the inspection
-- is handed to it.
CREATE OR REPLACE FUNCTION tendril.inspection_over() RETURNS trigger
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
  v_other := NEW.status = 'FAILED' AND NEW.error_code IN ('repo_refused', 'operation_refused', 'checkout_failed', 'agent_lost', 'agent_restarted', 'agent_drained', 'exec_died', 'runner_not_started')
             AND tendril.cluster_to_inspect(NEW.org_id, tendril.plain_repo(v_source ->> 'repo'), v_tried, false) IS NOT NULL;
  UPDATE public.template_inspections
  SET status = CASE WHEN v_other THEN 'handed' ELSE 'failed' END, tried = v_tried,
      problem_code = coalesce(NEW.error_code, CASE NEW.status WHEN 'CANCELLED' THEN 'cancelled' ELSE 'no_variables' END),
      problem = CASE NEW.status WHEN 'SUCCESS' THEN 'The run ended without reporting the template''s variables.'
                                ELSE left(coalesce(NEW.error_message, 'The inspection was cancelled.'), tendril.max_description()) END
  WHERE org_id = NEW.org_id AND repo = tendril.plain_repo(v_source ->> 'repo') AND version = v_source ->> 'version' AND path = tendril.plain_path(v_source ->> 'path');
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_inspection_over AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (NEW.operation = 'inspect' AND NEW.status IN ('SUCCESS', 'FAILED', 'CANCELLED')) EXECUTE FUNCTION tendril.inspection_over();

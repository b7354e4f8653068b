-- What a run tells as it goes: each of its stages with start and end, what is
-- being worked on, and what it finds in its workspace: which resources there
-- are, what has drifted, who holds the state's lock.

-- +goose Up

SELECT tendril.lock_tables('public.workspaces, tendril.claims, public.provisions, public.provision_progress, public.resources');

-- One row for each stage of each attempt; attempts are counted by how often the
-- provision was queued: at first, after an approval, for a retry. A stage that a
-- run comes back to stays one row, from its first start to its last end, so that
-- no agent can make more of them than there are stages.
CREATE TABLE public.provision_stages (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  attempt      int  NOT NULL,
  stage        text NOT NULL CHECK (stage IN ('queued', 'checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'apply', 'outputs', 'done')),
  started_at   timestamptz NOT NULL,
  ended_at     timestamptz,
  PRIMARY KEY (provision_id, attempt, stage)
) WITH (fillfactor = 70);
ALTER TABLE public.provision_stages ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.provision_stages FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
SELECT id, org_id, 1, 'queued', created_at FROM public.provisions WHERE status = 'QUEUED';

-- Which resources are being worked on, for the page: [{address, action, since}],
-- at most 50 of them.
ALTER TABLE public.provision_progress ADD COLUMN running jsonb NOT NULL DEFAULT '[]';
-- As percent_due: what viewers are not told yet.
ALTER TABLE tendril.claims ADD COLUMN running_due jsonb;

ALTER TABLE public.workspaces
  -- What the newest refresh found to have changed outside: [{address, action,
  -- attributes}], at most 200 of drift_count. All null: not known, or an apply
  -- has put it right since.
  ADD COLUMN drift       jsonb,
  ADD COLUMN drift_count int,
  ADD COLUMN drift_at    timestamptz,
  -- Who held the lock of the state when a run last wanted it: {id, who,
  -- operation, created, number, at}, of which number and at say which run met it
  -- and when. Null once a run has got the lock.
  ADD COLUMN state_lock  jsonb;

-- Ends the stage that a provision is in and begins another; null only ends. The
-- first stage of an attempt is queued. p_from is one that has been ended already
-- and went on all the same: its agent was given up (p_lost) and reports after all.
-- Such a run's stages are never open, for nobody may ever hear of their end.
-- +goose StatementBegin
CREATE FUNCTION tendril.enter_stage(p_provision uuid, p_org uuid, p_stage text, p_from text DEFAULT NULL, p_lost boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now     timestamptz := clock_timestamp();
  v_attempt int := (SELECT max(attempt) FROM public.provision_stages WHERE provision_id = p_provision);
BEGIN
  UPDATE public.provision_stages SET ended_at = greatest(v_now, started_at)
  WHERE provision_id = p_provision AND stage IS DISTINCT FROM p_stage
    AND (ended_at IS NULL OR stage = p_from AND attempt = v_attempt);
  IF p_stage IS NOT NULL THEN
    INSERT INTO public.provision_stages AS s (provision_id, org_id, attempt, stage, started_at, ended_at)
    VALUES (p_provision, p_org, CASE p_stage WHEN 'queued' THEN coalesce(v_attempt, 0) + 1 ELSE coalesce(v_attempt, 1) END,
            p_stage, v_now, CASE WHEN p_lost OR p_stage = 'done' THEN v_now END)
    ON CONFLICT (provision_id, attempt, stage) DO UPDATE SET ended_at = EXCLUDED.ended_at WHERE s.ended_at IS DISTINCT FROM EXCLUDED.ended_at;
  END IF;
END $$;
-- +goose StatementEnd

-- Ends queued and begins checkout, both when the claim began. Not written by the
-- claim itself, which has to be quick: by the run's first report, a moment later,
-- or by its end if it tells nothing.
-- +goose StatementBegin
CREATE FUNCTION tendril.begin_stages(p_claim tendril.claims, p_org uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.provision_stages SET ended_at = greatest(p_claim.created_at, started_at)
  WHERE provision_id = p_claim.provision_id AND ended_at IS NULL;
  INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
  VALUES (p_claim.provision_id, p_org, coalesce((SELECT max(attempt) FROM public.provision_stages WHERE provision_id = p_claim.provision_id), 1),
          'checkout', p_claim.created_at)
  ON CONFLICT (provision_id, attempt, stage) DO NOTHING;
END $$;
-- +goose StatementEnd

-- The stages that a status is, whoever changes it; those of a run it tells itself.
-- SECURITY DEFINER, for people insert provisions as themselves.
-- +goose StatementBegin
CREATE FUNCTION tendril.follow_status() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at)
    VALUES (NEW.id, NEW.org_id, 1, 'queued', NEW.created_at);
    RETURN NULL;
  END IF;
  IF OLD.status IN ('PROCESSING', 'FAILED') THEN
    SELECT * INTO v_claim FROM tendril.claims WHERE provision_id = NEW.id ORDER BY number DESC LIMIT 1;
    IF v_claim.id IS NOT NULL AND v_claim.stage IS NULL THEN
      PERFORM tendril.begin_stages(v_claim, NEW.org_id);
    END IF;
  END IF;
  PERFORM tendril.enter_stage(NEW.id, NEW.org_id,
    CASE NEW.status WHEN 'QUEUED' THEN 'queued' WHEN 'AWAITING_APPROVAL' THEN 'approval' WHEN 'SUCCESS' THEN 'done' END,
    -- Late settlement: the stage lasted until now.
    CASE OLD.status WHEN 'FAILED' THEN coalesce(v_claim.stage, 'checkout') END);
  UPDATE public.provision_progress SET running = '[]' WHERE provision_id = NEW.id AND running <> '[]';
  IF NEW.status = 'SUCCESS' THEN
    PERFORM tendril.clear_findings(NEW);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- What a success has put right. An apply of targets says nothing of the rest, and
-- of the operations on a state only those that change it take its lock.
-- +goose StatementBegin
CREATE FUNCTION tendril.clear_findings(p_provision public.provisions) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_provision.operation IN ('apply', 'destroy') AND coalesce(p_provision.config_snapshot -> 'targets', '[]') = '[]' THEN
    UPDATE public.workspaces SET drift = NULL, drift_count = NULL, drift_at = NULL
    WHERE id = p_provision.workspace_id AND drift_at IS NOT NULL;
  END IF;
  IF p_provision.operation <> 'state' OR p_provision.config_snapshot -> 'state' ->> 'command' NOT IN ('pull', 'list') THEN
    UPDATE public.workspaces SET state_lock = NULL WHERE id = p_provision.workspace_id AND state_lock IS NOT NULL;
  END IF;
END $$;
-- +goose StatementEnd

CREATE TRIGGER provisions_begin_stages AFTER INSERT ON public.provisions
  FOR EACH ROW EXECUTE FUNCTION tendril.follow_status();
CREATE TRIGGER provisions_follow_status AFTER UPDATE OF status ON public.provisions
  -- What was given up as FAILED may settle as FAILED.
  FOR EACH ROW WHEN (NEW.status <> 'PROCESSING' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.finished_at IS DISTINCT FROM NEW.finished_at)) EXECUTE FUNCTION tendril.follow_status();

-- What is shown of the resources that an agent says it works on. A time that not
-- every reader could read is left out, or no list could be shown.
-- +goose StatementBegin
CREATE FUNCTION tendril.plain_running(p_running jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('address', left(r.item ->> 'address', 600), 'action', left(r.item ->> 'action', 40),
                                                       'since', CASE WHEN (r.item ->> 'since')::timestamptz BETWEEN '1970-01-01 00:00Z' AND '9999-01-01 00:00Z' THEN (r.item ->> 'since')::timestamptz END) ORDER BY r.ord), '[]')
          FROM jsonb_array_elements(p_running) WITH ORDINALITY r (item, ord) WHERE r.ord <= 50);
END $$;
-- +goose StatementEnd

-- Notes what a run has found in its workspace, whose lock the caller holds.
-- +goose StatementBegin
CREATE FUNCTION tendril.record_findings(p_claim tendril.claims, p_provision public.provisions, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_lock jsonb := p_detail -> 'state_lock';
BEGIN
  IF p_detail ->> 'resources' IS NOT NULL THEN
    PERFORM tendril.record_resources(p_provision, p_detail -> 'resources');
  END IF;

  -- A refresh of targets has looked at nothing else.
  IF p_detail ->> 'drift' IS NOT NULL AND p_provision.operation = 'refresh' AND coalesce(p_provision.config_snapshot -> 'targets', '[]') = '[]' THEN
    UPDATE public.workspaces
    SET drift = (SELECT coalesce(jsonb_agg(d.item ORDER BY d.ord), '[]') FROM jsonb_array_elements(p_detail -> 'drift') WITH ORDINALITY d (item, ord) WHERE d.ord <= 200),
        drift_count = jsonb_array_length(p_detail -> 'drift'), drift_at = clock_timestamp()
    WHERE id = p_claim.workspace_id;
  END IF;

  IF v_lock ->> 'id' IS NOT NULL THEN
    UPDATE public.workspaces
    SET state_lock = jsonb_build_object('id', left(v_lock ->> 'id', 200), 'who', left(v_lock ->> 'who', 200), 'operation', left(v_lock ->> 'operation', 100),
                                        'created', left(v_lock ->> 'created', 100), 'number', p_provision.number, 'at', clock_timestamp())
    WHERE id = p_claim.workspace_id;
  ELSIF p_detail ->> 'plan' IS NOT NULL THEN
    -- Who has made a plan has had the lock.
    UPDATE public.workspaces SET state_lock = NULL WHERE id = p_claim.workspace_id AND state_lock IS NOT NULL;
  END IF;
END $$;
-- +goose StatementEnd

-- Replaces what is known of a workspace's resources by what its state lists now,
-- after a failed apply as well. Rows that stay as they are are not written.
-- +goose StatementBegin
CREATE FUNCTION tendril.record_resources(p_provision public.provisions, p_resources jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  WITH there AS MATERIALIZED (
    -- 600: what fits into the key of an index whatever the letters are.
    SELECT DISTINCT ON (left(r.address, 600)) left(r.address, 600) AS address, r.type, r.provider, r.external_id, coalesce(r.ip_addresses, '{}') AS ip_addresses, r.status
    FROM jsonb_to_recordset(p_resources) AS r (address text, type text, provider text, external_id text, ip_addresses text[], status text)
    ORDER BY left(r.address, 600)
  ), gone AS (
    DELETE FROM public.resources r
    WHERE r.workspace_id = p_provision.workspace_id AND NOT EXISTS (SELECT FROM there t WHERE t.address = r.address)
  )
  INSERT INTO public.resources AS r (workspace_id, address, org_id, type, provider, external_id, ip_addresses, status, provision_id)
  SELECT p_provision.workspace_id, t.address, p_provision.org_id, t.type, t.provider, t.external_id, t.ip_addresses, t.status, p_provision.id
  FROM there t
  ON CONFLICT (workspace_id, address) DO UPDATE
  SET type = EXCLUDED.type, provider = EXCLUDED.provider, external_id = EXCLUDED.external_id, ip_addresses = EXCLUDED.ip_addresses,
      status = EXCLUDED.status, provision_id = EXCLUDED.provision_id, updated_at = now()
  WHERE (r.type, r.provider, r.external_id, r.ip_addresses, r.status)
        IS DISTINCT FROM (EXCLUDED.type, EXCLUDED.provider, EXCLUDED.external_id, EXCLUDED.ip_addresses, EXCLUDED.status);
END $$;
-- +goose StatementEnd

-- As before, and: what is being worked on is shown with the percentage, and as
-- seldom; stages are recorded, and what a run finds in its workspace.
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
    SELECT * INTO STRICT v_workspace FROM public.workspaces WHERE id = p_claim.workspace_id;
    PERFORM tendril.check_binding(v_workspace, v_repo, v_path);
    UPDATE public.workspaces SET repo = v_repo, path = v_path WHERE id = v_workspace.id AND repo IS NULL;
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

  IF p_detail ?| ARRAY['plan', 'resources', 'drift', 'state_lock'] THEN
    PERFORM tendril.record_findings(p_claim, p_provision, p_detail);
  END IF;
END $$;
-- +goose StatementEnd

-- As before, and: what is being worked on, unless the run has ended; and with lines
-- that come, if a second has passed.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.show_percent_due() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_due boolean := (NEW.lease_until, NEW.state) IS DISTINCT FROM (OLD.lease_until, OLD.state);
BEGIN
  UPDATE public.provision_progress
  SET percent = coalesce(OLD.percent_due, percent), updated_at = v_now,
      running = CASE NEW.state WHEN 'running' THEN coalesce(OLD.running_due, running) ELSE running END
  WHERE provision_id = OLD.provision_id AND stage <> 'done' AND (v_due OR updated_at NOT BETWEEN v_now - interval '1 second' AND v_now);
  IF FOUND OR v_due THEN
    NEW.percent_due := NULL;
    NEW.running_due := NULL;
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER claims_show_percent_due BEFORE UPDATE OF lease_until, state, next_chunk ON tendril.claims
  FOR EACH ROW WHEN (OLD.percent_due IS NOT NULL OR OLD.running_due IS NOT NULL) EXECUTE FUNCTION tendril.show_percent_due();

-- As before, with the stages.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.publish_changes() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Where there is no logical replication the server warns that there is none.
SET client_min_messages = error
AS $$
BEGIN
  SELECT string_agg('public.' || t.name, ', ' ORDER BY t.name) INTO statement
  FROM unnest(ARRAY['clusters', 'provisions', 'provision_events', 'provision_logs', 'provision_progress', 'provision_stages']) t (name)
  WHERE NOT EXISTS (SELECT FROM pg_publication_tables p
                    WHERE p.pubname = 'supabase_realtime' AND p.schemaname = 'public' AND p.tablename = t.name);
  IF statement IS NULL THEN
    RETURN;
  END IF;
  SELECT CASE WHEN r.rolsuper THEN r.rolname ELSE 'a superuser' END INTO run_as
  FROM pg_publication p JOIN pg_roles r ON r.oid = p.pubowner WHERE p.pubname = 'supabase_realtime';
  IF FOUND THEN
    statement := 'ALTER PUBLICATION supabase_realtime ADD TABLE ' || statement;
  ELSE
    statement := 'CREATE PUBLICATION supabase_realtime FOR TABLE ' || statement;
    run_as := 'a superuser';
  END IF;
  EXECUTE statement;
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
  FOR v_left IN SELECT * FROM tendril.publish_changes() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['provision_stages']);
GRANT SELECT ON public.provision_stages TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';

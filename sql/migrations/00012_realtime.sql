-- What a platform offers beside Postgres: Supabase's Realtime, which tells
-- browsers of changed rows, and pg_cron, which runs jobs. And what is different
-- there: PostgREST's connections load safeupdate, which refuses an UPDATE
-- without WHERE, in functions too.

-- +goose Up

-- Those that are published below as well: whoever vacuums one by hand would have
-- us, and so every agent, wait.
SELECT tendril.lock_tables('tendril.claims, public.clusters, public.provisions, public.provision_events, public.provision_logs, public.provision_progress');

-- How far the run is, while viewers are not told yet.
ALTER TABLE tendril.claims ADD COLUMN percent_due smallint,
  ADD CONSTRAINT claims_percent_due CHECK (percent_due BETWEEN 0 AND 100) NOT VALID;

-- Shows what was held back, when nothing more came that would have shown it: at
-- the next heartbeat, and at the run's end.
-- +goose StatementBegin
CREATE FUNCTION tendril.show_percent_due() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.provision_progress SET percent = OLD.percent_due, updated_at = clock_timestamp()
  WHERE provision_id = OLD.provision_id AND stage <> 'done';
  NEW.percent_due := NULL;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER claims_show_percent_due BEFORE UPDATE OF lease_until, state ON tendril.claims
  FOR EACH ROW WHEN (OLD.percent_due IS NOT NULL) EXECUTE FUNCTION tendril.show_percent_due();

-- As before, and: a percentage is shown at most once a second, for each time
-- goes to every viewer. A change of stage and the last percent are shown at
-- once; what is held back is shown with what comes next.
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
  v_now       timestamptz;
BEGIN
  -- The apply acknowledgement: Terraform applies only after this has said yes.
  IF v_stage = 'apply' AND p_claim.apply_begun_at IS NULL THEN
    IF p_provision.operation = 'plan' THEN
      PERFORM tendril.refuse('PT409', 'operation_refused', 'a plan is not applied');
    ELSIF coalesce(v_commit, p_provision.resolved_commit) IS NULL THEN
      PERFORM tendril.refuse('PT409', 'commit_missing', 'no commit is recorded for this provision, so neither its pin nor its workspace was checked',
        'report the commit first');
    ELSIF p_claim.cancel_requested_at IS NOT NULL THEN
      PERFORM tendril.refuse('PT409', 'cancel_requested', 'the provision is to be cancelled; apply must not begin');
    ELSIF p_claim.lease_until < clock_timestamp() THEN
      PERFORM tendril.refuse('PT503', 'lease_expired', 'the claim''s lease has run out; apply must not begin', 'send a heartbeat, then ask again');
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

  IF v_stage IS NOT NULL OR p_detail ? 'percent' THEN
    SELECT * INTO v_shown FROM public.provision_progress WHERE provision_id = p_provision.id;
    v_percent := coalesce((p_detail ->> 'percent')::smallint, p_claim.percent_due, v_shown.percent);
    v_now := clock_timestamp();
    IF v_stage <> v_shown.stage OR v_percent IS DISTINCT FROM v_shown.percent
       AND (v_percent = 100 OR v_shown.updated_at NOT BETWEEN v_now - interval '1 second' AND v_now) THEN
      UPDATE public.provision_progress SET stage = coalesce(v_stage, stage), percent = v_percent, updated_at = v_now
      WHERE provision_id = p_provision.id;
      v_percent := NULL;
    ELSE
      v_percent := nullif(v_percent, v_shown.percent);
    END IF;
    UPDATE tendril.claims SET stage = coalesce(v_stage, stage), percent_due = v_percent
    WHERE id = p_claim.id AND (stage, percent_due) IS DISTINCT FROM (coalesce(v_stage, stage), v_percent);
    IF v_stage IS NOT NULL AND v_stage IS DISTINCT FROM p_claim.stage THEN
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
END $$;
-- +goose StatementEnd

-- As before, with a WHERE.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION tendril.beat() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_lease   interval := (SELECT lease FROM tendril.settings);
  v_now     timestamptz;
  v_pulse   tendril.pulse;
  v_stepped boolean;
BEGIN
  SELECT * INTO v_pulse FROM tendril.pulse;
  v_now := clock_timestamp(); -- after the read: nobody has stamped later than this
  v_stepped := v_pulse.stamped_at > v_now OR v_pulse.reap_not_before > v_now + v_lease;
  IF v_stepped OR v_pulse.stamped_at < v_now - v_lease * 0.05 THEN
    -- Whoever comes second need not wait for the first.
    PERFORM FROM tendril.pulse FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE tendril.pulse
      SET stamped_at = v_now,
          reap_not_before = CASE WHEN v_stepped OR v_pulse.stamped_at < v_now - v_lease * 0.75 THEN v_now + v_lease ELSE reap_not_before END
      WHERE only_row;
      PERFORM tendril.cut_future_stamps(v_now, v_lease);
    END IF;
  END IF;
  RETURN NOT v_stepped AND v_pulse.stamped_at >= v_now - v_lease * 0.75 AND v_now >= v_pulse.reap_not_before;
END $$;
-- +goose StatementEnd

-- Has Realtime tell of our tables: they are added to its publication, which is
-- made if there is none. What only another role may do is returned. Tables that
-- are in it already, by whatever way, stay as they are there.
-- +goose StatementBegin
CREATE FUNCTION tendril.publish_changes() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- Where there is no logical replication the server warns that there is none.
SET client_min_messages = error
AS $$
BEGIN
  SELECT string_agg('public.' || t.name, ', ' ORDER BY t.name) INTO statement
  FROM unnest(ARRAY['clusters', 'provisions', 'provision_events', 'provision_logs', 'provision_progress']) t (name)
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

-- Has pg_cron, where it is installed, do what no agent may be there to do. A job
-- of that name stays as it is.
-- +goose StatementBegin
CREATE FUNCTION tendril.schedule_jobs() RETURNS TABLE (run_as text, statement text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron') THEN
    RETURN;
  END IF;
  statement := format('GRANT USAGE ON SCHEMA cron TO %I', current_user);
  run_as := 'a superuser';
  IF NOT EXISTS (SELECT FROM cron.job WHERE jobname = 'tendril-reap' AND database = current_database()) THEN
    PERFORM cron.schedule('tendril-reap', '* * * * *', 'SELECT tendril.reap()');
  END IF;
EXCEPTION
  WHEN insufficient_privilege THEN
    RETURN NEXT;
END $$;
-- +goose StatementEnd

-- Uses what the platform offers, and returns the statements that are left for
-- another role to run. To be called again when it has come to offer more.
-- +goose StatementBegin
CREATE FUNCTION tendril.fit_platform() RETURNS TABLE (run_as text, statement text)
LANGUAGE sql
SET search_path = pg_catalog, pg_temp
AS $$
  SELECT * FROM tendril.publish_changes()
  UNION ALL
  SELECT * FROM tendril.schedule_jobs()
$$;

DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.fit_platform() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all('{}');

NOTIFY pgrst, 'reload schema';

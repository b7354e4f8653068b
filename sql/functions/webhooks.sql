-- Webhooks and their deliveries.

-- What is told of a provision: ids, names, counts. Outputs and variables never.
CREATE OR REPLACE FUNCTION tendril.webhook_payload(p_event text, p_data jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_build_object('type', p_event, 'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data', p_data)
$$;

-- Puts a message before all who want it. What it tells of has happened whatever goes wrong
-- here: that fails no agent's report.
CREATE OR REPLACE FUNCTION tendril.tell_webhooks(p_event text, p_org uuid, p_cluster uuid, p_workspace uuid, p_provision uuid, p_data jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_workspace text;
  v_cluster   text;
BEGIN
  SELECT w.name, c.name INTO v_workspace, v_cluster FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id WHERE w.id = p_workspace;
  INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, provision_id, payload)
  SELECT p_org, h.id, p_event, p_provision,
    tendril.webhook_payload(p_event, p_data || jsonb_build_object('org_id', p_org, 'cluster', jsonb_build_object('id', p_cluster, 'name', v_cluster),
      'workspace', jsonb_build_object('id', p_workspace, 'name', v_workspace)))
  FROM public.webhooks h
  WHERE h.org_id = p_org AND h.enabled AND p_event = ANY (h.events) AND (h.cluster_id IS NULL OR h.cluster_id = p_cluster)
    AND (h.workspace IS NULL OR v_workspace LIKE replace(replace(replace(replace(h.workspace, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'));
EXCEPTION
  WHEN OTHERS THEN -- but not a cancel or a statement's time-out: those are the caller's
    RAISE WARNING 'webhooks are not told of % in workspace %: % (%)', p_event, p_workspace, SQLERRM, SQLSTATE;
END $$;

CREATE OR REPLACE FUNCTION tendril.tell_of_provision() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_event text := CASE NEW.status WHEN 'AWAITING_APPROVAL' THEN 'awaiting_approval' WHEN 'SUCCESS' THEN 'success' WHEN 'FAILED' THEN 'failure' ELSE 'cancelled' END;
BEGIN
  -- First, for each run ends here, and mostly nobody is to be told.
  IF EXISTS (SELECT FROM public.webhooks h WHERE h.org_id = NEW.org_id AND h.enabled AND v_event = ANY (h.events)) THEN
    PERFORM tendril.tell_webhooks(v_event, NEW.org_id, NEW.cluster_id, NEW.workspace_id, NEW.id,
      jsonb_build_object('provision', jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'number', NEW.number, 'operation', NEW.operation, 'status', NEW.status,
        'requested_by', NEW.requested_by, 'error_code', NEW.error_code, 'error_message', left(NEW.error_message, 2000),
        'plan', CASE jsonb_typeof(NEW.plan_summary) WHEN 'object' THEN NEW.plan_summary - 'resources' END,
        'created_at', NEW.created_at, 'started_at', NEW.started_at, 'finished_at', NEW.finished_at))));
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION tendril.tell_of_drift() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.tell_webhooks('drift', NEW.org_id, NEW.cluster_id, NEW.id, NULL, jsonb_build_object('drift', jsonb_build_object('count', NEW.drift_count, 'at', NEW.drift_at)));
  RETURN NULL;
END $$;

-- Takes what is due, one for each webhook and at most p_each for an organisation, so that who
-- receives slowly holds up nobody else; p_busy are the webhooks and organisations that have
-- enough under way. Who takes it has p_lease to say what came of it: then it is due again.
CREATE OR REPLACE FUNCTION tendril.take_deliveries(p_by uuid, p_limit int, p_each int, p_busy uuid[], p_lease interval)
RETURNS TABLE (id uuid, webhook_id uuid, org_id uuid, kind text, generation int, sealed bytea, event text, payload jsonb, tried int)
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  WITH due AS (
    SELECT d.id, d.next_at, row_number() OVER (PARTITION BY h.org_id ORDER BY d.next_at) AS n FROM public.webhooks h
    CROSS JOIN LATERAL (
      SELECT d.id, d.next_at FROM public.webhook_deliveries d
      WHERE d.webhook_id = h.id AND d.next_at <= statement_timestamp() -- not clock_timestamp: that cannot be looked up in an index
      ORDER BY d.next_at LIMIT 1 FOR UPDATE SKIP LOCKED) d
    WHERE h.enabled AND h.id <> ALL (p_busy) AND h.org_id <> ALL (p_busy)
  ), taken AS (
    UPDATE public.webhook_deliveries d SET next_at = clock_timestamp() + p_lease, taken_by = p_by
    WHERE d.id IN (SELECT due.id FROM due WHERE due.n <= p_each ORDER BY due.next_at LIMIT p_limit) RETURNING d.*
  )
  SELECT t.id, t.webhook_id, t.org_id, h.kind, h.generation, u.sealed, t.event, t.payload, jsonb_array_length(t.attempts)
  FROM taken t JOIN public.webhooks h ON h.id = t.webhook_id JOIN tendril.webhook_urls u ON u.webhook_id = h.id
$$;

-- Says what came of an attempt. NULL p_again: there will be no further one. A webhook at which
-- nothing has arrived for p_patience, or that is gone, is no longer served; answers whether
-- that is so now.
CREATE OR REPLACE FUNCTION tendril.settle_delivery(p_by uuid, p_delivery uuid, p_arrived boolean, p_attempt jsonb, p_again interval, p_gone boolean, p_patience interval) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now     timestamptz := clock_timestamp();
  v_webhook public.webhooks;
BEGIN
  -- The webhook first, as everybody locks them.
  SELECT h.* INTO v_webhook FROM public.webhooks h
  WHERE h.id = (SELECT d.webhook_id FROM public.webhook_deliveries d WHERE d.id = p_delivery) FOR NO KEY UPDATE;
  UPDATE public.webhook_deliveries d
  SET attempts = attempts || jsonb_build_array(p_attempt || jsonb_build_object('at', v_now)),
      status = CASE WHEN p_arrived THEN 'delivered' WHEN p_again IS NULL OR p_gone THEN 'failed' ELSE 'waiting' END,
      next_at = CASE WHEN p_arrived OR p_gone THEN NULL ELSE v_now + p_again END,
      finished_at = CASE WHEN p_arrived OR p_gone OR p_again IS NULL THEN v_now END, taken_by = NULL
  WHERE d.id = p_delivery AND d.taken_by = p_by;
  IF NOT FOUND THEN
    RETURN false; -- somebody else is at it by now, or the webhook is gone
  END IF;
  IF p_arrived THEN
    UPDATE public.webhooks SET failing_since = NULL WHERE id = v_webhook.id AND failing_since IS NOT NULL;
    RETURN false;
  END IF;
  IF NOT v_webhook.enabled THEN
    RETURN false;
  ELSIF p_gone OR v_webhook.failing_since < v_now - p_patience THEN
    UPDATE public.webhooks SET enabled = false, disabled_why = CASE WHEN p_gone THEN 'gone' ELSE 'failing' END,
      failing_since = coalesce(failing_since, v_now) WHERE id = v_webhook.id;
    PERFORM tendril.audit(v_webhook.org_id, 'disable_webhook', 'webhook', v_webhook.id,
      jsonb_build_object('name', v_webhook.name, 'why', CASE WHEN p_gone THEN 'gone' ELSE 'failing' END));
    RETURN true;
  END IF;
  UPDATE public.webhooks SET failing_since = v_now WHERE id = v_webhook.id AND failing_since IS NULL;
  RETURN false;
END $$;

-- Removes deliveries of ten webhooks, beginning anywhere: those from before p_before, those
-- beyond the last tendril.settings.delivery_limit of a webhook, and all of one that was removed
-- just when it was told something. At most p_limit in all. Of each webhook as many entries of
-- its index are read as are kept.
CREATE OR REPLACE FUNCTION tendril.expire_deliveries(p_before timestamptz, p_limit int) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- a small table would be read from end to end for each webhook
AS $$
DECLARE
  c_webhooks CONSTANT int := 10;
  v_from    uuid := gen_random_uuid();
  v_webhook uuid;
  v_first   uuid;
  v_until   timestamptz;
  v_keep    int := (SELECT delivery_limit FROM tendril.settings);
  v_some    int;
  v_gone    int := 0;
BEGIN
  FOR i IN 1..c_webhooks LOOP
    -- One step in the index for each webhook.
    SELECT coalesce((SELECT d.webhook_id FROM public.webhook_deliveries d WHERE d.webhook_id > v_from ORDER BY d.webhook_id LIMIT 1),
                    (SELECT d.webhook_id FROM public.webhook_deliveries d ORDER BY d.webhook_id LIMIT 1)) INTO v_webhook;
    EXIT WHEN v_webhook IS NULL OR v_webhook = v_first OR v_gone >= p_limit;
    v_first := coalesce(v_first, v_webhook);
    SELECT greatest(d.created_at, p_before) INTO v_until FROM public.webhook_deliveries d WHERE d.webhook_id = v_webhook
    ORDER BY d.created_at DESC OFFSET v_keep LIMIT 1;
    v_until := CASE WHEN EXISTS (SELECT FROM public.webhooks h WHERE h.id = v_webhook) THEN coalesce(v_until, p_before) ELSE 'infinity' END;
    DELETE FROM public.webhook_deliveries WHERE ctid = ANY (ARRAY(
      SELECT d.ctid FROM public.webhook_deliveries d WHERE d.webhook_id = v_webhook AND d.created_at <= v_until LIMIT p_limit - v_gone FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_some = ROW_COUNT;
    v_gone := v_gone + v_some;
    v_from := v_webhook;
  END LOOP;
  RETURN v_gone;
END $$;

CREATE OR REPLACE FUNCTION tendril.lock_webhook_for_admin(p_webhook uuid) RETURNS public.webhooks
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_webhook public.webhooks;
BEGIN
  SELECT * INTO v_webhook FROM public.webhooks WHERE id = p_webhook;
  IF tendril.may_act(v_webhook.org_id, 'admin') AND v_webhook.id IS NOT NULL THEN
    SELECT * INTO v_webhook FROM public.webhooks WHERE id = p_webhook FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN v_webhook;
    END IF;
  END IF;
  PERFORM tendril.refuse('PT404', 'webhook_not_found', format('there is no webhook %s where you are admin', p_webhook));
END $$;

-- Refuses settings that cannot be kept. Only what is said is looked at.
CREATE OR REPLACE FUNCTION tendril.check_webhook(p_org uuid, p_settings jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_settings) IS DISTINCT FROM 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings: must be an object');
  ELSIF p_settings ? 'name' AND coalesce(length(p_settings ->> 'name'), 0) NOT BETWEEN 1 AND 100 THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'name: from 1 to 100 characters are allowed');
  ELSIF p_settings ? 'events' AND (jsonb_typeof(p_settings -> 'events') <> 'array' OR p_settings -> 'events' = '[]'
        OR NOT p_settings -> 'events' <@ '["awaiting_approval", "success", "failure", "cancelled", "drift"]') THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'events: must be some of awaiting_approval, success, failure, cancelled, drift');
  ELSIF length(p_settings ->> 'workspace') NOT BETWEEN 1 AND 200 THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'workspace: from 1 to 200 characters are allowed');
  ELSIF p_settings ->> 'cluster_id' IS NOT NULL AND NOT EXISTS (SELECT FROM public.clusters WHERE id::text = p_settings ->> 'cluster_id' AND org_id = p_org) THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'cluster: there is no such cluster');
  END IF;
END $$;

-- Makes a webhook under an id that the caller chooses, for its URL is sealed with it.
-- p_settings: name, kind, host, url (sealed, in base64), events, cluster_id, workspace,
-- enabled.
--
-- Locks: org.
CREATE OR REPLACE FUNCTION public.create_webhook(p_org uuid, p_webhook uuid, p_settings jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  PERFORM tendril.check_webhook(p_org, p_settings);
  IF NOT p_settings ?& ARRAY['name', 'kind', 'host', 'url', 'events'] OR p_settings ->> 'kind' NOT IN ('generic', 'slack') THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'a webhook needs a name, a kind (generic or slack), a URL and events');
  ELSIF (SELECT count(*) FROM public.webhooks WHERE org_id = p_org) >= 50 THEN
    PERFORM tendril.refuse('PT409', 'too_many_webhooks', 'this organisation has 50 webhooks, as many as it may', 'remove one');
  ELSIF EXISTS (SELECT FROM public.webhooks WHERE org_id = p_org AND name = p_settings ->> 'name') THEN
    PERFORM tendril.refuse('PT409', 'webhook_exists', format('there is a webhook named %s already', p_settings ->> 'name'));
  END IF;
  INSERT INTO public.webhooks (id, org_id, name, kind, host, events, cluster_id, workspace, enabled, created_by)
  SELECT p_webhook, p_org, p_settings ->> 'name', p_settings ->> 'kind', p_settings ->> 'host',
    ARRAY(SELECT DISTINCT jsonb_array_elements_text(p_settings -> 'events') ORDER BY 1),
    (p_settings ->> 'cluster_id')::uuid, p_settings ->> 'workspace', coalesce((p_settings ->> 'enabled')::boolean, true), tendril.current_user_id();
  INSERT INTO tendril.webhook_urls (webhook_id, sealed) VALUES (p_webhook, decode(p_settings ->> 'url', 'base64'));
  PERFORM tendril.audit(p_org, 'create_webhook', 'webhook', p_webhook, p_settings - 'url');
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'webhook_exists', 'there is such a webhook already');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings cannot be read');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Changes what p_settings says, as create_webhook takes it, but for the kind. "rotate": true
-- gives it a new signing secret, "enabled": true another chance.
CREATE OR REPLACE FUNCTION public.change_webhook(p_webhook uuid, p_settings jsonb) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_webhook public.webhooks;
BEGIN
  v_webhook := tendril.lock_webhook_for_admin(p_webhook);
  PERFORM tendril.check_webhook(v_webhook.org_id, p_settings);
  UPDATE public.webhooks SET
    name = coalesce(p_settings ->> 'name', name), host = coalesce(p_settings ->> 'host', host),
    events = CASE WHEN p_settings ? 'events' THEN ARRAY(SELECT DISTINCT jsonb_array_elements_text(p_settings -> 'events') ORDER BY 1) ELSE events END,
    cluster_id = CASE WHEN p_settings ? 'cluster_id' THEN (p_settings ->> 'cluster_id')::uuid ELSE cluster_id END,
    workspace = CASE WHEN p_settings ? 'workspace' THEN p_settings ->> 'workspace' ELSE workspace END,
    enabled = coalesce((p_settings ->> 'enabled')::boolean, enabled),
    disabled_why = CASE WHEN p_settings ? 'enabled' THEN NULL ELSE disabled_why END,
    failing_since = CASE WHEN (p_settings ->> 'enabled')::boolean THEN NULL ELSE failing_since END,
    generation = generation + CASE WHEN (p_settings ->> 'rotate')::boolean THEN 1 ELSE 0 END
  WHERE id = p_webhook RETURNING * INTO v_webhook;
  IF p_settings ->> 'url' IS NOT NULL THEN
    UPDATE tendril.webhook_urls SET sealed = decode(p_settings ->> 'url', 'base64') WHERE webhook_id = p_webhook;
  END IF;
  PERFORM tendril.audit(v_webhook.org_id, 'change_webhook', 'webhook', p_webhook, jsonb_build_object('name', v_webhook.name) || (p_settings - 'url'));
  RETURN v_webhook.generation;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'webhook_exists', format('there is a webhook named %s already', p_settings ->> 'name'));
  WHEN data_exception OR check_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings cannot be read');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

CREATE OR REPLACE FUNCTION public.remove_webhook(p_webhook uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_webhook public.webhooks;
BEGIN
  v_webhook := tendril.lock_webhook_for_admin(p_webhook);
  DELETE FROM public.webhooks WHERE id = p_webhook;
  DELETE FROM public.webhook_deliveries WHERE webhook_id = p_webhook;
  PERFORM tendril.audit(v_webhook.org_id, 'remove_webhook', 'webhook', p_webhook, jsonb_build_object('name', v_webhook.name));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Sends a delivery once more, under the id that it had, so that a receiver knows it again;
-- without one a message that only tries. Answers the delivery's id.
CREATE OR REPLACE FUNCTION public.send_webhook(p_webhook uuid, p_delivery uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_webhook public.webhooks;
  v_id      uuid;
BEGIN
  v_webhook := tendril.lock_webhook_for_admin(p_webhook);
  IF NOT v_webhook.enabled THEN
    PERFORM tendril.refuse('PT409', 'webhook_disabled', 'this webhook is not enabled', 'enable it first');
  ELSIF p_delivery IS NOT NULL THEN
    UPDATE public.webhook_deliveries SET status = 'waiting', next_at = clock_timestamp(), taken_by = NULL, finished_at = NULL
    WHERE id = p_delivery AND webhook_id = p_webhook RETURNING id INTO v_id;
    IF NOT FOUND THEN
      PERFORM tendril.refuse('PT404', 'delivery_not_found', format('there is no delivery %s of this webhook', p_delivery));
    END IF;
  ELSIF (SELECT count(*) FROM public.webhook_deliveries WHERE webhook_id = p_webhook AND event = 'test' AND created_at > clock_timestamp() - interval '1 minute') >= 10 THEN
    PERFORM tendril.refuse('PT429', 'too_many_tests', 'this webhook was tried 10 times within a minute', 'wait a little');
  ELSE
    INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload)
    VALUES (v_webhook.org_id, p_webhook, 'test', tendril.webhook_payload('test', jsonb_build_object('org_id', v_webhook.org_id, 'webhook', jsonb_build_object('id', p_webhook, 'name', v_webhook.name))))
    RETURNING id INTO v_id;
  END IF;
  PERFORM tendril.audit(v_webhook.org_id, CASE WHEN p_delivery IS NULL THEN 'test_webhook' ELSE 'redeliver_webhook' END, 'webhook', p_webhook,
    jsonb_build_object('name', v_webhook.name, 'delivery', v_id));
  RETURN v_id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Webhooks and their deliveries.

-- The message of an event: ids, names and counts, never outputs or variables.
CREATE OR REPLACE FUNCTION tendril.webhook_payload(p_event text, p_data jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_build_object('type', p_event, 'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data', p_data)
$$;

-- Queues a message for every webhook that wants an event. A failure is a warning: it must not fail
-- the agent's report.
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
    RAISE WARNING 'webhooks could not be notified of % in workspace %: % (%)', p_event, p_workspace, SQLERRM, SQLSTATE;
END $$;

-- Tells webhooks of a provision's status.
CREATE OR REPLACE FUNCTION tendril.tell_of_status(p_provision public.provisions) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_message CONSTANT int := 2000; -- characters
  v_event text := CASE p_provision.status WHEN 'AWAITING_APPROVAL' THEN 'awaiting_approval' WHEN 'AWAITING_INPUT' THEN 'awaiting_input'
                                          WHEN 'SUCCESS' THEN 'success' WHEN 'FAILED' THEN 'failure' ELSE 'cancelled' END;
BEGIN
  -- First, for each run ends here, and mostly nobody is to be told.
  IF EXISTS (SELECT FROM public.webhooks h WHERE h.org_id = p_provision.org_id AND h.enabled AND v_event = ANY (h.events)) THEN
    PERFORM tendril.tell_webhooks(v_event, p_provision.org_id, p_provision.cluster_id, p_provision.workspace_id, p_provision.id,
      jsonb_build_object('provision', jsonb_strip_nulls(jsonb_build_object('id', p_provision.id, 'number', p_provision.number, 'operation', p_provision.operation,
        'status', p_provision.status, 'requested_by', p_provision.requested_by, 'error_code', p_provision.error_code,
        'error_message', left(p_provision.error_message, c_message),
        'plan', CASE jsonb_typeof(p_provision.plan_summary) WHEN 'object' THEN p_provision.plan_summary - 'resources' END,
        'input_until', (SELECT i.expires_at FROM public.provision_inputs i WHERE i.provision_id = p_provision.id AND p_provision.status = 'AWAITING_INPUT'),
        'created_at', p_provision.created_at, 'started_at', p_provision.started_at, 'finished_at', p_provision.finished_at))));
  END IF;
END $$;

-- Tells webhooks that a provision awaits a person or has ended.
CREATE OR REPLACE FUNCTION tendril.tell_of_provision() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.tell_of_status(NEW);
  RETURN NULL;
END $$;

-- A drift check tells of drift and of its failure only; an inspection, which nobody asked
-- for, tells nothing.
CREATE OR REPLACE TRIGGER provisions_tell_webhooks AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT', 'SUCCESS', 'FAILED', 'CANCELLED')
  AND NEW.operation <> 'inspect' AND NOT (NEW.operation = 'refresh' AND NEW.status = 'SUCCESS'))
  EXECUTE FUNCTION tendril.tell_of_provision();

-- Tells webhooks of drift that differs from what they were told last.
CREATE OR REPLACE FUNCTION tendril.tell_of_drift() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.tell_webhooks('drift', NEW.org_id, NEW.cluster_id, NEW.id, NULL, jsonb_build_object('drift', jsonb_build_object('count', NEW.drift_count, 'at', NEW.drift_at)));
  RETURN NULL;
END $$;

-- Only of other drift than the last that was told.
CREATE OR REPLACE TRIGGER workspaces_tell_webhooks AFTER UPDATE OF drift_at ON public.workspaces
  FOR EACH ROW WHEN (NEW.drift_count > 0 AND NEW.drift IS DISTINCT FROM OLD.drift)
  EXECUTE FUNCTION tendril.tell_of_drift();

-- Takes deliveries that are due: one for each webhook, so that a slow receiver delays nobody else.
--
-- Arguments:
--   p_by     id of the sender, a UUID
--   p_limit  deliveries in a call
--   p_each   deliveries of one organisation
--   p_busy   webhooks and organisations to skip
--   p_lease  how long the sender has to settle them; then they are due again
-- Answers: a row for each:
--   id          the delivery
--   webhook_id  the webhook
--   org_id      the organisation
--   kind        generic or slack
--   generation  generation of the signing secret
--   sealed      the sealed URL
--   event       the event
--   payload     the message
--   tried       earlier attempts
-- Errors: none.
-- Locks: delivery, skipping locked ones.
-- Callers: the control plane.
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

-- Stores the result of a delivery attempt. A webhook that is gone, or at which nothing has arrived
-- for p_patience, is disabled.
--
-- Arguments:
--   p_by        id of the sender
--   p_delivery  the delivery
--   p_arrived   whether it arrived
--   p_attempt   {code, duration_ms, error}
--   p_again     delay until the next attempt; null: none
--   p_gone      whether the receiver says that the webhook is gone
--   p_patience  how long a webhook may fail
-- Answers: whether this disabled the webhook.
-- Errors: none.
-- Locks: webhook, delivery.
-- Callers: the control plane.
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

-- Deletes deliveries of ten webhooks, beginning anywhere: those before p_before, those beyond
-- tendril.settings.delivery_limit of a webhook, and those of removed webhooks; at most p_limit.
-- Answers how many.
--
-- Notes: Of each webhook it reads as many index entries as are kept.
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

-- Locks a webhook, or refuses unless the caller is an admin of its organisation.
--
-- Errors: PT404 webhook_not_found.
-- Locks: webhook.
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
  PERFORM tendril.refuse('PT404', 'webhook_not_found', format('webhook %s not found, or you are not an admin of its organisation', p_webhook));
END $$;

-- Refuses settings of a webhook that cannot be stored.
--
-- Errors: PT422 bad_webhook.
CREATE OR REPLACE FUNCTION tendril.check_webhook(p_org uuid, p_settings jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_name CONSTANT int := 100; -- characters
BEGIN
  IF jsonb_typeof(p_settings) IS DISTINCT FROM 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings: must be an object');
  ELSIF p_settings ? 'name' AND coalesce(length(p_settings ->> 'name'), 0) NOT BETWEEN 1 AND c_name THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', format('name: must have 1 to %s characters', c_name));
  ELSIF p_settings ? 'events' AND (jsonb_typeof(p_settings -> 'events') <> 'array' OR p_settings -> 'events' = '[]'
        OR NOT p_settings -> 'events' <@ '["awaiting_approval", "awaiting_input", "success", "failure", "cancelled", "drift", "health"]') THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'events: must be one or more of awaiting_approval, awaiting_input, success, failure, cancelled, drift, health');
  ELSIF length(p_settings ->> 'workspace') NOT BETWEEN 1 AND tendril.max_name() THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', format('workspace: must have 1 to %s characters', tendril.max_name()));
  ELSIF p_settings ->> 'cluster_id' IS NOT NULL AND NOT EXISTS (SELECT FROM public.clusters WHERE id::text = p_settings ->> 'cluster_id' AND org_id = p_org) THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'cluster_id: cluster not found');
  END IF;
END $$;

-- Creates a webhook. Needs the role admin.
--
-- Arguments:
--   p_org       the organisation
--   p_webhook   new UUID that the caller chooses, because the URL is sealed with it
--   p_settings  an object
--     name        1 to 100 characters, unique in the organisation
--     kind        generic or slack
--     host        host of the URL, which is shown
--     url         the sealed URL, in base64
--     events      list of awaiting_approval, awaiting_input, success, failure, cancelled, drift,
--                health
--     cluster_id  only events of this cluster. Optional
--     workspace   only events of workspaces whose name matches; * is any text. Optional
--     enabled     false: deliver nothing. Optional
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT409 too_many_webhooks, PT409 webhook_exists,
--   PT422 bad_webhook, PT503 busy.
-- Locks: org.
-- Callers: authenticated, service_role.
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
  ELSIF (SELECT count(*) FROM public.webhooks WHERE org_id = p_org) >= tendril.max_webhooks() THEN
    PERFORM tendril.refuse('PT409', 'too_many_webhooks', format('this organisation has %s webhooks, the most allowed', tendril.max_webhooks()), 'remove one');
  ELSIF EXISTS (SELECT FROM public.webhooks WHERE org_id = p_org AND name = p_settings ->> 'name') THEN
    PERFORM tendril.refuse('PT409', 'webhook_exists', format('a webhook named %s already exists', p_settings ->> 'name'));
  END IF;
  INSERT INTO public.webhooks (id, org_id, name, kind, host, events, cluster_id, workspace, enabled, created_by)
  SELECT p_webhook, p_org, p_settings ->> 'name', p_settings ->> 'kind', p_settings ->> 'host',
    ARRAY(SELECT DISTINCT jsonb_array_elements_text(p_settings -> 'events') ORDER BY 1),
    (p_settings ->> 'cluster_id')::uuid, p_settings ->> 'workspace', coalesce((p_settings ->> 'enabled')::boolean, true), tendril.current_user_id();
  INSERT INTO tendril.webhook_urls (webhook_id, sealed) VALUES (p_webhook, decode(p_settings ->> 'url', 'base64'));
  PERFORM tendril.audit(p_org, 'create_webhook', 'webhook', p_webhook, p_settings - 'url');
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tendril.refuse('PT409', 'webhook_exists', 'the webhook already exists');
  WHEN data_exception OR check_violation OR not_null_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings: malformed');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Changes settings of a webhook. Needs the role admin.
--
-- Arguments:
--   p_webhook   the webhook
--   p_settings  the settings to change, as for create_webhook() without kind, and rotate: true for
--               a new signing secret; enabled: true also ends an automatic disabling
-- Answers: the generation of the signing secret.
-- Errors: PT403 token_may_not, PT404 webhook_not_found, PT409 webhook_exists, PT422 bad_webhook,
--   PT503 busy.
-- Locks: webhook.
-- Callers: authenticated, service_role.
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
    PERFORM tendril.refuse('PT409', 'webhook_exists', format('a webhook named %s already exists', p_settings ->> 'name'));
  WHEN data_exception OR check_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_webhook', 'p_settings: malformed');
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Removes a webhook and its deliveries. Needs the role admin.
--
-- Arguments:
--   p_webhook  the webhook
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 webhook_not_found, PT503 busy.
-- Locks: webhook.
-- Callers: authenticated, service_role.
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

-- Sends a delivery again under its id, or a test message. Needs the role admin.
--
-- Arguments:
--   p_webhook   the webhook
--   p_delivery  the delivery; null: a test message
-- Answers: the id of the delivery.
-- Errors: PT403 token_may_not, PT404 delivery_not_found, PT404 webhook_not_found,
--   PT409 webhook_disabled, PT429 too_many_tests, PT503 busy.
-- Locks: webhook.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.send_webhook(p_webhook uuid, p_delivery uuid DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_within  CONSTANT interval := '1 minute';
  v_webhook public.webhooks;
  v_id      uuid;
BEGIN
  v_webhook := tendril.lock_webhook_for_admin(p_webhook);
  IF NOT v_webhook.enabled THEN
    PERFORM tendril.refuse('PT409', 'webhook_disabled', 'this webhook is disabled', 'enable it first');
  ELSIF p_delivery IS NOT NULL THEN
    UPDATE public.webhook_deliveries SET status = 'waiting', next_at = clock_timestamp(), taken_by = NULL, finished_at = NULL
    WHERE id = p_delivery AND webhook_id = p_webhook RETURNING id INTO v_id;
    IF NOT FOUND THEN
      PERFORM tendril.refuse('PT404', 'delivery_not_found', format('delivery %s of this webhook not found', p_delivery));
    END IF;
  ELSIF (SELECT count(*) FROM public.webhook_deliveries WHERE webhook_id = p_webhook AND event = 'test' AND created_at > clock_timestamp() - c_within) >= tendril.max_webhook_tests() THEN
    PERFORM tendril.refuse('PT429', 'too_many_tests', format('this webhook was tested %s times within a minute', tendril.max_webhook_tests()), 'wait a minute');
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

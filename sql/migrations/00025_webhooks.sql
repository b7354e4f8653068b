-- Webhooks: who is told of what happens, by HTTP. What is to be sent is written
-- in the transaction in which it happens, so nothing is told that was rolled back
-- and nothing that happened is forgotten; trellis sends it.
--
-- URLs are credentials (Slack's are), so they are sealed by a key that only
-- trellis has, and what signs messages is derived from that key: whoever reads
-- this database can neither send in our name nor to those receivers.

-- +goose Up

SELECT tendril.lock_tables('public.orgs, public.clusters, public.workspaces, public.provisions');

CREATE TABLE public.webhooks (
  id            uuid PRIMARY KEY,
  org_id        uuid NOT NULL REFERENCES public.orgs ON DELETE CASCADE,
  name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  kind          text NOT NULL CHECK (kind IN ('generic', 'slack')),
  host          text NOT NULL CHECK (length(host) BETWEEN 1 AND 300), -- all of its URL that is shown
  events        text[] NOT NULL CHECK (cardinality(events) > 0 AND events <@ ARRAY['awaiting_approval', 'success', 'failure', 'cancelled', 'drift']),
  -- Of which cluster, and of workspaces whose name is like that (* is anything).
  cluster_id    uuid REFERENCES public.clusters ON DELETE CASCADE,
  workspace     text CHECK (length(workspace) BETWEEN 1 AND 200),
  enabled       boolean NOT NULL DEFAULT true,
  -- Why it is not enabled, when no person has said so: failing, gone.
  disabled_why  text,
  -- Since when nothing has arrived any more.
  failing_since timestamptz,
  -- Which signing secret counts; a new one ends that before it.
  generation    int NOT NULL DEFAULT 1,
  created_by    uuid,
  created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (org_id, name)
);
CREATE INDEX webhooks_cluster ON public.webhooks (cluster_id);

CREATE TABLE tendril.webhook_urls (
  webhook_id uuid PRIMARY KEY REFERENCES public.webhooks ON DELETE CASCADE,
  sealed     bytea NOT NULL CHECK (length(sealed) BETWEEN 1 AND 4096)
);

-- One message to one webhook, and every attempt to deliver it.
CREATE TABLE public.webhook_deliveries (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id       uuid NOT NULL,
  -- No foreign key: an agent's report must not wait for who changes a webhook, nor
  -- fail because one is removed just then.
  webhook_id   uuid NOT NULL,
  event        text NOT NULL,
  provision_id uuid,
  payload      jsonb NOT NULL,
  status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'delivered', 'failed')),
  -- [{at, code, duration_ms, error}], the oldest first.
  attempts     jsonb NOT NULL DEFAULT '[]',
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- Null once it has arrived or was given up.
  next_at      timestamptz DEFAULT clock_timestamp(),
  -- Who is at it, so that another who came too late changes nothing.
  taken_by     uuid,
  finished_at  timestamptz
);
CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries (webhook_id, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_latest ON public.webhook_deliveries (webhook_id, created_at DESC);

-- What is told of a provision: ids, names, counts. Outputs and variables never.
-- +goose StatementBegin
CREATE FUNCTION tendril.webhook_payload(p_event text, p_data jsonb) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
  SELECT jsonb_build_object('type', p_event, 'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), 'data', p_data)
$$;
-- +goose StatementEnd

-- Puts a message before all who want it. What it tells of has happened whatever
-- goes wrong here: that fails no agent's report.
-- +goose StatementBegin
CREATE FUNCTION tendril.tell_webhooks(p_event text, p_org uuid, p_cluster uuid, p_workspace uuid, p_provision uuid, p_data jsonb) RETURNS void
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
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION tendril.tell_of_provision() RETURNS trigger
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
-- +goose StatementEnd
-- Of looking for drift only what is found is told, and when it fails; of what a
-- person never asked for nothing.
CREATE TRIGGER provisions_tell_webhooks AFTER UPDATE OF status ON public.provisions
  FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NEW.status IN ('AWAITING_APPROVAL', 'SUCCESS', 'FAILED', 'CANCELLED')
    AND NEW.operation <> 'inspect' AND NOT (NEW.operation = 'refresh' AND NEW.status = 'SUCCESS'))
  EXECUTE FUNCTION tendril.tell_of_provision();

-- +goose StatementBegin
CREATE FUNCTION tendril.tell_of_drift() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.tell_webhooks('drift', NEW.org_id, NEW.cluster_id, NEW.id, NULL, jsonb_build_object('drift', jsonb_build_object('count', NEW.drift_count, 'at', NEW.drift_at)));
  RETURN NULL;
END $$;
-- +goose StatementEnd
-- When it is another drift than that which was told of.
CREATE TRIGGER workspaces_tell_webhooks AFTER UPDATE OF drift_at ON public.workspaces
  FOR EACH ROW WHEN (NEW.drift_count > 0 AND NEW.drift IS DISTINCT FROM OLD.drift)
  EXECUTE FUNCTION tendril.tell_of_drift();

-- What trellis calls, as the owner.

-- Takes what is due, one for each webhook and at most p_each for an
-- organisation, so that who receives slowly holds up nobody else; p_busy are the
-- webhooks and organisations that have enough under way. Who takes it has p_lease
-- to say what came of it: then it is due again.
-- +goose StatementBegin
CREATE FUNCTION tendril.take_deliveries(p_by uuid, p_limit int, p_each int, p_busy uuid[], p_lease interval)
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
-- +goose StatementEnd

-- Says what came of an attempt. NULL p_again: there will be no further one. A
-- webhook at which nothing has arrived for p_patience, or that is gone, is no
-- longer served; answers whether that is so now.
-- +goose StatementBegin
CREATE FUNCTION tendril.settle_delivery(p_by uuid, p_delivery uuid, p_arrived boolean, p_attempt jsonb, p_again interval, p_gone boolean, p_patience interval) RETURNS boolean
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
-- +goose StatementEnd

-- Removes what is old, of a webhook that gets much the oldest (p_keep stay), and
-- what was told to one just when it was removed.
-- +goose StatementBegin
CREATE FUNCTION tendril.expire_deliveries(p_age interval DEFAULT '30 days', p_keep int DEFAULT 1000) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_count int;
BEGIN
  DELETE FROM public.webhook_deliveries WHERE id IN (
    SELECT o.id FROM (SELECT i.id, i.created_at, i.webhook_id, row_number() OVER (PARTITION BY i.webhook_id ORDER BY i.created_at DESC) AS n
                      FROM public.webhook_deliveries i) o
    WHERE o.n > p_keep OR o.created_at < clock_timestamp() - p_age OR NOT EXISTS (SELECT FROM public.webhooks h WHERE h.id = o.webhook_id)
    LIMIT 10000);
  GET DIAGNOSTICS v_count = ROW_COUNT;
  RETURN v_count;
END $$;
-- +goose StatementEnd

-- What people call.

-- +goose StatementBegin
CREATE FUNCTION tendril.lock_webhook_for_admin(p_webhook uuid) RETURNS public.webhooks
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
-- +goose StatementEnd

-- Refuses settings that cannot be kept. Only what is said is looked at.
-- +goose StatementBegin
CREATE FUNCTION tendril.check_webhook(p_org uuid, p_settings jsonb) RETURNS void
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
-- +goose StatementEnd

-- Makes a webhook under an id that the caller chooses, for its URL is sealed with
-- it. p_settings: name, kind, host, url (sealed, in base64), events, cluster_id,
-- workspace, enabled.
-- +goose StatementBegin
CREATE FUNCTION public.create_webhook(p_org uuid, p_webhook uuid, p_settings jsonb) RETURNS void
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
-- +goose StatementEnd

-- Changes what p_settings says, as create_webhook takes it, but for the kind.
-- "rotate": true gives it a new signing secret, "enabled": true another chance.
-- +goose StatementBegin
CREATE FUNCTION public.change_webhook(p_webhook uuid, p_settings jsonb) RETURNS int
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
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION public.remove_webhook(p_webhook uuid) RETURNS void
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
-- +goose StatementEnd

-- Sends a delivery once more, under the id that it had, so that a receiver knows
-- it again; without one a message that only tries. Answers the delivery's id.
-- +goose StatementBegin
CREATE FUNCTION public.send_webhook(p_webhook uuid, p_delivery uuid DEFAULT NULL) RETURNS uuid
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
-- +goose StatementEnd

ALTER TABLE public.webhooks ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.webhooks FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));
ALTER TABLE public.webhook_deliveries ENABLE ROW LEVEL SECURITY;
CREATE POLICY admins_read ON public.webhook_deliveries FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('admin'))::uuid[]));

SELECT tendril.deny_all(ARRAY['webhooks', 'webhook_deliveries', 'create_webhook', 'change_webhook', 'remove_webhook', 'send_webhook']);
GRANT SELECT ON public.webhooks, public.webhook_deliveries TO authenticated, service_role;
GRANT EXECUTE ON FUNCTION public.create_webhook(uuid, uuid, jsonb), public.change_webhook(uuid, jsonb), public.remove_webhook(uuid),
  public.send_webhook(uuid, uuid) TO authenticated, service_role;

NOTIFY pgrst, 'reload schema';

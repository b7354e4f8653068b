-- The audit: who did what. Append-only.

-- Refuses every change of an audit event. Rows older than tendril.settings.audit_delete_after may
-- be deleted.
--
-- Errors: PT403 append_only.
CREATE OR REPLACE FUNCTION tendril.keep_audit() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - (SELECT audit_delete_after FROM tendril.settings) THEN
    RETURN OLD;
  END IF;
  PERFORM tendril.refuse('PT403', 'append_only', 'audit_events is append-only: rows cannot be changed, nor deleted before tendril.settings.audit_delete_after');
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER audit_events_keep BEFORE UPDATE OR TRUNCATE ON public.audit_events
  FOR EACH STATEMENT EXECUTE FUNCTION tendril.keep_audit();

CREATE OR REPLACE TRIGGER audit_events_keep_row BEFORE DELETE ON public.audit_events
  FOR EACH ROW EXECUTE FUNCTION tendril.keep_audit();

-- By what the caller asks: {token, tool}, the API token and the client of a tool for language models,
-- as far as there are any.
CREATE OR REPLACE FUNCTION tendril.asked_by() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claims jsonb;
BEGIN
  v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
  RETURN coalesce(jsonb_strip_nulls(jsonb_build_object('token', v_claims ->> 'token', 'tool', left(v_claims ->> 'tool', tendril.max_name()), 'key', encode(sha256(tendril.signing_key()), 'hex'))), '{}');
EXCEPTION
  WHEN data_exception OR program_limit_exceeded THEN RETURN '{}';
END $$;

-- Appends an audit event of the caller, with by what they ask.
CREATE OR REPLACE FUNCTION tendril.audit(p_org uuid, p_action text, p_object text, p_object_id uuid, p_detail jsonb DEFAULT '{}') RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
  VALUES (p_org, tendril.current_user_id(), p_action, p_object, p_object_id, tendril.asked_by() || p_detail)
$$;

-- Audits operations on a state, as the functions for people are audited.
CREATE OR REPLACE FUNCTION tendril.audit_state() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.audit(NEW.org_id, CASE NEW.operation WHEN 'unlock' THEN 'unlock_state' ELSE 'state_' || (NEW.config_snapshot -> 'state' ->> 'command') END,
    'provision', NEW.id, jsonb_strip_nulls(jsonb_build_object('workspace', NEW.workspace_id, 'lock_id', NEW.config_snapshot -> 'lock_id')
      || coalesce(NEW.config_snapshot -> 'state', '{}') - 'command'));
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER provisions_audit_state AFTER INSERT ON public.provisions
  FOR EACH ROW WHEN (NEW.operation IN ('unlock', 'state')) EXECUTE FUNCTION tendril.audit_state();

-- Records what a person did with a credential in the audit of each of their organisations.
CREATE OR REPLACE FUNCTION tendril.audit_person(p_user uuid, p_action text, p_credential uuid, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  INSERT INTO public.audit_events (org_id, actor, action, object, object_id, detail)
  SELECT m.org_id, p_user, p_action, 'credential', p_credential, p_detail FROM public.org_members m WHERE m.user_id = p_user;
END $$;

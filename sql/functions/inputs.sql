-- What a person does for a run: what is asked, who is to do it, the answer, and comments.

-- Ends the claim of a run whose work a person does, and keeps what is asked. The caller has the
-- locks.
--
-- Errors: PT409 cancel_requested, PT422 bad_detail.
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.ask_person(p_provision public.provisions, p_claim uuid, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_shortest     CONSTANT int := 60;      -- seconds
  c_longest      CONSTANT int := 7776000; -- 90 days
  c_instructions CONSTANT int := 65536;   -- characters
  c_outputs      CONSTANT int := 100;
  c_machines     CONSTANT int := 500;
  v_before  record;
  v_request jsonb := coalesce(p_detail -> 'input', '{}');
  v_seconds int := (v_request ->> 'expires_seconds')::numeric;
  v_now     timestamptz := clock_timestamp();
BEGIN
  IF v_seconds IS NULL OR v_seconds NOT BETWEEN c_shortest AND c_longest
     OR jsonb_typeof(v_request -> 'instructions') IS DISTINCT FROM 'string' OR length(v_request ->> 'instructions') > c_instructions
     OR jsonb_typeof(v_request -> 'outputs') IS DISTINCT FROM 'array' OR jsonb_typeof(v_request -> 'machines') IS DISTINCT FROM 'array'
     OR jsonb_array_length(v_request -> 'outputs') > c_outputs OR jsonb_array_length(v_request -> 'machines') > c_machines
     OR coalesce(jsonb_typeof(v_request -> 'destroys'), 'boolean') <> 'boolean'
     OR EXISTS (SELECT FROM jsonb_array_elements(v_request -> 'outputs') o
                WHERE (jsonb_typeof(o -> 'name') = 'string' AND o ->> 'type' IN ('string', 'number', 'bool') AND jsonb_typeof(o -> 'type') = 'string'
                       AND coalesce(jsonb_typeof(o -> 'description'), 'string') = 'string' AND coalesce(jsonb_typeof(o -> 'sensitive'), 'boolean') = 'boolean') IS NOT TRUE)
     OR EXISTS (SELECT FROM jsonb_array_elements(v_request -> 'machines') m
                WHERE (jsonb_typeof(m -> 'name') = 'string' AND jsonb_typeof(m -> 'action') = 'string' AND m ->> 'action' IN ('create', 'change', 'replace', 'destroy')) IS NOT TRUE
                   OR EXISTS (SELECT FROM jsonb_each(m) f WHERE jsonb_typeof(f.value) <> CASE WHEN f.key IN ('cores', 'memory_mib', 'disk_gib') THEN 'number' WHEN f.key = 'known' THEN 'object' ELSE 'string' END)) THEN
    PERFORM tendril.refuse('PT422', 'bad_detail', format('p_detail.input: must have instructions of at most %s characters, at most %s outputs and %s machines as described, and expires_seconds from %s to %s',
      c_instructions, c_outputs, c_machines, c_shortest, c_longest));
  END IF;
  INSERT INTO public.provision_inputs (provision_id, org_id, request, asked_at, expires_at)
  VALUES (p_provision.id, p_provision.org_id, v_request - 'expires_seconds', v_now, v_now + make_interval(secs => v_seconds));
  -- Half of the time passes before the reminder.
  PERFORM tendril.await_person(p_claim, 'AWAITING_INPUT', p_detail ->> 'plan_digest', 'A person is to do the work now.', v_now + make_interval(secs => v_seconds / 2.0));
  -- The last run here asked the same, and failed before it had recorded the answer: what a person
  -- has said once they are not asked again. What was wrong with an answer is for a person to mend.
  SELECT p.number, p.status, p.error_code, i.answer, i.answered_at, i.answered_by, i.request INTO v_before
  FROM public.provisions p JOIN public.provision_inputs i ON i.provision_id = p.id
  WHERE p.workspace_id = p_provision.workspace_id AND p.number < p_provision.number
  ORDER BY p.number DESC LIMIT 1;
  IF v_before.status = 'FAILED' AND v_before.error_code NOT IN ('manual_failed', 'sealed_invalid') AND v_before.answer IS NOT NULL AND v_before.request = v_request - 'expires_seconds' THEN
    PERFORM tendril.take_answer(p_provision.id, p_provision.workspace_id, v_before.answer, v_before.answered_at, v_before.answered_by);
    PERFORM tendril.system_line(p_provision.id, format('A person has answered the same in run %s, which failed before that was recorded: it is recorded now.', v_before.number));
  END IF;
END $$;

-- Stores an answer and queues the run that records it. The caller has the locks.
--
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.take_answer(p_provision uuid, p_workspace uuid, p_answer jsonb, p_at timestamptz, p_by uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE public.provision_inputs SET answer = p_answer, answered_at = p_at, answered_by = p_by WHERE provision_id = p_provision;
  UPDATE public.provisions SET status = 'QUEUED' WHERE id = p_provision;
  UPDATE public.workspaces SET reserved_by = p_provision, due_at = NULL WHERE id = p_workspace;
  PERFORM tendril.refresh_head(p_workspace);
END $$;

-- Reminds of what a person is to do, after half of the time, and cancels the run at its end. The
-- caller has the locks.
--
-- Locks: workspace, provision.
CREATE OR REPLACE FUNCTION tendril.settle_input(p_provision uuid, p_workspace uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_provision public.provisions;
  v_input     public.provision_inputs;
BEGIN
  SELECT * INTO STRICT v_input FROM public.provision_inputs WHERE provision_id = p_provision;
  IF v_input.expires_at > clock_timestamp() THEN
    UPDATE public.provision_inputs SET reminded_at = clock_timestamp() WHERE provision_id = p_provision;
    UPDATE public.workspaces SET due_at = v_input.expires_at WHERE id = p_workspace;
    PERFORM tendril.system_line(p_provision, format('Reminder: nobody has done the work yet. The run is cancelled at %s.', tendril.at(v_input.expires_at)));
    SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = p_provision;
    PERFORM tendril.tell_of_status(v_provision);
    RETURN;
  END IF;
  PERFORM tendril.system_line(p_provision, 'Nobody has done the work in time.');
  PERFORM tendril.end_provision(p_provision, 'CANCELLED', 'input_expired',
    'Nobody said in time that the work is done, so nothing was recorded. If some of it was done, deploy again and say so then.');
END $$;

-- What is wrong with an answer; NULL: nothing.
CREATE OR REPLACE FUNCTION tendril.answer_problem(p_request jsonb, p_answer jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_keys    CONSTANT text[] := ARRAY['done', 'reason', 'outputs', 'machines', 'sealed'];
  c_facts   CONSTANT text[] := ARRAY['external_id', 'address', 'addresses', 'ssh_port'];
  c_text    CONSTANT int := 600;   -- characters of a machine's fact
  c_value   CONSTANT int := 65536; -- bytes of an output
  c_sealed  CONSTANT int := 16384; -- bytes of a sealed value
  c_secrets CONSTANT int := 100;    -- sealed values, as agents open them
  c_answer  CONSTANT int := 262144; -- bytes: it goes to an agent with the snapshot
  c_port    CONSTANT int := 65535; -- the highest
  c_ips     CONSTANT int := 32;    -- addresses of a machine
  v_done    boolean;
  v_o       record;
  v_m       record;
  v_name    text;
BEGIN
  IF jsonb_typeof(p_answer) IS DISTINCT FROM 'object' THEN
    RETURN 'must be an object';
  ELSIF octet_length(p_answer::text) > c_answer THEN
    RETURN format('%s bytes; at most %s are allowed', octet_length(p_answer::text), c_answer);
  ELSIF tendril.has_vast_number(p_answer) THEN
    RETURN 'a number in it is larger than 1e400 or has more than 400 digits after the point';
  ELSIF jsonb_typeof(p_answer -> 'done') IS DISTINCT FROM 'boolean' THEN
    RETURN 'done: must be true or false';
  END IF;
  SELECT k INTO v_name FROM jsonb_object_keys(p_answer) k WHERE k <> ALL (c_keys) ORDER BY k LIMIT 1;
  IF FOUND THEN
    RETURN format('%s: unknown; known are %s', left(v_name, tendril.quoted_name()), array_to_string(c_keys, ', '));
  END IF;
  FOREACH v_name IN ARRAY ARRAY['outputs', 'machines', 'sealed'] LOOP
    IF p_answer ? v_name AND jsonb_typeof(p_answer -> v_name) <> 'object' THEN
      RETURN v_name || ': must be an object';
    END IF;
  END LOOP;
  IF (SELECT count(*) FROM jsonb_object_keys(coalesce(p_answer -> 'sealed', '{}'))) > c_secrets THEN
    RETURN format('sealed: at most %s sealed values are allowed', c_secrets);
  END IF;
  v_done := (p_answer ->> 'done')::boolean;
  -- Outputs.
  SELECT k INTO v_name FROM jsonb_object_keys(coalesce(p_answer -> 'outputs', '{}')) k
  WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(p_request -> 'outputs') o WHERE o ->> 'name' = k) ORDER BY k LIMIT 1;
  IF FOUND THEN
    RETURN format('outputs.%s: the template has no such output', left(v_name, tendril.quoted_name()));
  END IF;
  FOR v_o IN
    SELECT o ->> 'name' AS name, coalesce((o ->> 'sensitive')::boolean, false) AS sensitive, coalesce(o ->> 'type', 'string') AS type,
           p_answer -> 'outputs' -> (o ->> 'name') AS value, p_answer -> 'sealed' -> ('output.' || (o ->> 'name')) AS sealed
    FROM jsonb_array_elements(p_request -> 'outputs') o
  LOOP
    IF v_o.sensitive AND v_o.value IS NOT NULL THEN
      RETURN format('outputs.%s: is sensitive, so it must be sealed', v_o.name);
    ELSIF NOT v_o.sensitive AND v_o.sealed IS NOT NULL THEN
      RETURN format('sealed.output.%s: is not sensitive, so it must not be sealed', v_o.name);
    ELSIF v_done AND coalesce(v_o.value, v_o.sealed) IS NULL THEN
      RETURN format('outputs.%s: missing', v_o.name);
    ELSIF v_o.value IS NOT NULL AND jsonb_typeof(v_o.value) <> replace(v_o.type, 'bool', 'boolean') THEN
      RETURN format('outputs.%s: must be a %s', v_o.name, v_o.type);
    ELSIF octet_length(v_o.value::text) > c_value THEN
      RETURN format('outputs.%s: at most %s bytes are allowed', v_o.name, c_value);
    END IF;
  END LOOP;
  -- Machines.
  SELECT k INTO v_name FROM jsonb_object_keys(coalesce(p_answer -> 'machines', '{}')) k
  WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(p_request -> 'machines') m WHERE m ->> 'name' = k AND m ->> 'action' <> 'destroy') ORDER BY k LIMIT 1;
  IF FOUND THEN
    RETURN format('machines.%s: this run makes no such machine', left(v_name, tendril.quoted_name()));
  END IF;
  FOR v_m IN
    SELECT m ->> 'name' AS name, p_answer -> 'machines' -> (m ->> 'name') AS facts
    FROM jsonb_array_elements(p_request -> 'machines') m WHERE m ->> 'action' <> 'destroy'
  LOOP
    IF v_done AND v_m.facts IS NULL THEN
      RETURN format('machines.%s: missing', v_m.name);
    ELSIF v_m.facts IS NULL THEN
      CONTINUE;
    ELSIF jsonb_typeof(v_m.facts) <> 'object' THEN
      RETURN format('machines.%s: must be an object', v_m.name);
    END IF;
    SELECT k INTO v_name FROM jsonb_object_keys(v_m.facts) k WHERE k <> ALL (c_facts) ORDER BY k LIMIT 1;
    IF FOUND THEN
      RETURN format('machines.%s.%s: unknown; known are %s', v_m.name, left(v_name, tendril.quoted_name()), array_to_string(c_facts, ', '));
    END IF;
    FOREACH v_name IN ARRAY ARRAY['external_id', 'address'] LOOP
      IF v_m.facts ? v_name AND (jsonb_typeof(v_m.facts -> v_name) <> 'string' OR length(v_m.facts ->> v_name) > c_text OR v_m.facts ->> v_name ~ '[[:cntrl:]]') THEN
        RETURN format('machines.%s.%s: must be one line of at most %s characters', v_m.name, v_name, c_text);
      END IF;
    END LOOP;
    IF coalesce(v_m.facts ->> 'external_id', '') = '' AND coalesce(v_m.facts ->> 'address', '') = '' THEN
      RETURN format('machines.%s: needs an address, or the id that it has where it is', v_m.name);
    ELSIF coalesce(v_m.facts ->> 'address', '') <> '' AND v_m.facts ->> 'address' !~ '^[0-9A-Fa-f.:]+$' THEN
      RETURN format('machines.%s.address: must be an IP address', v_m.name);
    ELSIF v_m.facts ? 'ssh_port' AND (jsonb_typeof(v_m.facts -> 'ssh_port') <> 'number' OR (v_m.facts ->> 'ssh_port')::numeric NOT BETWEEN 1 AND c_port
          OR (v_m.facts ->> 'ssh_port')::numeric % 1 <> 0) THEN
      RETURN format('machines.%s.ssh_port: must be a whole number from 1 to %s', v_m.name, c_port);
    ELSIF v_m.facts ? 'addresses' AND (jsonb_typeof(v_m.facts -> 'addresses') <> 'array' OR jsonb_array_length(v_m.facts -> 'addresses') > c_ips
          OR jsonb_path_exists(v_m.facts, '$.addresses[*] ? (!(@ like_regex "^[0-9A-Fa-f.:]+$"))')) THEN
      RETURN format('machines.%s.addresses: must be a list of at most %s IP addresses', v_m.name, c_ips);
    END IF;
  END LOOP;
  -- What is sealed: for an output, or the credentials of a machine.
  SELECT k INTO v_name FROM jsonb_object_keys(coalesce(p_answer -> 'sealed', '{}')) k
  WHERE NOT (EXISTS (SELECT FROM jsonb_array_elements(p_request -> 'outputs') o WHERE 'output.' || (o ->> 'name') = k)
             OR EXISTS (SELECT FROM jsonb_object_keys(coalesce(p_answer -> 'machines', '{}')) m WHERE 'machine.' || m = k)) ORDER BY k LIMIT 1;
  IF FOUND THEN
    RETURN format('sealed.%s: there is no such output, and no such machine in the answer', left(v_name, tendril.quoted_name()));
  END IF;
  SELECT s.key INTO v_name FROM jsonb_each(coalesce(p_answer -> 'sealed', '{}')) s
  WHERE jsonb_typeof(s.value) <> 'string' OR octet_length(s.value #>> '{}') > c_sealed OR NOT starts_with(s.value #>> '{}', '-----BEGIN AGE ENCRYPTED FILE-----') ORDER BY 1 LIMIT 1;
  IF FOUND THEN
    RETURN format('sealed.%s: must be a value sealed to the cluster, of at most %s bytes', left(v_name, tendril.quoted_name()), c_sealed);
  END IF;
  RETURN NULL;
END $$;

-- Says that the work of a run was done, or could not be. The run is queued again, and an agent
-- records the answer: SUCCESS where it was done, FAILED (manual_failed) where it was not. Needs the
-- role operator. A repeat of the same answer changes nothing.
--
-- Arguments:
--   p_provision  the provision, AWAITING_INPUT
--   p_answer     an object of at most 262144 bytes
--     done      true: it was done; false: it could not be
--     reason    why not, at most 1000 characters; needed where done is false
--     outputs   object of values by name: each output that provision_inputs.request lists and that
--               is not sensitive, if done
--     machines  object by name of {external_id, address, addresses, ssh_port}: each machine
--               that is made or changed, if done, with an address or an external_id; if it is not
--               done, those that exist all the same
--     sealed    object of at most 100 values that are sealed to the cluster: output.NAME for each sensitive
--               output, and machine.NAME for the credentials of a machine, an object of texts
-- Answers: the status now: QUEUED, or a later one for a repeat.
-- Errors: PT403 token_may_not, PT404 provision_not_found, PT409 already_answered,
--   PT409 not_awaiting_input, PT422 bad_input, PT422 bad_reason, PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.give_input(p_provision uuid, p_answer jsonb) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_input     public.provision_inputs;
  v_answer    jsonb;
  v_reason    text;
  v_problem   text;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  SELECT * INTO v_input FROM public.provision_inputs WHERE provision_id = p_provision;
  IF v_provision.status <> 'AWAITING_INPUT' AND v_input.answer IS NULL THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_input', format('run %s is %s and asks nothing of a person', v_provision.number, v_provision.status));
  END IF;
  v_problem := tendril.answer_problem(v_input.request, p_answer);
  IF v_problem IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_input', CASE WHEN v_problem ~ '^(done|reason|outputs|machines|sealed)[.:]' THEN 'p_answer.' ELSE 'p_answer: ' END || v_problem);
  END IF;
  v_reason := tendril.reason(p_answer ->> 'reason', NOT (p_answer ->> 'done')::boolean);
  v_answer := p_answer - 'reason' || CASE WHEN v_reason = '' THEN '{}' ELSE jsonb_build_object('reason', v_reason) END;
  IF v_input.answer = v_answer THEN
    RETURN v_provision.status; -- a repeat after a lost reply
  ELSIF v_input.answer IS NOT NULL THEN
    PERFORM tendril.refuse('PT409', 'already_answered', format('run %s was answered already', v_provision.number), 'look at the run: an agent records that answer');
  END IF;
  PERFORM tendril.take_answer(p_provision, v_provision.workspace_id, v_answer, clock_timestamp(), tendril.current_user_id());
  PERFORM tendril.system_line(p_provision, CASE WHEN (p_answer ->> 'done')::boolean THEN tendril.name_in(v_provision.org_id, tendril.current_user_id()) || ' says that the work is done.'
    ELSE format('%s says that the work could not be done (%s).', tendril.name_in(v_provision.org_id, tendril.current_user_id()), v_reason) END);
  PERFORM tendril.audit(v_provision.org_id, 'give_input', 'provision', p_provision, jsonb_strip_nulls(jsonb_build_object('done', p_answer -> 'done', 'reason', nullif(v_reason, ''))));
  RETURN 'QUEUED';
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Says who is to do the work of a run, or that anybody may. It is said, not enforced: any operator
-- may answer. Needs the role operator.
--
-- Arguments:
--   p_provision  the provision, AWAITING_INPUT
--   p_user       a member who may answer; null: anybody
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 member_not_found, PT404 provision_not_found,
--   PT409 not_awaiting_input, PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.assign_input(p_provision uuid, p_user uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  IF v_provision.status <> 'AWAITING_INPUT' THEN
    PERFORM tendril.refuse('PT409', 'not_awaiting_input', format('run %s is %s and asks nothing of a person', v_provision.number, v_provision.status));
  ELSIF p_user IS NOT NULL AND NOT EXISTS (SELECT FROM public.org_members m WHERE m.org_id = v_provision.org_id AND m.user_id = p_user AND m.role IN ('operator', 'admin')) THEN
    PERFORM tendril.refuse('PT404', 'member_not_found', format('user %s is not an operator or admin here', p_user), 'choose somebody who may answer');
  END IF;
  UPDATE public.provision_inputs SET assigned_to = p_user WHERE provision_id = p_provision AND assigned_to IS DISTINCT FROM p_user;
  IF FOUND THEN
    PERFORM tendril.system_line(p_provision, CASE WHEN p_user IS NULL THEN 'Anybody may do the work.' ELSE format('%s is to do the work.', tendril.name_in(v_provision.org_id, p_user)) END);
    PERFORM tendril.audit(v_provision.org_id, 'assign_input', 'provision', p_provision, jsonb_build_object('user_id', p_user));
    PERFORM tendril.notify('tendril_provision', p_provision);
  END IF;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Adds a person's comment to the log of a run that is not over. Needs the role operator.
--
-- Arguments:
--   p_provision  the provision
--   p_text       at most 1000 characters
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 provision_not_found, PT409 already_ended, PT422 bad_reason,
--   PT503 busy.
-- Locks: workspace, provision.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.comment_provision(p_provision uuid, p_text text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_provision public.provisions;
  v_text      text;
BEGIN
  v_provision := tendril.lock_provision_for(p_provision, 'operator');
  v_text := tendril.reason(p_text, true);
  IF v_provision.status IN ('SUCCESS', 'FAILED', 'CANCELLED') THEN
    PERFORM tendril.refuse('PT409', 'already_ended', format('run %s has already ended: it is %s', v_provision.number, v_provision.status));
  END IF;
  PERFORM tendril.system_line(p_provision, format('%s: %s', tendril.name_in(v_provision.org_id, tendril.current_user_id()), v_text));
  PERFORM tendril.audit(v_provision.org_id, 'comment_provision', 'provision', p_provision, '{}');
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- The name of a member as people know them.
CREATE OR REPLACE FUNCTION tendril.name_in(p_org uuid, p_user uuid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce((SELECT coalesce(nullif(u.name, ''), nullif(u.email, '')) FROM public.people u WHERE u.org_id = p_org AND u.user_id = p_user),
                  CASE WHEN p_user IS NULL THEN 'A service' ELSE 'Somebody' END);
END $$;

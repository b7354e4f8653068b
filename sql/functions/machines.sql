-- Machines: what people see of the machines that runs have made, and those that they plan.

-- Replaces the machines of a workspace by those that its newest report lists: one that is missing
-- is gone, or planned again if it was planned and never listed, or unknown where the report left some out for want of room (p_omitted) or has more than
-- tendril.settings.resource_limit; the log says so then. Unchanged rows are not written. Of two
-- with one name the later one counts. A machine's place follows it to the node where it is. The
-- caller holds the locks of the workspace and the run.
--
-- Locks: workspace, provision, reservations.
CREATE OR REPLACE FUNCTION tendril.record_machines(p_provision public.provisions, p_machines jsonb, p_omitted int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_most    int := (SELECT resource_limit FROM tendril.settings);
  v_missing text := 'gone'; -- what one is that is not listed
BEGIN
  -- Before any machine, as report_checks() does.
  PERFORM FROM tendril.machine_checks c WHERE c.machine_id IN (SELECT m.id FROM public.machines m WHERE m.workspace_id = p_provision.workspace_id)
  ORDER BY c.machine_id FOR NO KEY UPDATE;
  IF p_omitted > 0 OR jsonb_array_length(p_machines) > v_most THEN
    v_missing := 'unknown';
  END IF;
  IF jsonb_array_length(p_machines) > v_most THEN
    PERFORM tendril.system_line(p_provision.id, format('The state has %s machines. The first %s of them are listed (tendril.settings.resource_limit).', jsonb_array_length(p_machines), v_most));
  END IF;
  WITH there AS MATERIALIZED (
    SELECT DISTINCT ON (l.item ->> 'name') m.*
    FROM jsonb_array_elements(p_machines) WITH ORDINALITY l (item, ord),
         jsonb_to_record(l.item) AS m (name text, status text, address text, pool text, node text, external_id text, ip_addresses text[], ssh_port int, ssh_user text,
                                       image text, cores int, memory_mib int, disk_gib int, labels jsonb, actions text[])
    ORDER BY l.item ->> 'name', l.ord DESC LIMIT v_most
  ), gone AS (
    UPDATE public.machines m
    SET status = CASE WHEN v_missing = 'gone' AND m.plan IS NOT NULL THEN 'planned' ELSE v_missing END, provision_id = p_provision.id, updated_at = clock_timestamp(),
        address = CASE WHEN v_missing = 'gone' AND m.plan IS NOT NULL THEN NULL ELSE m.address END
    WHERE m.workspace_id = p_provision.workspace_id AND m.status NOT IN ('gone', 'planned', v_missing) AND NOT EXISTS (SELECT FROM there t WHERE t.name = m.name)
  )
  INSERT INTO public.machines AS m (org_id, workspace_id, name, status, address, pool, node, external_id, ip_addresses, ssh_port, ssh_user,
                                    image, cores, memory_mib, disk_gib, labels, actions, owner, provision_id)
  SELECT p_provision.org_id, p_provision.workspace_id, t.name, t.status, t.address, t.pool, t.node, t.external_id, coalesce(t.ip_addresses, '{}'), t.ssh_port, t.ssh_user,
         t.image, t.cores, t.memory_mib, t.disk_gib, coalesce(t.labels, '{}'), coalesce(t.actions, '{}'), p_provision.requested_by, p_provision.id
  FROM there t
  ON CONFLICT (workspace_id, name) DO UPDATE
  SET status = EXCLUDED.status, address = EXCLUDED.address, pool = EXCLUDED.pool, node = EXCLUDED.node, external_id = EXCLUDED.external_id,
      ip_addresses = EXCLUDED.ip_addresses, ssh_port = EXCLUDED.ssh_port, ssh_user = EXCLUDED.ssh_user, image = EXCLUDED.image, cores = EXCLUDED.cores,
      memory_mib = EXCLUDED.memory_mib, disk_gib = EXCLUDED.disk_gib, labels = EXCLUDED.labels, actions = EXCLUDED.actions, plan = NULL, provision_id = EXCLUDED.provision_id, updated_at = clock_timestamp(),
      -- What was gone and is there again is another machine of that name.
      owner = CASE WHEN m.status IN ('planned', 'gone') THEN EXCLUDED.owner ELSE m.owner END,
      created_at = CASE WHEN m.status IN ('planned', 'gone') THEN clock_timestamp() ELSE m.created_at END
  WHERE (m.status, m.address, m.pool, m.node, m.external_id, m.ip_addresses, m.ssh_port, m.ssh_user, m.image, m.cores, m.memory_mib, m.disk_gib, m.labels, m.actions)
        IS DISTINCT FROM (EXCLUDED.status, EXCLUDED.address, EXCLUDED.pool, EXCLUDED.node, EXCLUDED.external_id, EXCLUDED.ip_addresses, EXCLUDED.ssh_port,
                          EXCLUDED.ssh_user, EXCLUDED.image, EXCLUDED.cores, EXCLUDED.memory_mib, EXCLUDED.disk_gib, EXCLUDED.labels, EXCLUDED.actions);
  -- A place is where its machine is: Ironic may have given another server, and people move machines.
  UPDATE public.reservations r SET node = m.node
  FROM public.machines m, public.pools p
  WHERE r.workspace_id = p_provision.workspace_id AND NOT r.kept AND m.workspace_id = r.workspace_id AND m.name = r.name AND m.status NOT IN ('planned', 'gone')
    AND p.id = r.pool_id AND p.name = m.pool AND r.node <> m.node AND EXISTS (SELECT FROM public.pool_nodes n WHERE n.pool_id = p.id AND n.name = m.node);
  -- The server of a run stays its own, whatever a later run of the workspace is given.
  UPDATE public.provisions p SET server = s.server
  FROM (SELECT jsonb_strip_nulls(jsonb_build_object('pool', m.pool, 'node', m.node, 'id', tendril.server_id(m.external_id))) AS server
        FROM public.machines m JOIN public.pools o ON o.cluster_id = p_provision.cluster_id AND o.name = m.pool AND o.kind = 'ironic'
        WHERE m.workspace_id = p_provision.workspace_id AND m.node IS NOT NULL AND m.status NOT IN ('planned', 'gone') ORDER BY m.name LIMIT 1) s
  WHERE p.id = p_provision.id AND p.operation = 'apply' AND p.server IS DISTINCT FROM s.server;
  PERFORM tendril.record_checks(p_provision, p_machines);
END $$;

-- The id of a bare-metal server that a machine is made of, from what the machine is called outside;
-- NULL: it has none yet.
CREATE OR REPLACE FUNCTION tendril.server_id(p_external_id text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
RETURN substring(p_external_id FROM '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$');

-- Lists a machine as creating as soon as a run says that it is about to make it: should nothing
-- more be heard of that run, people see where to look. Where a machine is replaced, what is known
-- of the one before is no longer true. The caller holds the provision's lock.
CREATE OR REPLACE FUNCTION tendril.record_machine_intents(p_provision public.provisions, p_events jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_prefix CONSTANT text := 'machine.'; -- of an address; the name follows
BEGIN
  INSERT INTO public.machines AS m (org_id, workspace_id, name, status, address, owner, provision_id)
  SELECT DISTINCT ON (e.address) p_provision.org_id, p_provision.workspace_id, substr(e.address, length(c_prefix) + 1), 'creating', e.address, p_provision.requested_by, p_provision.id
  FROM jsonb_to_recordset(p_events) AS e (kind text, address text, action text)
  WHERE e.kind = 'machine_intent' AND e.action IN ('create', 'replace') AND starts_with(e.address, c_prefix)
    AND (SELECT count(*) FROM public.machines o WHERE o.workspace_id = p_provision.workspace_id) < (SELECT resource_limit FROM tendril.settings)
  ORDER BY e.address
  ON CONFLICT (workspace_id, name) DO UPDATE
  SET status = 'creating', address = EXCLUDED.address, external_id = NULL, node = NULL, ip_addresses = '{}', provision_id = EXCLUDED.provision_id, updated_at = clock_timestamp(),
      owner = CASE WHEN m.status IN ('planned', 'gone') THEN EXCLUDED.owner ELSE m.owner END,
      created_at = CASE WHEN m.status IN ('planned', 'gone') THEN clock_timestamp() ELSE m.created_at END;
END $$;

-- Notes which machines a run was about to make or destroy that another agent could not find yet:
-- those with an event machine_intent, until one machine_found follows. The caller holds the claim's lock.
--
-- Locks: claim.
CREATE OR REPLACE FUNCTION tendril.note_open_intents(p_claim uuid, p_events jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := tendril.max_addresses();
  v_open text[] := (SELECT open_intents FROM tendril.claims WHERE id = p_claim);
  v_event record;
BEGIN
  FOR v_event IN
    SELECT e.item ->> 'kind' AS kind, tendril.address_key(coalesce(e.item ->> 'address', '')) AS address
    FROM jsonb_array_elements(p_events) WITH ORDINALITY e (item, ord)
    WHERE e.item ->> 'kind' IN ('machine_intent', 'machine_found') ORDER BY e.ord
  LOOP
    EXIT WHEN v_open IS NULL OR cardinality(v_open) > c_most; -- too many to keep: those left out would count as found
    v_open := array_remove(v_open, v_event.address) || CASE v_event.kind WHEN 'machine_intent' THEN ARRAY[v_event.address] ELSE '{}' END;
  END LOOP;
  UPDATE tendril.claims SET open_intents = v_open WHERE id = p_claim AND open_intents <> v_open;
END $$;

-- Of a machine that a run has begun to make and not told the end of, nobody knows.
CREATE OR REPLACE FUNCTION tendril.doubt_machines(p_provision uuid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE public.machines SET status = 'unknown', updated_at = clock_timestamp()
  WHERE id IN (SELECT id FROM public.machines WHERE provision_id = p_provision AND status = 'creating' AND starts_with(address, 'machine.') ORDER BY id FOR NO KEY UPDATE)
$$;

-- Records each change of a machine's status and health in its history, and with its place whether
-- it is there.
--
-- Locks: reservations.
CREATE OR REPLACE FUNCTION tendril.note_machine_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF TG_OP = 'INSERT' OR NEW.status <> OLD.status THEN
    INSERT INTO public.machine_events (org_id, machine_id, status, provision_id) VALUES (NEW.org_id, NEW.id, NEW.status, NEW.provision_id);
    UPDATE public.reservations r SET made = NOT r.made
    WHERE r.workspace_id = NEW.workspace_id AND r.name = NEW.name AND r.made <> (NEW.status NOT IN ('planned', 'gone'));
  END IF;
  IF TG_OP = 'UPDATE' AND NEW.health IS NOT NULL AND NEW.health IS DISTINCT FROM OLD.health THEN
    INSERT INTO public.machine_events (org_id, machine_id, status, health, why) VALUES (NEW.org_id, NEW.id, NEW.status, NEW.health, NEW.health_why);
    PERFORM tendril.notify('tendril_provision', NEW.provision_id) WHERE NEW.provision_id IS NOT NULL; -- open pages follow it
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER machines_note_status AFTER INSERT OR UPDATE OF status, health ON public.machines
  FOR EACH ROW EXECUTE FUNCTION tendril.note_machine_status();

-- What is wrong with a machine that a person plans; NULL: nothing.
CREATE OR REPLACE FUNCTION tendril.planned_problem(p_machine jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_keys    CONSTANT text[] := ARRAY['id', 'name', 'pool', 'image', 'cores', 'memory_mib', 'disk_gib', 'labels'];
  c_text    CONSTANT int := 600;        -- characters
  c_labels  CONSTANT int := 16384;      -- bytes
  c_largest CONSTANT int := 1000000000; -- of a size
  v_key     text;
BEGIN
  IF jsonb_typeof(p_machine) IS DISTINCT FROM 'object' THEN
    RETURN 'must be an object';
  END IF;
  SELECT k INTO v_key FROM jsonb_object_keys(p_machine) k WHERE k <> ALL (c_keys) ORDER BY k LIMIT 1;
  IF FOUND THEN
    RETURN format('%s: unknown; known are %s', left(v_key, tendril.quoted_name()), array_to_string(c_keys, ', '));
  ELSIF (p_machine ->> 'name' ~ '^[^[:cntrl:]]+$' AND jsonb_typeof(p_machine -> 'name') = 'string' AND length(p_machine ->> 'name') <= tendril.max_name()
         AND btrim(p_machine ->> 'name') = p_machine ->> 'name') IS NOT TRUE THEN
    RETURN format('name: must have 1 to %s characters, on one line and without spaces around them', tendril.max_name());
  ELSIF p_machine ? 'id' AND p_machine ->> 'id' ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' IS NOT TRUE THEN
    RETURN 'id: must be the id of a planned machine';
  END IF;
  FOREACH v_key IN ARRAY ARRAY['pool', 'image'] LOOP
    IF p_machine ? v_key AND (jsonb_typeof(p_machine -> v_key) <> 'string' OR length(p_machine ->> v_key) > c_text OR p_machine ->> v_key ~ '[[:cntrl:]]') THEN
      RETURN format('%s: must be a text of at most %s characters, on one line', v_key, c_text);
    END IF;
  END LOOP;
  FOREACH v_key IN ARRAY ARRAY['cores', 'memory_mib', 'disk_gib'] LOOP
    IF p_machine ? v_key AND (jsonb_typeof(p_machine -> v_key) <> 'number' OR NOT p_machine ->> v_key ~ '^[1-9][0-9]{0,9}$' OR (p_machine ->> v_key)::bigint > c_largest) THEN
      RETURN format('%s: must be a whole number from 1 to %s', v_key, c_largest);
    END IF;
  END LOOP;
  IF p_machine ? 'labels' AND (jsonb_typeof(p_machine -> 'labels') <> 'object' OR octet_length((p_machine -> 'labels')::text) > c_labels
                               OR jsonb_path_exists(p_machine, '$.labels.* ? (@.type() != "string")')) THEN
    RETURN format('labels: must be an object of texts, at most %s bytes', c_labels);
  END IF;
  RETURN NULL;
END $$;

-- Plans machines, which nothing is done about until they are provisioned. One that is planned
-- already, by its id or by its name, is replaced. Needs the role operator.
--
-- Arguments:
--   p_cluster   the cluster
--   p_snapshot  what they are to be provisioned with, as config_snapshot of a deploy has it:
--               template_source, and terraform_vars and workspace if they are known; at most 16384
--               bytes. Values must not be secret: every member can read them
--   p_machines  list of 1 to 500 {name, pool, image, cores, memory_mib, disk_gib, labels, id}; only
--               name is required; id is that of a planned machine of the workspace, which this one replaces
-- Answers: the ids, in the order of p_machines.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT404 machine_not_found,
--   PT409 machine_exists, PT409 workspace_bound, PT413 too_many_machines, PT422 bad_machines,
--   PT422 bad_snapshot, PT429 too_many_planned, PT503 busy.
-- Locks: workspace, machines.
-- Callers: authenticated, service_role.
-- Notes: Calls for several workspaces at once may exceed tendril.settings.planned_limit by what they
--   add: they don't wait for each other.
CREATE OR REPLACE FUNCTION public.plan_machines(p_cluster uuid, p_snapshot jsonb, p_machines jsonb) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_keys CONSTANT text[] := ARRAY['template_source', 'terraform_vars', 'workspace'];
  c_plan CONSTANT int := 16384; -- bytes
  c_most CONSTANT int := 500;   -- at once
  v_org       uuid := (SELECT org_id FROM public.clusters WHERE id = p_cluster);
  v_problems  text[];
  v_plan      jsonb;
  v_workspace public.workspaces;
  v_machine   jsonb;
  v_problem   text;
  v_names     text[] := '{}';
  v_there     public.machines;
  v_id        uuid;
  v_ids       uuid[] := '{}';
  v_most      int := (SELECT planned_limit FROM tendril.settings);
  v_before    bigint;
  v_after     bigint;
BEGIN
  IF NOT tendril.may_act(v_org, 'operator') OR v_org IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found', format('cluster %s not found, or you may not deploy to it', p_cluster),
      'check the id, and that you are an operator of its organisation');
  END IF;
  v_problems := CASE WHEN tendril.has_vast_number(p_snapshot) THEN ARRAY['config_snapshot: a number in it is larger than 1e400 or has more than 400 digits after the point']
                     ELSE tendril.snapshot_problems(p_snapshot) END;
  IF v_problems = '{}' THEN
    v_problems := ARRAY(SELECT format('config_snapshot.%s: has no place in a plan; known are %s', left(k, tendril.quoted_name()), array_to_string(c_keys, ', '))
                        FROM jsonb_object_keys(p_snapshot) k WHERE k <> ALL (c_keys) ORDER BY k COLLATE "C");
  END IF;
  IF v_problems = '{}' THEN
    v_plan := p_snapshot || jsonb_build_object('workspace', tendril.snapshot_workspace(p_snapshot));
    IF octet_length(v_plan::text) > c_plan THEN
      v_problems := ARRAY[format('config_snapshot: %s bytes; at most %s are allowed in a plan', octet_length(v_plan::text), c_plan)];
    END IF;
  END IF;
  IF v_problems <> '{}' THEN
    PERFORM tendril.refuse('PT422', 'bad_snapshot', tendril.problem_list(v_problems));
  ELSIF jsonb_typeof(p_machines) IS DISTINCT FROM 'array' OR jsonb_array_length(p_machines) = 0 THEN
    PERFORM tendril.refuse('PT422', 'bad_machines', 'p_machines: must be a list of machines');
  ELSIF jsonb_array_length(p_machines) > c_most THEN
    PERFORM tendril.refuse('PT413', 'too_many_machines', format('%s machines; at most %s are allowed at once', jsonb_array_length(p_machines), c_most));
  END IF;
  FOR v_machine IN SELECT m FROM jsonb_array_elements(p_machines) m LOOP
    v_problem := tendril.planned_problem(v_machine);
    IF v_problem IS NOT NULL THEN
      PERFORM tendril.refuse('PT422', 'bad_machines', format('machine %s: %s', coalesce(to_json(left(v_machine ->> 'name', tendril.quoted_name()))::text, cardinality(v_names) + 1 || '. of the list'), v_problem));
    ELSIF v_machine ->> 'name' = ANY (v_names) THEN
      PERFORM tendril.refuse('PT422', 'bad_machines', format('machine %s is listed twice', to_json(v_machine ->> 'name')));
    END IF;
    v_names := v_names || (v_machine ->> 'name');
  END LOOP;

  v_workspace := tendril.lock_workspace_of(v_org, p_cluster, tendril.snapshot_workspace(p_snapshot), false);
  -- To draw up is to propose; to change what somebody has drawn up is not.
  PERFORM tendril.check_token(v_workspace.name, CASE WHEN EXISTS (SELECT FROM jsonb_array_elements(p_machines) m WHERE m ? 'id') THEN 'change' ELSE 'propose' END);
  PERFORM tendril.check_binding(v_workspace, tendril.plain_repo(p_snapshot -> 'template_source' ->> 'repo'), tendril.plain_path(p_snapshot -> 'template_source' ->> 'path'));
  -- In the order in which reports lock them.
  PERFORM FROM public.machines WHERE workspace_id = v_workspace.id ORDER BY id FOR NO KEY UPDATE;
  SELECT count(*) INTO v_before FROM public.machines WHERE org_id = v_org AND status = 'planned';
  FOR v_machine IN SELECT m FROM jsonb_array_elements(p_machines) m LOOP
    IF v_machine ? 'id' AND NOT EXISTS (SELECT FROM public.machines WHERE id = (v_machine ->> 'id')::uuid AND workspace_id = v_workspace.id AND status = 'planned') THEN
      PERFORM tendril.refuse('PT404', 'machine_not_found', format('there is no planned machine %s in workspace %s', v_machine ->> 'id', to_json(v_workspace.name)));
    END IF;
    SELECT * INTO v_there FROM public.machines WHERE workspace_id = v_workspace.id AND name = v_machine ->> 'name';
    IF v_there.status NOT IN ('planned', 'gone') OR v_there.status = 'planned' AND v_there.id <> (v_machine ->> 'id')::uuid THEN
      PERFORM tendril.refuse('PT409', 'machine_exists', format('machine %s of workspace %s is there already: it is %s', to_json(v_there.name), to_json(v_workspace.name), v_there.status),
        'choose another name, or another workspace');
    END IF;
    -- Under another name it is another row: what was gone under that name keeps its history.
    DELETE FROM public.machines WHERE id = (v_machine ->> 'id')::uuid AND name <> v_machine ->> 'name';
    INSERT INTO public.machines AS m (org_id, workspace_id, name, status, pool, image, cores, memory_mib, disk_gib, labels, owner, plan)
    VALUES (v_org, v_workspace.id, v_machine ->> 'name', 'planned', v_machine ->> 'pool', v_machine ->> 'image', (v_machine ->> 'cores')::int, (v_machine ->> 'memory_mib')::int,
            (v_machine ->> 'disk_gib')::int, coalesce(v_machine -> 'labels', '{}'), tendril.current_user_id(), v_plan)
    ON CONFLICT (workspace_id, name) DO UPDATE
    SET status = 'planned', pool = EXCLUDED.pool, image = EXCLUDED.image, cores = EXCLUDED.cores, memory_mib = EXCLUDED.memory_mib, disk_gib = EXCLUDED.disk_gib,
        labels = EXCLUDED.labels, plan = EXCLUDED.plan, updated_at = clock_timestamp(),
        address = NULL, node = NULL, external_id = NULL, ip_addresses = '{}', ssh_port = NULL, ssh_user = NULL, actions = '{}', provision_id = NULL,
        owner = CASE m.status WHEN 'gone' THEN EXCLUDED.owner ELSE m.owner END,
        created_at = CASE m.status WHEN 'gone' THEN clock_timestamp() ELSE m.created_at END
    RETURNING m.id INTO v_id;
    v_ids := v_ids || v_id;
  END LOOP;
  IF (SELECT count(*) FROM public.machines WHERE workspace_id = v_workspace.id) > (SELECT resource_limit FROM tendril.settings) THEN
    PERFORM tendril.refuse('PT413', 'too_many_machines', format('workspace %s would have more than %s machines (tendril.settings.resource_limit)', to_json(v_workspace.name), (SELECT resource_limit FROM tendril.settings)));
  END IF;
  SELECT count(*) INTO v_after FROM public.machines WHERE org_id = v_org AND status = 'planned';
  -- Where the limit was lowered, those that are there can still be changed.
  IF v_after > v_most AND v_after > v_before THEN
    PERFORM tendril.refuse('PT429', 'too_many_planned', format('the organisation has %s planned machines, and would have %s; at most %s are allowed (tendril.settings.planned_limit)', v_before, v_after, v_most),
      'provision some, or delete those that nobody wants any more');
  END IF;
  PERFORM tendril.audit(v_org, 'plan_machines', 'workspace', v_workspace.id, jsonb_build_object('machines', v_names));
  RETURN v_ids;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Deletes a machine that is planned. Needs the role operator.
--
-- Arguments:
--   p_machine  the machine
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 machine_not_found, PT404 workspace_not_found,
--   PT409 machine_exists, PT503 busy.
-- Locks: workspace, machines.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.delete_planned_machine(p_machine uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_machine public.machines;
BEGIN
  SELECT * INTO v_machine FROM public.machines WHERE id = p_machine;
  IF NOT tendril.may_act(v_machine.org_id, 'operator') OR v_machine.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'machine_not_found', format('machine %s not found, or you are not operator there', p_machine));
  END IF;
  PERFORM tendril.lock_workspace_for(v_machine.workspace_id, 'operator');
  DELETE FROM public.machines WHERE id = p_machine AND status = 'planned';
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT409', 'machine_exists', format('machine %s exists, so its plan is not deleted', to_json(v_machine.name)), 'destroy it instead');
  END IF;
  PERFORM tendril.audit(v_machine.org_id, 'delete_planned_machine', 'workspace', v_machine.workspace_id, jsonb_build_object('machine', v_machine.name));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Machines: what people see of the machines that runs have made.

-- Replaces the machines of a workspace by those that its newest report lists: one that is missing
-- is gone, or unknown where the report left some out for want of room (p_omitted) or has more than
-- tendril.settings.resource_limit; the log says so then. Unchanged rows are not written. Of two
-- with one name the later one counts. The caller holds the workspace's lock.
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
    UPDATE public.machines m SET status = v_missing, provision_id = p_provision.id, updated_at = clock_timestamp()
    WHERE m.workspace_id = p_provision.workspace_id AND m.status NOT IN ('gone', v_missing) AND NOT EXISTS (SELECT FROM there t WHERE t.name = m.name)
  )
  INSERT INTO public.machines AS m (org_id, workspace_id, name, status, address, pool, node, external_id, ip_addresses, ssh_port, ssh_user,
                                    image, cores, memory_mib, disk_gib, labels, actions, owner, provision_id)
  SELECT p_provision.org_id, p_provision.workspace_id, t.name, t.status, t.address, t.pool, t.node, t.external_id, coalesce(t.ip_addresses, '{}'), t.ssh_port, t.ssh_user,
         t.image, t.cores, t.memory_mib, t.disk_gib, coalesce(t.labels, '{}'), coalesce(t.actions, '{}'), p_provision.requested_by, p_provision.id
  FROM there t
  ON CONFLICT (workspace_id, name) DO UPDATE
  SET status = EXCLUDED.status, address = EXCLUDED.address, pool = EXCLUDED.pool, node = EXCLUDED.node, external_id = EXCLUDED.external_id,
      ip_addresses = EXCLUDED.ip_addresses, ssh_port = EXCLUDED.ssh_port, ssh_user = EXCLUDED.ssh_user, image = EXCLUDED.image, cores = EXCLUDED.cores,
      memory_mib = EXCLUDED.memory_mib, disk_gib = EXCLUDED.disk_gib, labels = EXCLUDED.labels, actions = EXCLUDED.actions, provision_id = EXCLUDED.provision_id, updated_at = clock_timestamp(),
      -- What was gone and is there again is another machine of that name.
      owner = CASE m.status WHEN 'gone' THEN EXCLUDED.owner ELSE m.owner END,
      created_at = CASE m.status WHEN 'gone' THEN clock_timestamp() ELSE m.created_at END
  WHERE (m.status, m.address, m.pool, m.node, m.external_id, m.ip_addresses, m.ssh_port, m.ssh_user, m.image, m.cores, m.memory_mib, m.disk_gib, m.labels, m.actions)
        IS DISTINCT FROM (EXCLUDED.status, EXCLUDED.address, EXCLUDED.pool, EXCLUDED.node, EXCLUDED.external_id, EXCLUDED.ip_addresses, EXCLUDED.ssh_port,
                          EXCLUDED.ssh_user, EXCLUDED.image, EXCLUDED.cores, EXCLUDED.memory_mib, EXCLUDED.disk_gib, EXCLUDED.labels, EXCLUDED.actions);
  PERFORM tendril.record_checks(p_provision, p_machines);
END $$;

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
      owner = CASE m.status WHEN 'gone' THEN EXCLUDED.owner ELSE m.owner END,
      created_at = CASE m.status WHEN 'gone' THEN clock_timestamp() ELSE m.created_at END;
END $$;

-- Of a machine that a run has begun to make and not told the end of, nobody knows.
CREATE OR REPLACE FUNCTION tendril.doubt_machines(p_provision uuid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
AS $$
  UPDATE public.machines SET status = 'unknown', updated_at = clock_timestamp()
  WHERE id IN (SELECT id FROM public.machines WHERE provision_id = p_provision AND status = 'creating' AND starts_with(address, 'machine.') ORDER BY id FOR NO KEY UPDATE)
$$;

-- Records each change of a machine's status and health in its history.
CREATE OR REPLACE FUNCTION tendril.note_machine_status() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF TG_OP = 'INSERT' OR NEW.status <> OLD.status THEN
    INSERT INTO public.machine_events (org_id, machine_id, status, provision_id) VALUES (NEW.org_id, NEW.id, NEW.status, NEW.provision_id);
  END IF;
  IF TG_OP = 'UPDATE' AND NEW.health IS NOT NULL AND NEW.health IS DISTINCT FROM OLD.health THEN
    INSERT INTO public.machine_events (org_id, machine_id, status, health, why) VALUES (NEW.org_id, NEW.id, NEW.status, NEW.health, NEW.health_why);
    PERFORM tendril.notify('tendril_provision', NEW.provision_id) WHERE NEW.provision_id IS NOT NULL; -- open pages follow it
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER machines_note_status AFTER INSERT OR UPDATE OF status, health ON public.machines
  FOR EACH ROW EXECUTE FUNCTION tendril.note_machine_status();

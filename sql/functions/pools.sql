-- Pools: what agents report of them, and where machines are placed.

-- Stores what an agent has found of its pools. A pool that none of the cluster's agents has
-- reported for a while stays, with its age.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_instance    the agent's instance id
--   p_boot        the boot id of this start
--   p_pools       a list of at most 50 {name, kind, limits, taken, problem, nodes}; with a problem
--                 nodes and taken stay as they were. nodes are at most 500 {name, online, cores,
--                 memory_mib, cores_used, memory_used, images, labels, storages, server}; uses are
--                 shares, 0 to 1; server is that of a bare-metal one: {id, name, provision_state,
--                 power_state, maintenance, reason, available, instance_uuid, last_error, health,
--                 health_why}; health is ok, warning, critical or unknown, and a machine on that
--                 server has the same if its template has no check. limits are {overcommit_cores,
--                 overcommit_memory, ids: [from, to], addresses: [{from, to}]}, taken is
--                 {ids, addresses}
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 agent_superseded, PT409 agent_unregistered,
--   PT409 request_repeated, PT413 too_many_pools, PT422 bad_agent, PT422 bad_pools, PT503 busy.
-- Locks: pools, machines.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.report_pools(p_token_hash text, p_instance uuid, p_boot uuid, p_pools jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_pools CONSTANT int := 50;
  c_nodes CONSTANT int := 500;
  c_why   CONSTANT int := 600; -- characters
  v_caller record := tendril.caller(p_token_hash, p_instance, p_boot);
  v_org    uuid := (SELECT org_id FROM public.clusters WHERE id = v_caller.cluster_id);
  v_pool   record;
  v_id     uuid;
BEGIN
  PERFORM tendril.once();
  IF jsonb_typeof(p_pools) IS DISTINCT FROM 'array' THEN
    PERFORM tendril.refuse('PT422', 'bad_pools', 'p_pools: must be a list');
  ELSIF jsonb_array_length(p_pools) > c_pools OR jsonb_path_exists(p_pools, format('$[*].nodes ? (@.size() > %s)', c_nodes)::jsonpath) THEN
    PERFORM tendril.refuse('PT413', 'too_many_pools', format('p_pools: at most %s pools with %s nodes each are allowed', c_pools, c_nodes));
  END IF;
  -- By id, as those who place machines lock them.
  PERFORM FROM public.pools WHERE cluster_id = v_caller.cluster_id ORDER BY id FOR NO KEY UPDATE;
  FOR v_pool IN SELECT DISTINCT ON (r.name) r.* FROM jsonb_to_recordset(p_pools) AS r (name text, kind text, limits jsonb, taken jsonb, problem text, nodes jsonb) ORDER BY r.name LOOP
    INSERT INTO public.pools AS p (org_id, cluster_id, name, kind, limits, taken, problem, reported_by, reported_at)
    VALUES (v_org, v_caller.cluster_id, v_pool.name, v_pool.kind, coalesce(v_pool.limits, '{}'), coalesce(v_pool.taken, '{}'), left(v_pool.problem, c_why), p_instance, clock_timestamp())
    ON CONFLICT (cluster_id, name) DO UPDATE
    SET kind = EXCLUDED.kind, limits = EXCLUDED.limits, taken = CASE WHEN EXCLUDED.problem IS NULL THEN EXCLUDED.taken ELSE p.taken END,
        problem = EXCLUDED.problem, reported_by = EXCLUDED.reported_by, reported_at = EXCLUDED.reported_at
    RETURNING id INTO v_id;
    CONTINUE WHEN v_pool.problem IS NOT NULL;
    DELETE FROM public.pool_nodes n WHERE n.pool_id = v_id AND NOT EXISTS (SELECT FROM jsonb_array_elements(v_pool.nodes) r WHERE r ->> 'name' = n.name);
    INSERT INTO public.pool_nodes (pool_id, org_id, name, online, cores, memory_mib, cores_used, memory_used, images, labels, storages, server, measured_at)
    SELECT DISTINCT ON (r.name) v_id, v_org, r.name, r.online, r.cores, r.memory_mib, coalesce(r.cores_used, 0), coalesce(r.memory_used, 0), coalesce(r.images, '{}'), coalesce(r.labels, '{}'), coalesce(r.storages, '[]'), r.server, clock_timestamp()
    FROM jsonb_to_recordset(coalesce(v_pool.nodes, '[]')) AS r (name text, online boolean, cores int, memory_mib int, cores_used real, memory_used real, images text[], labels jsonb, storages jsonb, server jsonb)
    ORDER BY r.name
    ON CONFLICT (pool_id, name) DO UPDATE
    SET online = EXCLUDED.online, cores = EXCLUDED.cores, memory_mib = EXCLUDED.memory_mib, cores_used = EXCLUDED.cores_used, memory_used = EXCLUDED.memory_used,
        images = EXCLUDED.images, labels = EXCLUDED.labels, storages = EXCLUDED.storages, server = EXCLUDED.server, measured_at = EXCLUDED.measured_at;
  END LOOP;
  PERFORM tendril.record_server_health(v_caller.cluster_id);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception OR integrity_constraint_violation THEN
    PERFORM tendril.refuse('PT422', 'bad_pools', format('p_pools: malformed: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- The nodes of pools with what is in use and reserved there. What was reserved after a node was
-- measured counts as used, for a while longer than a machine takes to start. A bare-metal server has
-- as many cores as it has.
CREATE OR REPLACE FUNCTION tendril.node_loads(p_pools uuid[], p_workspace uuid) RETURNS tendril.node_load[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_start CONSTANT interval := '1 minute';
BEGIN
  RETURN ARRAY(
    SELECT ROW(p.id, p.name, n.name, n.online AND p.problem IS NULL, n.cores, n.memory_mib, n.images, n.labels,
      n.cores * coalesce((p.limits ->> 'overcommit_cores')::double precision, CASE p.kind WHEN 'ironic' THEN 1 ELSE 'infinity'::double precision END), n.memory_mib * coalesce((p.limits ->> 'overcommit_memory')::double precision, 1),
      n.cores * n.cores_used + coalesce(r.new_cores, 0), n.memory_mib * n.memory_used + coalesce(r.new_memory, 0),
      coalesce(r.cores, 0), coalesce(r.memory, 0), coalesce(r.own, 0))::tendril.node_load
    FROM public.pools p JOIN public.pool_nodes n ON n.pool_id = p.id
    LEFT JOIN LATERAL (
      SELECT sum(v.cores)::int AS cores, sum(v.memory_mib)::int AS memory, (count(*) FILTER (WHERE v.workspace_id = p_workspace))::int AS own,
             sum(v.cores) FILTER (WHERE n.measured_at < v.created_at + c_start) AS new_cores, sum(v.memory_mib) FILTER (WHERE n.measured_at < v.created_at + c_start) AS new_memory
      FROM public.reservations v WHERE v.pool_id = p.id AND v.node = n.name) r ON true
    WHERE p.id = ANY (p_pools) ORDER BY p.id, n.name);
END $$;

-- The lowest VM ids of a pool's range that are free, at most p_count; NULL: the pool has no range.
CREATE OR REPLACE FUNCTION tendril.free_vm_ids(p_pool public.pools, p_count int) RETURNS int[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE WHEN p_pool.limits ? 'ids' THEN ARRAY(
    SELECT i FROM generate_series((p_pool.limits -> 'ids' ->> 0)::int, (p_pool.limits -> 'ids' ->> 1)::int) i
    WHERE i NOT IN (SELECT r.vm_id FROM public.reservations r WHERE r.pool_id = p_pool.id AND r.vm_id IS NOT NULL
                    UNION ALL SELECT t::int FROM jsonb_array_elements_text(coalesce(p_pool.taken -> 'ids', '[]')) t)
    ORDER BY i LIMIT p_count) END;
END $$;

-- The lowest addresses of a pool's ranges that are free, at most p_count; NULL: the pool has no
-- ranges, so that machines get one by themselves.
CREATE OR REPLACE FUNCTION tendril.free_addresses(p_pool public.pools, p_count int) RETURNS inet[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := 65536; -- addresses of a range that count
BEGIN
  RETURN CASE WHEN p_pool.limits ? 'addresses' THEN ARRAY(
    SELECT f.first + i.i FROM jsonb_array_elements(p_pool.limits -> 'addresses') WITH ORDINALITY a (range, ord),
      LATERAL (SELECT (a.range ->> 'from')::inet AS first, (a.range ->> 'to')::inet AS last) f,
      LATERAL generate_series(0, least(f.last - f.first, c_most - 1)) i (i)
    WHERE f.first + i.i NOT IN (SELECT r.address FROM public.reservations r WHERE r.pool_id = p_pool.id AND r.address IS NOT NULL
                                UNION ALL SELECT t::inet FROM jsonb_array_elements_text(coalesce(p_pool.taken -> 'addresses', '[]')) t)
    ORDER BY a.ord, i.i LIMIT p_count) END;
END $$;

-- What is wrong with what a run wants of pools; NULL: nothing.
CREATE OR REPLACE FUNCTION tendril.wants_problem(p_wants jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_keys    CONSTANT text[] := ARRAY['name', 'pool', 'cores', 'memory_mib', 'image', 'node', 'avoid', 'labels', 'spread', 'together', 'address', 'keep', 'vm_id'];
  c_largest CONSTANT int := 1000000000;
  v_want jsonb;
  v_key  text;
BEGIN
  FOR v_want IN SELECT w FROM jsonb_array_elements(p_wants) w LOOP
    IF jsonb_typeof(v_want) <> 'object' OR (length(v_want ->> 'name') BETWEEN 1 AND tendril.max_name()) IS NOT TRUE OR coalesce(v_want ->> 'pool', '') = '' THEN
      RETURN 'each must be an object with a name and a pool';
    END IF;
    SELECT k INTO v_key FROM jsonb_object_keys(v_want) k WHERE k <> ALL (c_keys) ORDER BY k LIMIT 1;
    IF FOUND THEN
      RETURN format('%s: %s: unknown; known are %s', v_want ->> 'name', left(v_key, tendril.quoted_name()), array_to_string(c_keys, ', '));
    END IF;
    FOREACH v_key IN ARRAY ARRAY['cores', 'memory_mib'] LOOP
      IF (jsonb_typeof(v_want -> v_key) = 'number' AND v_want ->> v_key ~ '^[1-9][0-9]{0,9}$' AND (v_want ->> v_key)::bigint <= c_largest) IS NOT TRUE THEN
        RETURN format('%s: %s: must be a whole number from 1 to %s', v_want ->> 'name', v_key, c_largest);
      END IF;
    END LOOP;
    FOREACH v_key IN ARRAY ARRAY['image', 'node', 'spread', 'together', 'address'] LOOP
      IF v_want ? v_key AND (jsonb_typeof(v_want -> v_key) <> 'string' OR length(v_want ->> v_key) > tendril.max_name()) THEN
        RETURN format('%s: %s: must be a text of at most %s characters', v_want ->> 'name', v_key, tendril.max_name());
      END IF;
    END LOOP;
    IF v_want ? 'vm_id' AND (jsonb_typeof(v_want -> 'vm_id') = 'number' AND v_want ->> 'vm_id' ~ '^[1-9][0-9]{0,8}$' AND coalesce(v_want ->> 'node', '') <> '') IS NOT TRUE THEN
      RETURN format('%s: vm_id: must be a whole number of at most 9 digits, and goes with node', v_want ->> 'name');
    END IF;
    IF coalesce(jsonb_typeof(v_want -> 'avoid'), 'array') <> 'array' OR coalesce(jsonb_typeof(v_want -> 'labels'), 'object') <> 'object' THEN
      RETURN format('%s: avoid must be a list and labels an object', v_want ->> 'name');
    END IF;
  END LOOP;
  SELECT w ->> 'name' INTO v_key FROM jsonb_array_elements(p_wants) w GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1;
  IF FOUND THEN
    RETURN format('%s is wanted twice', v_key);
  END IF;
  RETURN NULL;
END $$;

-- Refuses what is no list of machines that can be placed at once.
--
-- Errors: PT413 too_many_machines, PT422 bad_wants.
CREATE OR REPLACE FUNCTION tendril.check_wants(p_wants jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most CONSTANT int := 1000;
  v_problem text;
BEGIN
  IF jsonb_typeof(p_wants) IS DISTINCT FROM 'array' THEN
    PERFORM tendril.refuse('PT422', 'bad_wants', 'p_wants: must be a list');
  ELSIF jsonb_array_length(p_wants) > c_most THEN
    PERFORM tendril.refuse('PT413', 'too_many_machines', format('%s machines; at most %s are placed at once', jsonb_array_length(p_wants), c_most));
  END IF;
  v_problem := tendril.wants_problem(p_wants);
  IF v_problem IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: %s', v_problem));
  END IF;
END $$;

-- Places machines of a workspace in a cluster's pools, all or none, as reserve_machines() says. The
-- caller has checked p_wants, and that the caller may do it.
--
-- Errors: PT404 pool_not_found, PT409 address_taken, PT409 never_fits, PT409 no_room, PT409 quota,
--   PT422 bad_wants.
-- Locks: pool_quotas, pools, reservations.
CREATE OR REPLACE FUNCTION tendril.place_machines(p_cluster public.clusters, p_org uuid, p_workspace uuid, p_provision uuid, p_wants jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_says  CONSTANT int := 5;   -- nodes that the reason names
  c_why   CONSTANT int := 600; -- characters
  c_cores  CONSTANT int := 60; -- points of a node whose cores are all free
  c_memory CONSTANT int := 40; -- and whose memory is
  c_digits CONSTANT int := 6;  -- beyond which points are alike
  v_problem   text;
  v_pool      public.pools;
  v_want      jsonb;
  v_nodes     tendril.node_load[];
  v_ids       int[];
  v_addresses inet[];
  v_there     public.reservations;
  v_address   inet;
  v_image     text; -- as the pool calls it
  v_made      boolean;
  v_together  text;
  v_group     jsonb; -- how many of the group each node has
  v_i         int;
  v_order     int[];
  v_unfit     text[];
  v_says      text[];
BEGIN
  SELECT w ->> 'pool' INTO v_problem FROM jsonb_array_elements(p_wants) w
  WHERE NOT EXISTS (SELECT FROM public.pools p WHERE p.cluster_id = p_cluster.id AND p.name = w ->> 'pool') ORDER BY 1 LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT404', 'pool_not_found', format('no agent of cluster %s has reported a pool %s', to_json(p_cluster.name), to_json(left(v_problem, tendril.quoted_name()))));
  END IF;
  PERFORM tendril.check_quotas(p_org, p_cluster.id, p_workspace, p_wants);

  FOR v_pool IN SELECT * FROM public.pools p WHERE p.cluster_id = p_cluster.id AND p.name IN (SELECT w ->> 'pool' FROM jsonb_array_elements(p_wants) w) ORDER BY p.id FOR NO KEY UPDATE LOOP
    v_nodes := tendril.node_loads(ARRAY[v_pool.id], p_workspace);
    v_ids := tendril.free_vm_ids(v_pool, jsonb_array_length(p_wants));
    v_addresses := NULL;
    -- Those that want an address of their own go first, so that no other one takes it.
    FOR v_want IN SELECT w.want FROM jsonb_array_elements(p_wants) WITH ORDINALITY w (want, ord) WHERE w.want ->> 'pool' = v_pool.name
                  ORDER BY coalesce(w.want ->> 'address', '') = '', w.ord LOOP
      SELECT * INTO v_there FROM public.reservations WHERE workspace_id = p_workspace AND name = v_want ->> 'name';
      IF v_there.pool_id = v_pool.id AND coalesce((v_want ->> 'vm_id')::int = v_there.vm_id, NOT v_want ? 'vm_id') THEN
        SELECT n.ord INTO v_i FROM unnest(v_nodes) WITH ORDINALITY n (pool_id, pool, name, online, cores, memory_mib, images, labels, most_cores, most_memory, cores_busy, memory_busy, cores_reserved, memory_reserved, own, ord)
        WHERE n.name = v_there.node;
        IF v_i IS NOT NULL AND ((v_want ->> 'memory_mib')::int > v_nodes[v_i].most_memory OR (v_want ->> 'cores')::int > v_nodes[v_i].most_cores) THEN
          PERFORM tendril.refuse('PT409', 'never_fits', format('%s is on %s, which is too small for %s cores and %s MiB', v_there.name, v_there.node, v_want ->> 'cores', v_want ->> 'memory_mib'));
        ELSIF v_i IS NOT NULL AND ((v_want ->> 'memory_mib')::int > v_there.memory_mib AND v_nodes[v_i].memory_reserved - v_there.memory_mib + (v_want ->> 'memory_mib')::int > v_nodes[v_i].most_memory
             OR (v_want ->> 'cores')::int > v_there.cores AND v_nodes[v_i].cores_reserved - v_there.cores + (v_want ->> 'cores')::int > v_nodes[v_i].most_cores) THEN
          PERFORM tendril.refuse('PT409', 'no_room', format('%s stays on %s, which has no room for %s cores and %s MiB of it', v_there.name, v_there.node, v_want ->> 'cores', v_want ->> 'memory_mib'),
            'keep its size, or rebuild it under another name');
        END IF;
        IF v_i IS NOT NULL THEN
          v_nodes[v_i].cores_reserved := v_nodes[v_i].cores_reserved - v_there.cores + (v_want ->> 'cores')::int;
          v_nodes[v_i].memory_reserved := v_nodes[v_i].memory_reserved - v_there.memory_mib + (v_want ->> 'memory_mib')::int;
        END IF;
        -- Of a machine that is there the larger of both: nobody knows yet whether it will be smaller.
        v_made := EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = p_workspace AND m.name = v_there.name AND m.status NOT IN ('planned', 'gone'));
        UPDATE public.reservations
        SET cores = greatest((v_want ->> 'cores')::int, CASE WHEN v_made THEN cores END), memory_mib = greatest((v_want ->> 'memory_mib')::int, CASE WHEN v_made THEN memory_mib END), spread = v_want ->> 'spread', together = v_want ->> 'together',
               kept = coalesce((v_want ->> 'keep')::boolean, false), wanted_by = p_provision
        WHERE id = v_there.id;
        CONTINUE;
      END IF;
      IF EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = p_workspace AND m.name = v_there.name AND m.status NOT IN ('planned', 'gone')) THEN
        PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: %s is in another pool, and a machine can''t move to pool %s', v_there.name, v_pool.name));
      END IF;
      DELETE FROM public.reservations WHERE id = v_there.id; -- of another pool

      v_image := tendril.pool_image(v_pool.id, v_want ->> 'image');
      v_together := NULL;
      IF v_want ? 'together' THEN
        v_together := (SELECT r.node FROM public.reservations r WHERE r.workspace_id = p_workspace AND r.pool_id = v_pool.id AND r.together = v_want ->> 'together' LIMIT 1);
      END IF;
      v_group := NULL;
      IF v_want ? 'spread' THEN
        v_group := (SELECT jsonb_object_agg(g.node, g.has) FROM (SELECT r.node, count(*) AS has FROM public.reservations r
                    WHERE r.workspace_id = p_workspace AND r.pool_id = v_pool.id AND r.spread = v_want ->> 'spread' GROUP BY r.node) g);
      END IF;
      SELECT array_agg(n.ord), array_agg(n.unfit), array_agg(CASE WHEN n.place <= c_says THEN n.name || coalesce(' ' || n.unfit, ' has ' || round(n.points) || ' points') END)
      INTO v_order, v_unfit, v_says
      FROM (SELECT f.*, row_number() OVER (ORDER BY f.unfit IS NOT NULL, f.group_has, f.points DESC, f.own, f.name) AS place
            FROM (
        SELECT u.ord, u.name, u.own, round((c_cores * greatest(0, 1 - u.cores_busy / u.cores) + c_memory * greatest(0, 1 - u.memory_busy / u.memory_mib))::numeric, c_digits) AS points, coalesce((v_group ->> u.name)::int, 0) AS group_has,
          CASE
            WHEN v_want ->> 'node' <> u.name THEN 'is not the one that was asked for'
            WHEN v_want ? 'vm_id' THEN NULL -- it is there
            WHEN v_together <> u.name THEN 'is not where the others of ' || (v_want ->> 'together') || ' are'
            WHEN v_want -> 'avoid' ? u.name THEN 'is to be avoided'
            WHEN NOT u.labels @> coalesce(v_want -> 'labels', '{}') THEN 'lacks the labels'
            WHEN v_image <> '' AND NOT v_image = ANY (u.images) THEN 'lacks the image' || CASE WHEN v_image <> v_want ->> 'image' THEN ' ' || v_image ELSE '' END
            WHEN (v_want ->> 'memory_mib')::int > u.most_memory OR (v_want ->> 'cores')::int > u.most_cores THEN 'is too small'
            WHEN v_pool.kind IN ('static', 'ironic') AND u.cores_reserved > 0 THEN 'is taken'
            WHEN NOT u.online THEN CASE v_pool.kind WHEN 'ironic' THEN 'is not available' ELSE 'is not reachable' END
            WHEN greatest(u.memory_reserved, u.memory_busy) + (v_want ->> 'memory_mib')::int > u.most_memory THEN 'has no memory left'
            WHEN u.cores_reserved + (v_want ->> 'cores')::int > u.most_cores THEN 'has no cores left'
          END AS unfit
        FROM unnest(v_nodes) WITH ORDINALITY u (pool_id, pool, name, online, cores, memory_mib, images, labels, most_cores, most_memory, cores_busy, memory_busy, cores_reserved, memory_reserved, own, ord)
        ) f ORDER BY place) n;
      v_i := v_order[1];
      IF v_i IS NULL OR v_unfit[1] IS NOT NULL THEN
        v_problem := format('%s fits on no node of pool %s (%s cores, %s MiB): %s', v_want ->> 'name', v_pool.name, v_want ->> 'cores', v_want ->> 'memory_mib',
          coalesce(array_to_string(v_says[1:c_says], ', '), 'none is reported'));
        IF v_unfit && ARRAY['is not reachable', 'is not available', 'is taken', 'has no memory left', 'has no cores left'] THEN -- which time may change
          PERFORM tendril.refuse('PT409', 'no_room', v_problem);
        END IF;
        PERFORM tendril.refuse('PT409', 'never_fits', v_problem);
      END IF;
      v_address := nullif(v_want ->> 'address', '')::inet;
      IF v_address IS NOT NULL THEN
        PERFORM tendril.check_address(v_pool, v_address);
      ELSIF v_pool.limits ? 'addresses' AND NOT v_want ? 'vm_id' THEN
        v_addresses := coalesce(v_addresses, tendril.free_addresses(v_pool, jsonb_array_length(p_wants)));
        v_address := v_addresses[1];
        v_addresses := v_addresses[2:];
      END IF;
      IF v_want ? 'vm_id' THEN
        IF EXISTS (SELECT FROM public.reservations r WHERE r.pool_id = v_pool.id AND r.vm_id = (v_want ->> 'vm_id')::int) THEN
          PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: id %s of pool %s belongs to another machine of Tendril', v_want ->> 'vm_id', v_pool.name));
        END IF;
        v_ids := (v_want ->> 'vm_id')::int || array_remove(v_ids, (v_want ->> 'vm_id')::int);
      ELSIF v_pool.limits ? 'ids' AND v_ids[1] IS NULL OR v_pool.limits ? 'addresses' AND v_address IS NULL THEN
        PERFORM tendril.refuse('PT409', 'no_room', format('%s: all %s of pool %s are taken', v_want ->> 'name', CASE WHEN v_address IS NULL AND v_pool.limits ? 'addresses' THEN 'addresses' ELSE 'ids' END, v_pool.name));
      END IF;
      INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, spread, together, vm_id, address, why, provision_id, wanted_by, kept, made)
      VALUES (p_org, v_pool.id, p_workspace, v_want ->> 'name', v_nodes[v_i].name, (v_want ->> 'cores')::int, (v_want ->> 'memory_mib')::int, v_want ->> 'spread', v_want ->> 'together',
              v_ids[1], v_address, left(array_to_string(v_says[1:c_says], ', '), c_why), p_provision, p_provision, coalesce((v_want ->> 'keep')::boolean, false),
              EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = p_workspace AND m.name = v_want ->> 'name' AND m.status NOT IN ('planned', 'gone')));
      v_ids := v_ids[2:];
      v_nodes[v_i].cores_reserved := v_nodes[v_i].cores_reserved + (v_want ->> 'cores')::int;
      v_nodes[v_i].memory_reserved := v_nodes[v_i].memory_reserved + (v_want ->> 'memory_mib')::int;
      v_nodes[v_i].cores_busy := v_nodes[v_i].cores_busy + (v_want ->> 'cores')::int;
      v_nodes[v_i].memory_busy := v_nodes[v_i].memory_busy + (v_want ->> 'memory_mib')::int;
      v_nodes[v_i].own := v_nodes[v_i].own + 1;
    END LOOP;
  END LOOP;
  RETURN coalesce((
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('name', r.name, 'pool', p.name, 'node', r.node, 'vm_id', r.vm_id, 'address', host(r.address), 'image', tendril.pool_image(p.id, nullif(w.want ->> 'image', '')), 'why', r.why)) ORDER BY w.ord)
    FROM jsonb_array_elements(p_wants) WITH ORDINALITY w (want, ord)
    JOIN public.reservations r ON r.workspace_id = p_workspace AND r.name = w.want ->> 'name' JOIN public.pools p ON p.id = r.pool_id), '[]');
END $$;

-- Places the machines of a claim's workspace, all or none. For a refresh only those that have a
-- place are answered, and none gets one. A machine that has a place keeps its
-- node, id and address, whatever else would be better now; its size is as wanted. Others go one by
-- one to the node with the most points: 60 for free cores and 40 for free memory, where what was
-- reserved after the measurement counts as used; with spread, first to those with the fewest of
-- the group. Ties go to the node with the fewest machines of the workspace.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_wants       list of at most 1000 {name, pool, cores, memory_mib, image, node, avoid, labels,
--                 spread, together, address, keep, vm_id}: name, pool, cores and memory_mib are required;
--                 node is the only one that will do, avoid a list of those that won't; labels are those
--                 that a node must have; spread and together name groups; vm_id is that of a machine
--                 which exists on node already: it takes its place there whatever room there is, with
--                 no address of the pool's
-- Answers: a list of {name, pool, node, vm_id, address, image, why}, in the order of p_wants; without
--   vm_id or address where the pool has no range of them. image is its name in the pool.
-- Errors: PT401 token_invalid, PT404 pool_not_found, PT409 address_taken, PT409 claim_lost,
--   PT409 never_fits, PT409 no_room, PT409 quota, PT409 request_repeated, PT413 too_many_machines,
--   PT422 bad_wants, PT503 busy.
-- Locks: claim, pool_quotas, pools, reservations.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.reserve_machines(p_token_hash text, p_claim_id uuid, p_wants jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_claim   tendril.claims;
BEGIN
  PERFORM tendril.once();
  PERFORM tendril.check_wants(p_wants);
  v_claim := tendril.claim_for_blob(v_cluster.id, p_claim_id, false);
  IF (SELECT operation FROM public.provisions WHERE id = v_claim.provision_id) = 'refresh' THEN
    p_wants := coalesce((SELECT jsonb_agg(w.want ORDER BY w.ord) FROM jsonb_array_elements(p_wants) WITH ORDINALITY w (want, ord)
                         WHERE EXISTS (SELECT FROM public.reservations r WHERE r.workspace_id = v_claim.workspace_id AND r.name = w.want ->> 'name')), '[]');
  END IF;
  RETURN tendril.place_machines(v_cluster, (SELECT org_id FROM public.workspaces WHERE id = v_claim.workspace_id), v_claim.workspace_id, v_claim.provision_id, p_wants);
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: malformed: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- Says where a run would place machines, and places none: what reserve_machines() would answer now
-- in a workspace, which may not exist yet. Needs the role operator.
--
-- Arguments:
--   p_cluster    the cluster
--   p_workspace  the workspace's name
--   p_wants      the machines, as reserve_machines() takes them
-- Answers: a list of {name, pool, node, why, exists}, in the order of p_wants; exists: the machine
--   is there and stays where it is.
-- Errors: PT403 token_may_not, PT404 cluster_not_found, PT404 pool_not_found, PT409 address_taken,
--   PT409 never_fits, PT409 no_room, PT409 quota, PT413 too_many_machines, PT422 bad_wants,
--   PT422 bad_workspace, PT503 busy.
-- Locks: pool_quotas, pools, reservations, each until it answers.
-- Callers: authenticated, service_role.
-- Notes: It places the machines and rolls that back, so that there is one ranking. Runs go first: it
--   waits for their locks a tenth as long as they do for its own, and also refuses as busy while
--   another makes the workspace.
CREATE OR REPLACE FUNCTION public.preview_machines(p_cluster uuid, p_workspace text, p_wants jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_patience  CONSTANT text := '200ms';
  v_cluster   public.clusters;
  v_workspace uuid;
  v_problem   text := tendril.workspace_problem(p_workspace);
  v_places    jsonb;
BEGIN
  SELECT * INTO v_cluster FROM public.clusters WHERE id = p_cluster;
  IF NOT tendril.may_act(v_cluster.org_id, 'operator') OR v_cluster.id IS NULL THEN
    PERFORM tendril.refuse('PT404', 'cluster_not_found', format('cluster %s not found, or you may not deploy to it', p_cluster),
      'check the id, and that you are an operator of its organisation');
  ELSIF p_workspace IS NULL OR v_problem IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_workspace', format('p_workspace: %s', coalesce(v_problem, 'must not be null')));
  END IF;
  PERFORM tendril.check_wants(p_wants);
  PERFORM set_config('lock_timeout', c_patience, true);
  BEGIN
    SELECT id INTO v_workspace FROM public.workspaces WHERE cluster_id = p_cluster AND name = p_workspace;
    IF NOT FOUND THEN
      INSERT INTO public.workspaces (org_id, cluster_id, name) VALUES (v_cluster.org_id, p_cluster, p_workspace) RETURNING id INTO v_workspace;
    END IF;
    v_places := tendril.place_machines(v_cluster, v_cluster.org_id, v_workspace, NULL, p_wants);
    RAISE SQLSTATE 'TP000'; -- rolls back what was placed, and lets go of its locks
  EXCEPTION
    WHEN SQLSTATE 'TP000' THEN
      NULL;
  END;
  RETURN coalesce((
    SELECT jsonb_agg(jsonb_build_object('name', p -> 'name', 'pool', p -> 'pool', 'node', p -> 'node', 'why', p -> 'why',
      'exists', EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = v_workspace AND m.name = p ->> 'name' AND m.status NOT IN ('planned', 'gone'))) ORDER BY ord)
    FROM jsonb_array_elements(v_places) WITH ORDINALITY e (p, ord)), '[]');
EXCEPTION
  WHEN lock_not_available OR unique_violation THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
  WHEN data_exception THEN
    PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: malformed: %s', left(SQLERRM, tendril.quoted_error())));
END $$;

-- Refuses an address that a machine can't have in a pool.
--
-- Errors: PT409 address_taken, PT422 bad_wants.
CREATE OR REPLACE FUNCTION tendril.check_address(p_pool public.pools, p_address inet) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM jsonb_array_elements(coalesce(p_pool.limits -> 'addresses', '[]')) a WHERE p_address BETWEEN (a ->> 'from')::inet AND (a ->> 'to')::inet) THEN
    PERFORM tendril.refuse('PT422', 'bad_wants', format('p_wants: address %s is in no range of pool %s', host(p_address), p_pool.name));
  ELSIF EXISTS (SELECT FROM public.reservations r WHERE r.pool_id = p_pool.id AND r.address = p_address) OR coalesce(p_pool.taken -> 'addresses' ? host(p_address), false) THEN
    PERFORM tendril.refuse('PT409', 'address_taken', format('address %s of pool %s is taken', host(p_address), p_pool.name));
  END IF;
END $$;

-- Frees places, and has the runs of their clusters tried again that wait for room. A run whose
-- workspace somebody has locked is tried again when it is due, for nobody waits here.
--
-- Locks: reservations, workspaces that are free.
CREATE OR REPLACE FUNCTION tendril.free_places(p_reservations uuid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF p_reservations IS NULL THEN
    RETURN;
  END IF;
  UPDATE public.workspaces SET due_at = clock_timestamp()
  WHERE id IN (
    SELECT w.id FROM public.workspaces w JOIN public.provisions p ON p.id = w.reserved_by
    WHERE w.due_at > clock_timestamp() AND p.waits_for IS NOT NULL AND CASE p.status WHEN 'QUEUED' THEN true ELSE false END
      AND w.cluster_id IN (SELECT l.cluster_id FROM public.pools l JOIN public.reservations r ON r.pool_id = l.id WHERE r.id = ANY (p_reservations))
    ORDER BY w.id FOR NO KEY UPDATE OF w SKIP LOCKED);
  DELETE FROM public.reservations WHERE id = ANY (p_reservations);
END $$;

-- Frees the places that an ended provision leaves unused: those that it reserved and has made
-- nothing in, and after a success those of all machines of its workspace that are gone. Kept ones
-- are free after an apply of all that did not want them, and after a destroy. After an apply that
-- failed a place stays unless its machine is known to be gone: one may exist that nobody has heard of.
--
-- Locks: reservations, workspaces that are free.
CREATE OR REPLACE FUNCTION tendril.free_unused_places(p_provision uuid, p_workspace uuid, p_success boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_unused uuid[];
  v_begun  boolean := EXISTS (SELECT FROM tendril.claims c WHERE c.provision_id = p_provision AND c.apply_begun_at IS NOT NULL);
BEGIN
  SELECT array_agg(r.id) INTO v_unused FROM public.reservations r JOIN public.provisions p ON p.id = p_provision
  WHERE r.workspace_id = p_workspace
    AND CASE WHEN r.kept THEN CASE WHEN p_success AND v_begun THEN p.config_snapshot -> 'targets' IS NULL AND (p.operation = 'destroy' OR r.wanted_by IS DISTINCT FROM p_provision)
                                   ELSE r.provision_id = p_provision AND NOT v_begun END
             WHEN EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = p_workspace AND m.name = r.name AND m.status NOT IN ('planned', 'gone')) THEN false
             WHEN p_success AND v_begun THEN true
             WHEN v_begun THEN EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = p_workspace AND m.name = r.name AND m.status = 'gone')
             ELSE r.provision_id = p_provision END;
  PERFORM tendril.free_places(v_unused);
  IF v_begun THEN
    -- Terraform's machines need not be listed: from here on they may be there.
    UPDATE public.reservations SET made = true WHERE workspace_id = p_workspace AND kept AND NOT made;
  END IF;
  IF p_success OR NOT v_begun THEN
    -- What was to be larger is as large as it is now.
    UPDATE public.reservations r SET cores = m.cores, memory_mib = m.memory_mib FROM public.machines m
    WHERE r.workspace_id = p_workspace AND NOT r.kept AND m.workspace_id = p_workspace AND m.name = r.name AND m.status NOT IN ('planned', 'gone')
      AND m.cores > 0 AND m.memory_mib > 0 AND (r.cores, r.memory_mib) IS DISTINCT FROM (m.cores, m.memory_mib);
  END IF;
END $$;

-- Queues a run again that found no room in a pool, and answers true; false: it has waited as long
-- as it may. It is tried again after a while, or once a place becomes free. The workspace stays
-- reserved for it. The caller has made sure that its apply has not begun.
--
-- Locks: workspace, provision, claim.
CREATE OR REPLACE FUNCTION tendril.await_room(p_claim uuid, p_why text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_now       timestamptz := clock_timestamp();
  v_claim     tendril.claims;
  v_provision public.provisions;
  v_settings  tendril.settings;
  v_wait      interval;
  v_tries     int;
  c_doublings CONSTANT int := 20;
BEGIN
  SELECT * INTO STRICT v_claim FROM tendril.claims WHERE id = p_claim;
  SELECT * INTO STRICT v_provision FROM public.provisions WHERE id = v_claim.provision_id;
  SELECT * INTO STRICT v_settings FROM tendril.settings;
  IF v_provision.cancel_requested_at IS NOT NULL OR coalesce(v_provision.waits_since, v_now) + v_settings.room_wait <= v_now THEN
    RETURN false;
  END IF;
  SELECT count(*) INTO v_tries FROM tendril.claims c WHERE c.provision_id = v_provision.id AND c.created_at >= v_provision.waits_since;
  v_wait := least(v_settings.retry_after * power(2, least(v_tries, c_doublings)), v_settings.retry_at_most);
  UPDATE public.provisions
  SET status = 'QUEUED', waits_for = left(coalesce(p_why, ''), tendril.max_reason()), waits_since = coalesce(waits_since, v_now), not_before = v_now + v_wait
  WHERE id = v_provision.id;
  PERFORM tendril.system_line(v_provision.id, format('It waits for room, and is tried again in %s s or once a place becomes free.', round(extract(epoch FROM v_wait))));
  PERFORM tendril.end_claim(p_claim, v_claim.workspace_id);
  UPDATE public.workspaces SET reserved_by = v_provision.id, due_at = v_now + v_wait WHERE id = v_claim.workspace_id;
  PERFORM tendril.refresh_head(v_claim.workspace_id);
  RETURN true;
END $$;

-- Frees the places of machines of a claim's workspace that are gone, or that were not made.
--
-- Arguments:
--   p_token_hash  SHA-256 of the agent's token, as 64 hexadecimal digits
--   p_claim_id    the claim
--   p_names       the machines' names
-- Answers: nothing.
-- Errors: PT401 token_invalid, PT409 claim_lost, PT409 request_repeated, PT503 busy.
-- Locks: claim, reservations, workspaces that are free.
-- Callers: anon, tendril_agent.
CREATE OR REPLACE FUNCTION public.release_machines(p_token_hash text, p_claim_id uuid, p_names text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate_for(p_token_hash, p_claim_id);
  v_claim   tendril.claims;
BEGIN
  PERFORM tendril.once();
  v_claim := tendril.claim_for_blob(v_cluster.id, p_claim_id, false);
  PERFORM tendril.free_places((SELECT array_agg(r.id) FROM public.reservations r WHERE r.workspace_id = v_claim.workspace_id AND r.name = ANY (p_names)));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Frees the place of a machine that is gone or was never made, and has runs tried again that wait
-- for room. Terraform's machines keep theirs. Needs the role admin.
--
-- Arguments:
--   p_workspace  the workspace
--   p_machine    the machine's name
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 place_not_found, PT404 workspace_not_found,
--   PT409 place_in_use, PT503 busy.
-- Locks: workspace, reservations, workspaces that are free.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.free_place(p_workspace uuid, p_machine text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_workspace public.workspaces;
  v_place     public.reservations;
  v_status    text;
  v_run       bigint;
BEGIN
  v_workspace := tendril.lock_workspace_for(p_workspace, 'admin');
  SELECT * INTO v_place FROM public.reservations WHERE workspace_id = p_workspace AND name = p_machine FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT404', 'place_not_found', format('no place is reserved for machine %s of workspace %s', to_json(left(p_machine, tendril.quoted_name())), to_json(v_workspace.name)),
      'a pool lists its places: "trellis pools show POOL"');
  END IF;
  SELECT status INTO v_status FROM public.machines WHERE workspace_id = p_workspace AND name = p_machine AND status NOT IN ('planned', 'gone');
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'place_in_use', format('machine %s of workspace %s is there: it is %s', to_json(v_place.name), to_json(v_workspace.name), v_status),
      'destroy the machine, which frees its place');
  END IF;
  IF v_place.kept THEN
    PERFORM tendril.refuse('PT409', 'place_in_use', format('machine %s of workspace %s is made by Terraform, and nobody else knows whether it is there', to_json(v_place.name), to_json(v_workspace.name)),
      'destroy it, or deploy without it: either frees its place');
  END IF;
  -- A held run's agent is away: it may be making the machine now.
  SELECT p.number INTO v_run FROM public.provisions p
  WHERE p.id IN (v_place.wanted_by, v_place.provision_id) AND p.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')
     OR p.id IN (SELECT c.provision_id FROM tendril.claims c WHERE c.id IN (v_workspace.running_claim, v_workspace.held_by_claim))
  ORDER BY p.number DESC LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT409', 'place_in_use', format('run %s of workspace %s may still make machine %s', v_run, to_json(v_workspace.name), to_json(v_place.name)),
      'wait until the run has ended, or cancel it');
  END IF;
  PERFORM tendril.free_places(ARRAY[v_place.id]);
  PERFORM tendril.audit(v_place.org_id, 'free_place', 'workspace', p_workspace, jsonb_strip_nulls(jsonb_build_object('machine', v_place.name, 'pool', (SELECT name FROM public.pools WHERE id = v_place.pool_id),
    'node', v_place.node, 'vm_id', v_place.vm_id, 'address', host(v_place.address))));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

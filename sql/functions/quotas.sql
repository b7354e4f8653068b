-- What people decide of pools: quotas, the names that images have in each pool, and the template of
-- its servers.

-- Whether a name matches a pattern, in which * is any text.
CREATE OR REPLACE FUNCTION tendril.matches(p_name text, p_pattern text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN p_name LIKE replace(replace(replace(replace(p_pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%');
END $$;

-- What the workspaces of a quota have reserved, by workspace, those that use most first.
CREATE OR REPLACE FUNCTION tendril.quota_uses(p_quota public.pool_quotas) RETURNS TABLE (workspace_id uuid, workspace text, machines bigint, cores bigint, memory_mib bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN QUERY
    SELECT w.id, w.name, count(*), sum(r.cores)::bigint, sum(r.memory_mib)::bigint
    FROM public.reservations r JOIN public.workspaces w ON w.id = r.workspace_id
    WHERE r.org_id = p_quota.org_id AND (p_quota.pool_id IS NULL OR r.pool_id = p_quota.pool_id) AND tendril.matches(w.name, p_quota.workspaces)
    GROUP BY w.id, w.name ORDER BY 3 DESC, 4 DESC, 2;
END $$;

-- Refuses what a workspace wants of pools where it exceeds a quota. Machines that have a place
-- already count as wanted; a workspace that asks for no more than it has is not refused, though
-- the quota was lowered since. Others that share a quota wait until the caller's transaction ends.
--
-- Errors: PT409 quota.
-- Locks: pool_quotas.
CREATE OR REPLACE FUNCTION tendril.check_quotas(p_org uuid, p_cluster uuid, p_workspace uuid, p_wants jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_named CONSTANT int := 3; -- workspaces that the message names
  v_name  text := (SELECT name FROM public.workspaces WHERE id = p_workspace);
  v_quota public.pool_quotas;
  v_over  record;
  v_most  text;
BEGIN
  FOR v_quota IN SELECT q.* FROM public.pool_quotas q
    WHERE q.org_id = p_org AND tendril.matches(v_name, q.workspaces)
      AND (q.pool_id IS NULL OR EXISTS (SELECT FROM public.pools p JOIN jsonb_array_elements(p_wants) w ON p.name = w ->> 'pool' WHERE p.id = q.pool_id AND p.cluster_id = p_cluster))
    ORDER BY q.id FOR NO KEY UPDATE LOOP
    SELECT o.* INTO v_over FROM (
      SELECT coalesce(sum(u.machines), 0) AS machines, coalesce(sum(u.cores), 0) AS cores, coalesce(sum(u.memory_mib), 0) AS memory FROM tendril.quota_uses(v_quota) u) used,
      (SELECT count(*) AS machines, coalesce(sum(r.cores), 0) AS cores, coalesce(sum(r.memory_mib), 0) AS memory FROM public.reservations r
       WHERE r.workspace_id = p_workspace AND (v_quota.pool_id IS NULL OR r.pool_id = v_quota.pool_id) AND r.name IN (SELECT w ->> 'name' FROM jsonb_array_elements(p_wants) w)) was,
      (SELECT count(*) AS machines, coalesce(sum((w ->> 'cores')::bigint), 0) AS cores, coalesce(sum((w ->> 'memory_mib')::bigint), 0) AS memory
       FROM jsonb_array_elements(p_wants) w JOIN public.pools p ON p.cluster_id = p_cluster AND p.name = w ->> 'pool' WHERE v_quota.pool_id IS NULL OR p.id = v_quota.pool_id) wants,
      LATERAL (VALUES ('machines', v_quota.machines, used.machines, wants.machines - was.machines), ('cores', v_quota.cores, used.cores, wants.cores - was.cores),
                      ('MiB of memory', v_quota.memory_mib, used.memory, wants.memory - was.memory)) o (what, most, used, more)
    WHERE o.more > 0 AND o.used + o.more > o.most LIMIT 1;
    IF FOUND THEN
      SELECT string_agg(format('%s (%s)', u.workspace, u.uses), ', ') INTO v_most
      FROM (SELECT q.workspace, CASE v_over.what WHEN 'machines' THEN q.machines WHEN 'cores' THEN q.cores ELSE q.memory_mib END AS uses
            FROM tendril.quota_uses(v_quota) q ORDER BY 2 DESC, 1 LIMIT c_named) u;
      PERFORM tendril.refuse('PT409', 'quota', format('quota of %s: %s of %s %s are used, and this needs %s more%s',
          CASE v_quota.workspaces WHEN '*' THEN 'all workspaces' ELSE 'workspaces ' || to_json(v_quota.workspaces) END
            || coalesce(' in pool ' || to_json((SELECT p.name FROM public.pools p WHERE p.id = v_quota.pool_id)), ''),
          v_over.used, v_over.most, v_over.what, v_over.more, coalesce('; most are used by ' || v_most, '')),
        'destroy machines that are not needed, deploy fewer or smaller ones, or ask an admin to raise the quota');
    END IF;
  END LOOP;
END $$;

-- The name of an image in a pool.
CREATE OR REPLACE FUNCTION tendril.pool_image(p_pool uuid, p_image text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce((SELECT i.name FROM public.pool_images i WHERE i.pool_id = p_pool AND i.image = p_image), p_image);
END $$;

-- Sets how much workspaces may reserve in pools; the quota of the same workspaces and pool is
-- replaced. What is reserved already stays, though it be more. Needs the role admin.
--
-- Arguments:
--   p_org    the organisation
--   p_quota  an object {workspaces, pool_id, machines, cores, memory_mib}: workspaces that share
--            it, where * is any text, else all of the organisation's; the pool, else all together;
--            at least one of the most machines, cores and MiB
-- Answers: the quota's id.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT404 pool_not_found, PT413 too_many_quotas,
--   PT422 bad_quota, PT503 busy.
-- Locks: org, pool_quotas.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_pool_quota(p_org uuid, p_quota jsonb) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_keys    CONSTANT text[] := ARRAY['workspaces', 'pool_id', 'machines', 'cores', 'memory_mib'];
  c_largest CONSTANT int := 1000000000;
  c_most    CONSTANT int := 200; -- quotas of an organisation
  v_key   text;
  v_quota public.pool_quotas;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  IF jsonb_typeof(p_quota) IS DISTINCT FROM 'object' THEN
    PERFORM tendril.refuse('PT422', 'bad_quota', 'p_quota: must be an object');
  END IF;
  p_quota := jsonb_strip_nulls(p_quota);
  SELECT k INTO v_key FROM jsonb_object_keys(p_quota) k WHERE k <> ALL (c_keys) ORDER BY k LIMIT 1;
  IF FOUND THEN
    PERFORM tendril.refuse('PT422', 'bad_quota', format('p_quota: %s: unknown; known are %s', left(v_key, tendril.quoted_name()), array_to_string(c_keys, ', ')));
  ELSIF NOT p_quota ?| ARRAY['machines', 'cores', 'memory_mib'] THEN
    PERFORM tendril.refuse('PT422', 'bad_quota', 'p_quota: machines, cores or memory_mib must be given');
  ELSIF p_quota ? 'workspaces' AND tendril.text_problem(p_quota -> 'workspaces', tendril.max_name()) IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_quota', format('p_quota: workspaces: %s', tendril.text_problem(p_quota -> 'workspaces', tendril.max_name())));
  END IF;
  FOREACH v_key IN ARRAY ARRAY['machines', 'cores', 'memory_mib'] LOOP
    IF p_quota ? v_key AND tendril.number_problem(p_quota -> v_key, 0, c_largest) IS NOT NULL THEN
      PERFORM tendril.refuse('PT422', 'bad_quota', format('p_quota: %s: %s', v_key, tendril.number_problem(p_quota -> v_key, 0, c_largest)));
    END IF;
  END LOOP;
  IF p_quota ? 'pool_id' AND NOT EXISTS (SELECT FROM public.pools WHERE id::text = p_quota ->> 'pool_id' AND org_id = p_org) THEN
    PERFORM tendril.refuse('PT404', 'pool_not_found', format('pool %s not found', left(p_quota ->> 'pool_id', tendril.quoted_name())));
  END IF;
  INSERT INTO public.pool_quotas AS q (org_id, workspaces, pool_id, machines, cores, memory_mib, set_by)
  VALUES (p_org, coalesce(p_quota ->> 'workspaces', '*'), (p_quota ->> 'pool_id')::uuid, (p_quota ->> 'machines')::numeric::int, (p_quota ->> 'cores')::numeric::int,
          (p_quota ->> 'memory_mib')::numeric::int, tendril.current_user_id())
  ON CONFLICT (org_id, workspaces, pool_id) DO UPDATE
  SET machines = EXCLUDED.machines, cores = EXCLUDED.cores, memory_mib = EXCLUDED.memory_mib, set_by = EXCLUDED.set_by, set_at = clock_timestamp()
  RETURNING * INTO v_quota;
  IF (SELECT count(*) FROM public.pool_quotas WHERE org_id = p_org) > c_most THEN
    PERFORM tendril.refuse('PT413', 'too_many_quotas', format('this organisation has %s quotas, the most allowed', c_most), 'delete one');
  END IF;
  PERFORM tendril.audit(p_org, 'set_pool_quota', 'pool_quota', v_quota.id, p_quota);
  RETURN v_quota.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Deletes a quota. Needs the role admin.
--
-- Arguments:
--   p_org    the organisation
--   p_quota  the quota
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 org_not_found, PT404 quota_not_found, PT503 busy.
-- Locks: org, pool_quotas.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.delete_pool_quota(p_org uuid, p_quota uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_quota public.pool_quotas;
BEGIN
  PERFORM tendril.lock_org_for_admin(p_org);
  DELETE FROM public.pool_quotas WHERE id = p_quota AND org_id = p_org RETURNING * INTO v_quota;
  IF NOT FOUND THEN
    PERFORM tendril.refuse('PT404', 'quota_not_found', format('quota %s not found', p_quota), 'list them: "trellis pools quotas"');
  END IF;
  PERFORM tendril.audit(p_org, 'delete_pool_quota', 'pool_quota', p_quota, jsonb_strip_nulls(to_jsonb(v_quota) - ARRAY['id', 'org_id', 'set_by', 'set_at']));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists an organisation's quotas with what is used. Needs the role viewer.
--
-- Arguments:
--   p_org  the organisation
-- Answers: a row for each, by workspaces and pool:
--   id             the quota
--   workspaces     pattern of the workspaces that share it
--   pool           name of the pool; NULL: all together
--   cluster        name of the pool's cluster
--   machines       the most machines; NULL: any number
--   cores          the most processor cores; NULL: any number
--   memory_mib     the most memory in MiB; NULL: any amount
--   machines_used  how many they have
--   cores_used     how many cores
--   memory_used    how much memory in MiB
--   top            list of the 3 {workspace, machines, cores, memory_mib} that use most
-- Errors: PT404 org_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.pool_quota_uses(p_org uuid)
RETURNS TABLE (id uuid, workspaces text, pool text, cluster text, machines int, cores int, memory_mib int, machines_used bigint, cores_used bigint, memory_used bigint, top jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_top CONSTANT int := 3;
BEGIN
  IF NOT tendril.has_role(p_org, 'viewer') THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('organisation %s not found, or you are not its member', p_org));
  END IF;
  RETURN QUERY
    SELECT q.id, q.workspaces, p.name, c.name, q.machines, q.cores, q.memory_mib, u.machines::bigint, u.cores::bigint, u.memory::bigint, u.top
    FROM public.pool_quotas q LEFT JOIN public.pools p ON p.id = q.pool_id LEFT JOIN public.clusters c ON c.id = p.cluster_id,
      LATERAL (SELECT coalesce(sum(s.machines), 0) AS machines, coalesce(sum(s.cores), 0) AS cores, coalesce(sum(s.memory_mib), 0) AS memory,
                 coalesce(jsonb_agg(jsonb_build_object('workspace', s.workspace, 'machines', s.machines, 'cores', s.cores, 'memory_mib', s.memory_mib) ORDER BY s.ord) FILTER (WHERE s.ord <= c_top), '[]') AS top
               FROM (SELECT t.*, row_number() OVER () AS ord FROM tendril.quota_uses(q) t) s) u
    WHERE q.org_id = p_org ORDER BY q.workspaces, p.name NULLS FIRST, q.id;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Says what an image that templates name is called in a pool. Needs the role admin.
--
-- Arguments:
--   p_pool   the pool
--   p_image  the name that templates use
--   p_name   the pool's own name of it; NULL: the same
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 pool_not_found, PT413 too_many_images, PT422 bad_image,
--   PT503 busy.
-- Locks: pools.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_pool_image(p_pool uuid, p_image text, p_name text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  c_most CONSTANT int := 200; -- names of a pool
  v_pool public.pools;
BEGIN
  SELECT * INTO v_pool FROM public.pools WHERE id = p_pool;
  IF v_pool.id IS NULL OR NOT tendril.may_act(v_pool.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT404', 'pool_not_found', format('pool %s not found, or you are not admin there', p_pool));
  END IF;
  PERFORM FROM public.pools WHERE id = p_pool FOR NO KEY UPDATE;
  IF coalesce(tendril.text_problem(to_jsonb(coalesce(p_image, '')), tendril.max_name()), tendril.text_problem(to_jsonb(coalesce(p_name, p_image)), tendril.max_name())) IS NOT NULL THEN
    PERFORM tendril.refuse('PT422', 'bad_image', format('an image''s name: %s',
      coalesce(tendril.text_problem(to_jsonb(coalesce(p_image, '')), tendril.max_name()), tendril.text_problem(to_jsonb(coalesce(p_name, p_image)), tendril.max_name()))));
  END IF;
  IF p_name IS NULL THEN
    DELETE FROM public.pool_images WHERE pool_id = p_pool AND image = p_image;
  ELSE
    INSERT INTO public.pool_images (org_id, pool_id, image, name) VALUES (v_pool.org_id, p_pool, p_image, p_name)
    ON CONFLICT (pool_id, image) DO UPDATE SET name = EXCLUDED.name;
    IF (SELECT count(*) FROM public.pool_images WHERE pool_id = p_pool) > c_most THEN
      PERFORM tendril.refuse('PT413', 'too_many_images', format('pool %s has names for %s images, the most allowed', to_json(v_pool.name), c_most), 'delete one');
    END IF;
  END IF;
  PERFORM tendril.audit(v_pool.org_id, 'set_pool_image', 'pool', p_pool, jsonb_strip_nulls(jsonb_build_object('pool', v_pool.name, 'image', p_image, 'name', p_name)));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Lists the nodes of an organisation's pools with what is used and reserved there. Needs the role
-- viewer.
--
-- Arguments:
--   p_org   the organisation
--   p_pool  only this pool. Optional
-- Answers: a row for each:
--   pool_id          the pool
--   node             its name
--   most_cores       cores that may be reserved; NULL: any number
--   most_memory      MiB that may be
--   cores_new        cores that were reserved since the node was measured, and so are not yet in
--                    what is used there
--   memory_new       the same of memory, in MiB
--   cores_reserved   cores of all machines that have a place there
--   memory_reserved  their memory in MiB
--   machines         how many they are
-- Errors: PT404 org_not_found, PT503 busy.
-- Locks: none.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.pool_loads(p_org uuid, p_pool uuid DEFAULT NULL)
RETURNS TABLE (pool_id uuid, node text, most_cores double precision, most_memory double precision, cores_new double precision, memory_new double precision,
               cores_reserved int, memory_reserved int, machines bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
BEGIN
  IF NOT tendril.has_role(p_org, 'viewer') THEN
    PERFORM tendril.refuse('PT404', 'org_not_found', format('organisation %s not found, or you are not its member', p_org));
  END IF;
  RETURN QUERY
    SELECT l.pool_id, l.name, nullif(l.most_cores, 'infinity'), l.most_memory, greatest(0, l.cores_busy - n.cores * n.cores_used), greatest(0, l.memory_busy - n.memory_mib * n.memory_used),
      l.cores_reserved, l.memory_reserved, (SELECT count(*) FROM public.reservations r WHERE r.pool_id = l.pool_id AND r.node = l.name)
    FROM unnest(tendril.node_loads(ARRAY(SELECT p.id FROM public.pools p WHERE p.org_id = p_org AND (p_pool IS NULL OR p.id = p_pool)), NULL)) l
    JOIN public.pool_nodes n ON n.pool_id = l.pool_id AND n.name = l.name;
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

-- Says with which template of the catalogue POST /api/v1/provision deploys in a pool. Needs the role
-- admin.
--
-- Arguments:
--   p_pool      the pool
--   p_template  the template; NULL: none, so that nothing is deployed there in this way
-- Answers: nothing.
-- Errors: PT403 token_may_not, PT404 pool_not_found, PT404 template_not_found, PT503 busy.
-- Locks: pools.
-- Callers: authenticated, service_role.
CREATE OR REPLACE FUNCTION public.set_pool_template(p_pool uuid, p_template uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_pool     public.pools;
  v_template text;
BEGIN
  SELECT * INTO v_pool FROM public.pools WHERE id = p_pool;
  IF v_pool.id IS NULL OR NOT tendril.may_act(v_pool.org_id, 'admin') THEN
    PERFORM tendril.refuse('PT404', 'pool_not_found', format('pool %s not found, or you are not admin there', p_pool));
  END IF;
  SELECT name INTO v_template FROM public.templates WHERE id = p_template AND org_id = v_pool.org_id;
  IF NOT FOUND AND p_template IS NOT NULL THEN
    PERFORM tendril.refuse('PT404', 'template_not_found', format('the catalogue has no template %s', p_template), '"trellis templates list" shows those that there are');
  END IF;
  UPDATE public.pools SET template_id = p_template WHERE id = p_pool;
  PERFORM tendril.audit(v_pool.org_id, 'set_pool_template', 'pool', p_pool, jsonb_build_object('pool', v_pool.name, 'template', v_template));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;

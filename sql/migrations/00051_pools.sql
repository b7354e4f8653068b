-- Pools: where machines are made, as agents report them, and what is reserved there.
CREATE TABLE public.pools (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL,
  cluster_id  uuid NOT NULL REFERENCES public.clusters ON DELETE CASCADE,
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 63),
  kind        text NOT NULL CHECK (kind IN ('proxmox', 'libvirt', 'static', 'ironic')),
  -- What the agent's configuration allows: {overcommit_cores, overcommit_memory, ids: [from, to], addresses: [{from, to}]}.
  limits      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object' AND octet_length(limits::text) <= 16384),
  -- What is taken there by others than this database: {ids: […], addresses: […]}.
  taken       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(taken) = 'object' AND octet_length(taken::text) <= 1048576),
  problem     text CHECK (length(problem) <= 600),
  reported_by uuid NOT NULL,
  reported_at timestamptz NOT NULL,
  UNIQUE (cluster_id, name)
);
CREATE INDEX pools_org ON public.pools (org_id, name);

CREATE TABLE public.pool_nodes (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  pool_id     uuid NOT NULL REFERENCES public.pools ON DELETE CASCADE,
  org_id      uuid NOT NULL,
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  online      boolean NOT NULL,
  cores       int NOT NULL CHECK (cores > 0),
  memory_mib  int NOT NULL CHECK (memory_mib > 0),
  -- Shares of all of it.
  cores_used  real NOT NULL DEFAULT 0 CHECK (cores_used BETWEEN 0 AND 1),
  memory_used real NOT NULL DEFAULT 0 CHECK (memory_used BETWEEN 0 AND 1),
  images      text[] NOT NULL DEFAULT '{}',
  labels      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object' AND octet_length(labels::text) <= 16384),
  storages    jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(storages) = 'array' AND octet_length(storages::text) <= 65536),
  measured_at timestamptz NOT NULL,
  UNIQUE (pool_id, name)
);

-- A machine's place, from before it is made until it is gone.
CREATE TABLE public.reservations (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id       uuid NOT NULL,
  pool_id      uuid NOT NULL REFERENCES public.pools,
  workspace_id uuid NOT NULL REFERENCES public.workspaces ON DELETE CASCADE,
  name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  node         text NOT NULL,
  cores        int NOT NULL CHECK (cores > 0),
  memory_mib   int NOT NULL CHECK (memory_mib > 0),
  spread       text CHECK (length(spread) <= 200),
  together     text CHECK (length(together) <= 200),
  vm_id        int CHECK (vm_id > 0),
  address      inet,
  why          text NOT NULL CHECK (length(why) <= 600),
  provision_id uuid,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (workspace_id, name),
  UNIQUE (pool_id, vm_id),
  UNIQUE (pool_id, address)
);
CREATE INDEX reservations_node ON public.reservations (pool_id, node);

COMMENT ON TABLE public.pools IS 'Where machines are made: what the agents of a cluster can reach, as they last reported it.';
COMMENT ON COLUMN public.pools.id IS 'Random id.';
COMMENT ON COLUMN public.pools.org_id IS 'The organisation.';
COMMENT ON COLUMN public.pools.cluster_id IS 'The cluster whose agents reach it.';
COMMENT ON COLUMN public.pools.name IS 'Its name in the agents'' configuration, unique in the cluster.';
COMMENT ON COLUMN public.pools.kind IS 'proxmox, libvirt, static or ironic.';
COMMENT ON COLUMN public.pools.limits IS 'What the agents'' configuration allows: {overcommit_cores, overcommit_memory, ids: [from, to], addresses: [{from, to}]}.';
COMMENT ON COLUMN public.pools.taken IS 'Ids and addresses that its hypervisors show to be taken: {ids, addresses}.';
COMMENT ON COLUMN public.pools.problem IS 'Why it could not be listed when an agent tried last; NULL: it was.';
COMMENT ON COLUMN public.pools.reported_by IS 'The agent instance that reported it last.';
COMMENT ON COLUMN public.pools.reported_at IS 'When it was reported last.';
COMMENT ON TABLE public.pool_nodes IS 'The hosts of pools, as they were last measured.';
COMMENT ON COLUMN public.pool_nodes.id IS 'Random id.';
COMMENT ON COLUMN public.pool_nodes.pool_id IS 'The pool.';
COMMENT ON COLUMN public.pool_nodes.org_id IS 'The organisation.';
COMMENT ON COLUMN public.pool_nodes.name IS 'Its name in the pool.';
COMMENT ON COLUMN public.pool_nodes.online IS 'Whether it could be used.';
COMMENT ON COLUMN public.pool_nodes.cores IS 'Its processor cores.';
COMMENT ON COLUMN public.pool_nodes.memory_mib IS 'Its memory in MiB.';
COMMENT ON COLUMN public.pool_nodes.cores_used IS 'Share of its cores that was in use, 0 to 1.';
COMMENT ON COLUMN public.pool_nodes.memory_used IS 'Share of its memory that was in use, 0 to 1.';
COMMENT ON COLUMN public.pool_nodes.images IS 'Names of the images that machines can be made from there.';
COMMENT ON COLUMN public.pool_nodes.labels IS 'Its labels: an object of texts, at most 16 KiB.';
COMMENT ON COLUMN public.pool_nodes.storages IS 'Its storages: a list of {name, free_gib, size_gib}, at most 64 KiB.';
COMMENT ON COLUMN public.pool_nodes.measured_at IS 'When it was measured.';
COMMENT ON TABLE public.reservations IS 'The place of each machine in a pool, from before it is made until it is gone.';
COMMENT ON COLUMN public.reservations.id IS 'Random id.';
COMMENT ON COLUMN public.reservations.org_id IS 'The organisation.';
COMMENT ON COLUMN public.reservations.pool_id IS 'The pool.';
COMMENT ON COLUMN public.reservations.workspace_id IS 'The workspace.';
COMMENT ON COLUMN public.reservations.name IS 'The machine''s name within the workspace.';
COMMENT ON COLUMN public.reservations.node IS 'The host that was chosen.';
COMMENT ON COLUMN public.reservations.cores IS 'Its processor cores.';
COMMENT ON COLUMN public.reservations.memory_mib IS 'Its memory in MiB.';
COMMENT ON COLUMN public.reservations.spread IS 'A group whose machines are on as many nodes as there are; NULL: none.';
COMMENT ON COLUMN public.reservations.together IS 'A group whose machines are on one node; NULL: none.';
COMMENT ON COLUMN public.reservations.vm_id IS 'Its id in the pool; NULL: the pool has no range of ids.';
COMMENT ON COLUMN public.reservations.address IS 'Its IP address; NULL: it gets one automatically.';
COMMENT ON COLUMN public.reservations.why IS 'Why this node was chosen, with the points of others.';
COMMENT ON COLUMN public.reservations.provision_id IS 'The provision that it was reserved for; it may be deleted since.';
COMMENT ON COLUMN public.reservations.created_at IS 'When it was reserved.';

-- A node while machines are placed; not stored.
CREATE TYPE tendril.node_load AS (
  pool_id uuid, pool text, name text, online boolean, cores int, memory_mib int, images text[], labels jsonb,
  most_cores double precision,  -- that may be reserved
  most_memory double precision,
  cores_busy double precision,  -- measured, and reserved since
  memory_busy double precision,
  cores_reserved int, memory_reserved int,
  own int                       -- machines of this workspace
);

-- after the functions
DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['pools', 'pool_nodes', 'reservations'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY members_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''viewer''))::uuid[]))', v_table);
  END LOOP;
END $$;

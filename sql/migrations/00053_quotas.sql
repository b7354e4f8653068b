-- Quotas of pools, and the names that images have in each pool.
CREATE TABLE public.pool_quotas (
  id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id     uuid NOT NULL,
  workspaces text NOT NULL DEFAULT '*' CHECK (length(workspaces) BETWEEN 1 AND 200),
  pool_id    uuid REFERENCES public.pools ON DELETE CASCADE,
  machines   int CHECK (machines >= 0),
  cores      int CHECK (cores >= 0),
  memory_mib int CHECK (memory_mib >= 0),
  set_by     uuid,
  set_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (num_nonnulls(machines, cores, memory_mib) > 0),
  UNIQUE NULLS NOT DISTINCT (org_id, workspaces, pool_id)
);
CREATE INDEX reservations_org ON public.reservations (org_id, workspace_id);

CREATE TABLE public.pool_images (
  id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id  uuid NOT NULL,
  pool_id uuid NOT NULL REFERENCES public.pools ON DELETE CASCADE,
  image   text NOT NULL CHECK (length(image) BETWEEN 1 AND 200),
  name    text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  UNIQUE (pool_id, image)
);

COMMENT ON TABLE public.pool_quotas IS 'How much may be reserved in pools: by workspace, by pool, or in the whole organisation.';
COMMENT ON COLUMN public.pool_quotas.id IS 'Random id.';
COMMENT ON COLUMN public.pool_quotas.org_id IS 'The organisation.';
COMMENT ON COLUMN public.pool_quotas.workspaces IS 'The workspaces that share it, by their names; * is any text.';
COMMENT ON COLUMN public.pool_quotas.pool_id IS 'The pool; NULL: all pools together.';
COMMENT ON COLUMN public.pool_quotas.machines IS 'The most machines; NULL: any number.';
COMMENT ON COLUMN public.pool_quotas.cores IS 'The most processor cores of all their machines; NULL: any number.';
COMMENT ON COLUMN public.pool_quotas.memory_mib IS 'The most memory of all their machines, in MiB; NULL: any amount.';
COMMENT ON COLUMN public.pool_quotas.set_by IS 'The admin who set it last.';
COMMENT ON COLUMN public.pool_quotas.set_at IS 'When it was set last.';
COMMENT ON TABLE public.pool_images IS 'What an image that templates name is called in a pool, where that differs.';
COMMENT ON COLUMN public.pool_images.id IS 'Random id.';
COMMENT ON COLUMN public.pool_images.org_id IS 'The organisation.';
COMMENT ON COLUMN public.pool_images.pool_id IS 'The pool.';
COMMENT ON COLUMN public.pool_images.image IS 'The name that templates use.';
COMMENT ON COLUMN public.pool_images.name IS 'The name of that image in the pool.';

-- after the functions
DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['pool_quotas', 'pool_images'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY members_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''viewer''))::uuid[]))', v_table);
  END LOOP;
END $$;

-- The template with which the API of servers deploys in a pool.
ALTER TABLE public.pools ADD COLUMN template_id uuid REFERENCES public.templates ON DELETE SET NULL;
COMMENT ON COLUMN public.pools.template_id IS 'The template with which POST /api/v1/provision deploys there; NULL: that deploys nothing there.';

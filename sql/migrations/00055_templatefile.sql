-- tendril.hcl of templates that have machines, so that a placement can be previewed.
ALTER TABLE public.template_inspections ADD COLUMN file text CHECK (octet_length(file) <= 65536);
COMMENT ON COLUMN public.template_inspections.file IS 'Its tendril.hcl, where that has machines which get places in pools; NULL: it has none, or is not known.';

-- after the functions
-- What was inspected before is inspected once more; what it declares stays meanwhile.
UPDATE public.template_inspections i SET status = 'wanted', requested_at = now()
WHERE i.status = 'done' AND i.about ->> 'provisioner' IN ('machine', 'terraform')
  AND EXISTS (SELECT FROM public.templates t WHERE t.org_id = i.org_id AND tendril.plain_repo(t.repo) = i.repo
              AND t.version = i.version AND tendril.plain_path(t.path) = i.path);

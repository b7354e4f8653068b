-- README.md of templates, for people and for tools that help them choose.
ALTER TABLE public.template_inspections ADD COLUMN readme text;
ALTER TABLE public.template_inspections ADD CONSTRAINT template_inspections_readme_check CHECK (octet_length(readme) <= 32768) NOT VALID;
COMMENT ON COLUMN public.template_inspections.readme IS 'Its README.md; NULL: it has none, it is larger than is stored, or is not known.';

-- after the functions
-- What was inspected before is inspected once more; what it declares stays meanwhile.
UPDATE public.template_inspections i SET status = 'wanted', requested_at = now()
WHERE i.status = 'done'
  AND EXISTS (SELECT FROM public.templates t WHERE t.org_id = i.org_id AND tendril.plain_repo(t.repo) = i.repo
              AND t.version = i.version AND tendril.plain_path(t.path) = i.path);

-- What a version of a template says of itself, for the catalogue.
ALTER TABLE public.template_inspections ADD COLUMN about jsonb CHECK (jsonb_typeof(about) = 'object' AND octet_length(about::text) <= 32768);
COMMENT ON COLUMN public.template_inspections.about IS 'What it says of itself in tendril.hcl: {title, description, icon, provisioner}; NULL: not known.';

-- after the functions
-- What was inspected before is inspected once more; what it declares stays meanwhile.
UPDATE public.template_inspections i SET status = 'wanted', requested_at = now()
WHERE i.status = 'done' AND EXISTS (SELECT FROM public.templates t WHERE t.org_id = i.org_id AND tendril.plain_repo(t.repo) = i.repo
                                    AND t.version = i.version AND tendril.plain_path(t.path) = i.path);

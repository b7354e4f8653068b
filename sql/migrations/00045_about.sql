-- What a version of a template says of itself, for the catalogue.
ALTER TABLE public.template_inspections ADD COLUMN about jsonb CHECK (jsonb_typeof(about) = 'object' AND octet_length(about::text) <= 32768);
COMMENT ON COLUMN public.template_inspections.about IS 'What it says of itself in tendril.hcl: {title, description, icon, provisioner}; NULL: not known.';

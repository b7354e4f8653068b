-- Machines that have a place and are not made yet are listed as reserved.
ALTER TABLE public.reservations ADD COLUMN made boolean NOT NULL DEFAULT false;
UPDATE public.reservations r SET made = true
WHERE r.kept OR EXISTS (SELECT FROM public.machines m WHERE m.workspace_id = r.workspace_id AND m.name = r.name AND m.status NOT IN ('planned', 'gone'));
CREATE INDEX reservations_unmade ON public.reservations (org_id) WHERE NOT made;
COMMENT ON COLUMN public.reservations.made IS 'Whether a run has reported that the machine is there, or begins to make it; true of what Terraform makes once an apply has ended. Until then the machine is listed as reserved.';

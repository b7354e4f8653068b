-- Machines that people draw up before they provision them.
ALTER TABLE public.machines
  DROP CONSTRAINT machines_status_check,
  ADD CONSTRAINT machines_status_check CHECK (status IN ('planned', 'creating', 'running', 'stopped', 'failed', 'unknown', 'gone')),
  ADD COLUMN plan jsonb,
  ADD CONSTRAINT machines_plan_check CHECK (CASE status WHEN 'planned' THEN plan IS NOT NULL WHEN 'creating' THEN true WHEN 'unknown' THEN true ELSE plan IS NULL END
         AND jsonb_typeof(plan) = 'object' IS NOT FALSE AND octet_length(plan::text) <= 16384);
COMMENT ON COLUMN public.machines.status IS 'planned (drawn up, not there yet), creating, running, stopped, failed, unknown (nobody could ask) or gone.';
COMMENT ON COLUMN public.machines.plan IS 'What a planned machine is provisioned with, as a snapshot has it: {template_source, terraform_vars, workspace}. One that a run has begun to make keeps it until a report lists it. NULL: it is not planned.';
COMMENT ON TABLE public.machines IS 'The machines that runs have made, as they were last reported, and those that are planned. One that is gone stays for a while.';
COMMENT ON COLUMN public.machines.created_at IS 'When it was planned or first reported; again after it was planned or gone.';

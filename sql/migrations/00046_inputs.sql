-- What a person does for a run: the status AWAITING_INPUT, what is asked, and the answer.
ALTER TABLE public.provisions
  DROP CONSTRAINT provisions_status_check,
  ADD CONSTRAINT provisions_status_check CHECK (status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL', 'AWAITING_INPUT', 'SUCCESS', 'FAILED', 'CANCELLED')) NOT VALID;
COMMENT ON COLUMN public.provisions.status IS 'QUEUED, PROCESSING, AWAITING_APPROVAL, AWAITING_INPUT, SUCCESS, FAILED or CANCELLED.';
COMMENT ON COLUMN public.provisions.plan_digest IS 'SHA-256 of the plan that needs approval, or that a person carries out, in hexadecimal.';
ALTER TABLE public.provision_progress
  DROP CONSTRAINT provision_progress_stage_check,
  ADD CONSTRAINT provision_progress_stage_check CHECK (stage IN ('checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'input', 'apply', 'outputs', 'done')) NOT VALID;
ALTER TABLE public.provision_stages
  DROP CONSTRAINT provision_stages_stage_check,
  ADD CONSTRAINT provision_stages_stage_check CHECK (stage IN ('queued', 'checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'input', 'apply', 'outputs', 'done')) NOT VALID;
ALTER TABLE public.webhooks
  DROP CONSTRAINT webhooks_events_check,
  ADD CONSTRAINT webhooks_events_check CHECK (cardinality(events) > 0 AND events <@ ARRAY['awaiting_approval', 'awaiting_input', 'success', 'failure', 'cancelled', 'drift']);
COMMENT ON COLUMN public.webhooks.events IS 'Events that it receives: awaiting_approval, awaiting_input, success, failure, cancelled, drift.';

-- Their conditions know the new status; the files of functions make them again.
DROP TRIGGER IF EXISTS provisions_end_reservation ON public.provisions;
DROP TRIGGER IF EXISTS provisions_tell_webhooks ON public.provisions;

CREATE TABLE public.provision_inputs (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  request      jsonb NOT NULL CHECK (jsonb_typeof(request) = 'object'),
  asked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at   timestamptz NOT NULL,
  reminded_at  timestamptz,
  assigned_to  uuid,
  answer       jsonb CHECK (jsonb_typeof(answer) = 'object'),
  answered_at  timestamptz,
  answered_by  uuid,
  CHECK ((answer IS NULL) = (answered_at IS NULL))
);
COMMENT ON TABLE public.provision_inputs IS 'What runs of manual templates ask a person to do, and what the person answers.';
COMMENT ON COLUMN public.provision_inputs.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_inputs.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_inputs.request IS 'What is to be done: {instructions, destroys, outputs, machines}; see update_provision_status().';
COMMENT ON COLUMN public.provision_inputs.asked_at IS 'Since when it waits.';
COMMENT ON COLUMN public.provision_inputs.expires_at IS 'When the run is cancelled if nobody has answered.';
COMMENT ON COLUMN public.provision_inputs.reminded_at IS 'When webhooks were told once more, after half of the time; NULL: not yet.';
COMMENT ON COLUMN public.provision_inputs.assigned_to IS 'Who is to do it; NULL: anybody who may.';
COMMENT ON COLUMN public.provision_inputs.answer IS 'The answer, as give_input() takes it; what is secret in it is sealed to the cluster.';
COMMENT ON COLUMN public.provision_inputs.answered_at IS 'When it was answered.';
COMMENT ON COLUMN public.provision_inputs.answered_by IS 'Who answered; NULL: a service.';

-- after the functions
ALTER TABLE public.provision_inputs ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.provision_inputs FOR SELECT TO authenticated
  USING (org_id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

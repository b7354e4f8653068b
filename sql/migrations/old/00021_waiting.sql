-- What nobody need ask for: that a workspace is looked at for drift, by a schedule
-- of its own. And what everybody asks: why a provision has not started.

SELECT tendril.lock_tables('public.agents, public.workspaces');

ALTER TABLE public.workspaces
  -- How often a refresh looks for drift, and when it does next.
  ADD COLUMN drift_every  interval CHECK (drift_every BETWEEN interval '5 minutes' AND interval '366 days'),
  ADD COLUMN drift_due_at timestamptz,
  ADD CHECK ((drift_every IS NULL) = (drift_due_at IS NULL));
CREATE INDEX workspaces_drift_due ON public.workspaces (drift_due_at) WHERE drift_due_at IS NOT NULL;

-- What the agent's own policy lets provisions do. Null: it has not said.
ALTER TABLE public.agents ADD COLUMN operations text[];

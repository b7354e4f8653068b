-- Health of machines, which agents check.
ALTER TABLE public.machines
  ADD COLUMN health     text CHECK (health IN ('healthy', 'unhealthy', 'unknown')),
  ADD COLUMN health_why text CHECK (length(health_why) <= 600),
  ADD COLUMN health_at  timestamptz;
COMMENT ON COLUMN public.machines.health IS 'healthy, unhealthy or unknown (nobody could ask); NULL: its template has no check.';
COMMENT ON COLUMN public.machines.health_why IS 'Why it is not healthy.';
COMMENT ON COLUMN public.machines.health_at IS 'Since when its health is that.';
ALTER TABLE public.machine_events
  ADD COLUMN health text,
  ADD COLUMN why    text;
COMMENT ON COLUMN public.machine_events.health IS 'How its health was from then on; NULL: its status has changed.';
COMMENT ON COLUMN public.machine_events.why IS 'Why it was not healthy.';
ALTER TABLE public.webhooks
  DROP CONSTRAINT webhooks_events_check,
  ADD CONSTRAINT webhooks_events_check CHECK (cardinality(events) > 0 AND events <@ ARRAY['awaiting_approval', 'awaiting_input', 'success', 'failure', 'cancelled', 'drift', 'health']);
COMMENT ON COLUMN public.webhooks.events IS 'Events that it receives: awaiting_approval, awaiting_input, success, failure, cancelled, drift, health.';

-- Apart from machines, for it is written with each check.
CREATE TABLE tendril.machine_checks (
  machine_id uuid PRIMARY KEY REFERENCES public.machines ON DELETE CASCADE,
  cluster_id uuid NOT NULL,
  spec       jsonb NOT NULL CHECK (jsonb_typeof(spec) = 'object' AND octet_length(spec::text) <= 4096
               AND ((spec ->> 'interval')::int BETWEEN 10 AND 86400 AND (spec ->> 'timeout')::int BETWEEN 1 AND 300
                    AND (spec ->> 'healthy_after')::int BETWEEN 1 AND 100 AND (spec ->> 'unhealthy_after')::int BETWEEN 1 AND 100) IS TRUE),
  due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  leased_by  uuid,
  streak     int NOT NULL DEFAULT 0 CHECK (streak BETWEEN -100 AND 100),
  doubt_at   timestamptz
) WITH (fillfactor = 70);
CREATE INDEX machine_checks_due ON tendril.machine_checks (cluster_id, due_at);
CREATE INDEX machine_checks_doubt ON tendril.machine_checks (doubt_at) WHERE doubt_at IS NOT NULL;
COMMENT ON TABLE tendril.machine_checks IS 'Checks of machines'' health, and when each is due.';
COMMENT ON COLUMN tendril.machine_checks.machine_id IS 'The machine.';
COMMENT ON COLUMN tendril.machine_checks.cluster_id IS 'The cluster whose agents check it.';
COMMENT ON COLUMN tendril.machine_checks.spec IS 'How it is checked, as an agent has authenticated it: {kind, target, port, path, interval, timeout, healthy_after, unhealthy_after, mac}; times in seconds.';
COMMENT ON COLUMN tendril.machine_checks.due_at IS 'When it is checked next. An agent that takes it puts it off by its interval.';
COMMENT ON COLUMN tendril.machine_checks.leased_by IS 'Instance of the agent that took it last, whose result counts.';
COMMENT ON COLUMN tendril.machine_checks.streak IS 'How many results in a row were alike: above 0 good ones, below 0 bad ones; at most 100 of either.';
COMMENT ON COLUMN tendril.machine_checks.doubt_at IS 'When nobody knows how the machine is, unless a result comes; NULL: that is so already.';

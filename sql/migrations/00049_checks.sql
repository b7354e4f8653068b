-- Checks of health by a command, and what of an agent one workspace's checks may take.
ALTER TABLE tendril.machine_checks
  ADD COLUMN workspace_id uuid,
  ADD COLUMN by_command   boolean NOT NULL GENERATED ALWAYS AS ((spec ->> 'kind' = 'command') IS TRUE) STORED,
  DROP CONSTRAINT machine_checks_spec_check,
  ADD CONSTRAINT machine_checks_spec_check CHECK (jsonb_typeof(spec) = 'object' AND octet_length(spec::text) <= 8192
    AND ((spec ->> 'interval')::int BETWEEN 10 AND 86400 AND (spec ->> 'timeout')::int BETWEEN 1 AND 300
         AND (spec ->> 'healthy_after')::int BETWEEN 1 AND 100 AND (spec ->> 'unhealthy_after')::int BETWEEN 1 AND 100) IS TRUE);
UPDATE tendril.machine_checks c SET workspace_id = m.workspace_id FROM public.machines m WHERE m.id = c.machine_id;
ALTER TABLE tendril.machine_checks ALTER COLUMN workspace_id SET NOT NULL;
CREATE INDEX machine_checks_commands ON tendril.machine_checks (cluster_id, due_at) WHERE by_command;
COMMENT ON COLUMN tendril.machine_checks.workspace_id IS 'The machine''s workspace.';
COMMENT ON COLUMN tendril.machine_checks.by_command IS 'Whether the template''s command asks: only agents that say how many of those they do get one.';
COMMENT ON COLUMN tendril.machine_checks.spec IS 'How it is checked, as an agent has authenticated it: {kind, target, port, path, command, interval, timeout, healthy_after, unhealthy_after, mac}; times in seconds.';

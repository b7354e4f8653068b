-- Rescue of machines, and the health of bare-metal servers.
ALTER TABLE public.machines
  DROP CONSTRAINT machines_actions_check,
  ADD CONSTRAINT machines_actions_check CHECK (actions <@ ARRAY['destroy', 'rebuild', 'refresh', 'power', 'reveal', 'rescue', 'unrescue'] AND cardinality(actions) <= 7) NOT VALID;
COMMENT ON COLUMN public.machines.actions IS 'What a run can do to this machine alone: destroy, rebuild, refresh, power, reveal (its credentials), rescue and unrescue.';
COMMENT ON COLUMN public.machines.health IS 'healthy, unhealthy or unknown (nobody could ask); NULL: its template has no check, and it is on no bare-metal server.';
-- The machines on bare-metal servers, or that are such servers, by the server's id.
CREATE INDEX machines_external ON public.machines (external_id) WHERE pool IS NOT NULL AND status IN ('running', 'unknown');
ALTER TABLE public.pool_nodes
  ADD CONSTRAINT pool_nodes_health_check CHECK (server ->> 'health' IN ('ok', 'warning', 'critical', 'unknown')) NOT VALID;
COMMENT ON COLUMN public.pool_nodes.server IS 'The bare-metal server that it is: {id, name, provision_state, power_state, maintenance, reason, available, instance_uuid, last_error, health, health_why}; NULL: it is a hypervisor or a machine of a static pool.';

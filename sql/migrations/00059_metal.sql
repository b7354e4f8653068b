-- Bare-metal servers: each is a node of its pool, with what Ironic says of it.
ALTER TABLE public.pool_nodes ADD COLUMN server jsonb CHECK (jsonb_typeof(server) = 'object' AND octet_length(server::text) <= 8192);
COMMENT ON COLUMN public.pool_nodes.server IS 'The bare-metal server that it is: {id, name, provision_state, power_state, maintenance, reason, available, instance_uuid, last_error}; NULL: it is a hypervisor or a machine of a static pool.';

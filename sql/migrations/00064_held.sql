-- A heartbeat may be held for 20 s, and is stamped at most every 15 s: an agent counts as alive a
-- little longer than both. An operator's own number stays.
ALTER TABLE tendril.settings ALTER COLUMN agent_alive SET DEFAULT '45 seconds';
UPDATE tendril.settings SET agent_alive = '45 seconds' WHERE agent_alive = '30 seconds';

-- Rows that heartbeats write: their dead versions are removed soon, while few pages have any.
ALTER TABLE public.agents     SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
ALTER TABLE public.clusters   SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
ALTER TABLE tendril.claims    SET (autovacuum_vacuum_scale_factor = 0.02);

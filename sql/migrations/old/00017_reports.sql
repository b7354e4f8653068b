-- How much an agent may report: what one report may hold, and all events of a
-- run together, which are stored one by one.

SELECT tendril.lock_tables('tendril.settings, tendril.claims');
-- The most that is kept of one run's events, as JSON. A run that makes 100,000
-- resources has less.
ALTER TABLE tendril.settings ADD COLUMN event_limit bigint NOT NULL DEFAULT 64 * 1024 * 1024 CHECK (event_limit > 0);
ALTER TABLE tendril.claims ADD COLUMN event_bytes bigint NOT NULL DEFAULT 0;

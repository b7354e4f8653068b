-- An agent's times are taken within a day of the database's clock: that others were
-- replaced is said once in each run's log. And locks that nobody outside can take.

SELECT tendril.lock_tables('tendril.claims');
ALTER TABLE tendril.claims ADD COLUMN clock_wrong boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tendril.claims.clock_wrong IS 'Whether the log says that the agent''s times were replaced.';

-- What only one may do at a time is guarded by a row, which only the contract's own
-- functions can lock. Anybody can take an advisory lock whose key they know.
CREATE TABLE tendril.locks (name text PRIMARY KEY);
COMMENT ON TABLE tendril.locks IS 'Rows to lock: one for each thing that only one may do at a time.';
INSERT INTO tendril.locks (name) VALUES ('archive'), ('hand_inspections'), ('sample'), ('up');

ALTER TABLE tendril.settings ADD COLUMN lock_salt bigint NOT NULL DEFAULT hashtextextended(gen_random_uuid()::text, 0);
COMMENT ON COLUMN tendril.settings.lock_salt IS 'Makes the keys of advisory locks unknown outside of this schema.';

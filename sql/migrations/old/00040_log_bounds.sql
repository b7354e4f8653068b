-- Bounds on the text of all logs of a cluster and of an organisation.

SELECT tendril.lock_tables('tendril.settings, tendril.log_heads, tendril.cluster_usage, tendril.expiry');

ALTER TABLE tendril.settings
  ADD COLUMN cluster_log_limit bigint NOT NULL DEFAULT 100 * 1024 ^ 3 CHECK (cluster_log_limit > 0),
  ADD COLUMN org_log_limit     bigint NOT NULL DEFAULT 500 * 1024 ^ 3 CHECK (org_log_limit > 0);
COMMENT ON COLUMN tendril.settings.cluster_log_limit IS 'Bytes of text of all logs of a cluster.';
COMMENT ON COLUMN tendril.settings.org_log_limit IS 'The same of all clusters of an organisation; each may use its share of it, whatever the others do.';

-- Old rows keep NULL: to write them again would stop every agent meanwhile.
ALTER TABLE tendril.log_heads
  ADD COLUMN cluster_id uuid,
  ADD COLUMN cut_at     bigint;
COMMENT ON COLUMN tendril.log_heads.cluster_id IS 'NULL for a log that began before clusters had a bound: it counts for the organisation alone.';
COMMENT ON COLUMN tendril.log_heads.cut_at IS 'How many bytes the log had when it was cut; NULL where it was not, or before there was this column.';

ALTER TABLE tendril.cluster_usage
  ADD COLUMN log_bytes     bigint NOT NULL DEFAULT 0,
  ADD COLUMN org_log_bytes bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN tendril.cluster_usage.org_log_bytes IS 'Of the organisation.';

INSERT INTO tendril.expiry (name) VALUES ('log_usage');

-- after the functions

-- What the platform offers: Realtime and pg_cron.
DO $$
DECLARE
  v_left record;
BEGIN
  FOR v_left IN SELECT * FROM tendril.fit_platform() LOOP
    RAISE NOTICE 'still to be run by %: %;', v_left.run_as, v_left.statement;
  END LOOP;
END $$;

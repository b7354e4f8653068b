-- The life of a provision beyond one run: who may approve a plan and until when,
-- and another attempt at what failed before its apply began.

SELECT tendril.lock_tables('public.clusters, public.workspaces, public.provisions, public.templates, tendril.settings');

-- How long the first automatic attempt after a failure waits; each further one
-- waits twice as long, and none longer than that.
ALTER TABLE tendril.settings
  ADD COLUMN retry_after   interval NOT NULL DEFAULT '30 seconds' CHECK (retry_after > interval '0'),
  ADD COLUMN retry_at_most interval NOT NULL DEFAULT '10 minutes';

-- What a platform offers beside Postgres: Supabase's Realtime, which tells
-- browsers of changed rows, and pg_cron, which runs jobs. And what is different
-- there: PostgREST's connections load safeupdate, which refuses an UPDATE
-- without WHERE, in functions too.

-- Those that are published below as well: whoever vacuums one by hand would have
-- us, and so every agent, wait.
SELECT tendril.lock_tables('tendril.claims, public.clusters, public.provisions, public.provision_events, public.provision_logs, public.provision_progress');

-- How far the run is, while viewers are not told yet.
ALTER TABLE tendril.claims ADD COLUMN percent_due smallint,
  ADD CONSTRAINT claims_percent_due CHECK (percent_due BETWEEN 0 AND 100) NOT VALID;

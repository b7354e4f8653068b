-- What is asked for most often, made cheap: polls and heartbeats of idle
-- agents, claims, and lines. Nothing that they mean has changed.

-- All locks at once, or none: the functions that run meanwhile take them in
-- orders of their own, and who reads for long (a dump) must not have every agent
-- queue behind us.
DO $$
BEGIN
  PERFORM set_config('lock_timeout', '200ms', true);
  FOR i IN 1..150 LOOP
    BEGIN
      LOCK TABLE public.clusters, public.agents, public.workspaces, tendril.claims, public.provisions, public.provision_logs, public.resources
        IN ACCESS EXCLUSIVE MODE;
      PERFORM set_config('lock_timeout', '0', true);
      RETURN;
    EXCEPTION WHEN lock_not_available THEN
      PERFORM pg_sleep(0.1);
    END;
  END LOOP;
  RAISE EXCEPTION 'the tables could not be locked within 45 seconds: a transaction that has been open for long reads or writes them'
    USING HINT = 'find it in pg_stat_activity (xact_start) and end it, then migrate again';
END $$;

-- A plan is kept, and a partial index that is empty when it is made looks
-- cheaper than any other, the primary key included. It is read from end to end
-- when it has grown: every running claim by each heartbeat, the whole queue by
-- each claim. So no condition may imply the predicate of an index that is not
-- meant, which = and <> do, and CASE does not.
DROP INDEX tendril.claims_instance;
DROP INDEX tendril.claims_one_running;
-- Whatever else goes wrong: never two at once on a workspace.
CREATE UNIQUE INDEX claims_one_running ON tendril.claims (workspace_id) WHERE CASE state WHEN 'running' THEN true ELSE false END;

-- The one agent instance that may run a workspace; all zeros: any. Where the
-- state's file is on one and an unsaved state on another, neither may: all f.
ALTER TABLE public.workspaces ADD COLUMN only_instance uuid NOT NULL GENERATED ALWAYS AS (
  CASE WHEN home_instance <> unsaved_state_on THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
       ELSE coalesce(home_instance, unsaved_state_on, '00000000-0000-0000-0000-000000000000') END) STORED;

ALTER TABLE public.agents ADD CONSTRAINT agents_instance_is_one
  CHECK (instance_id NOT IN ('00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff')) NOT VALID;

-- So that nobody reads past what is not for them.
DROP INDEX public.workspaces_runnable;
CREATE INDEX workspaces_runnable ON public.workspaces (cluster_id, only_instance, head_priority DESC, head_number)
  WHERE head_id IS NOT NULL AND running_claim IS NULL AND held_by_claim IS NULL AND locked_at IS NULL;

-- Keys that begin with the time they were made (version 7 of RFC 9562): what is
-- made together lies together, so a claim finds its pages in memory and changes
-- few of them. Agents make the ids of claims likewise.
ALTER TABLE public.provisions ALTER COLUMN id SET DEFAULT (
  lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;
ALTER TABLE public.workspaces ALTER COLUMN id SET DEFAULT (
  lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid;

-- Deleting a provision looks for what refers to it and to its claims: without
-- these it reads every workspace and resource, for each.
CREATE INDEX workspaces_running_claim ON public.workspaces (running_claim) WHERE running_claim IS NOT NULL;
CREATE INDEX workspaces_held_by_claim ON public.workspaces (held_by_claim) WHERE held_by_claim IS NOT NULL;
CREATE INDEX workspaces_reserved_by   ON public.workspaces (reserved_by)   WHERE reserved_by IS NOT NULL;
CREATE INDEX resources_provision      ON public.resources (provision_id);

-- Each heartbeat writes a row anew; with room on its page no index need know.
ALTER TABLE public.agents   SET (fillfactor = 50);
ALTER TABLE public.clusters SET (fillfactor = 50);
-- Every claim and every end leaves a dead entry where the next claim begins to
-- read.
ALTER TABLE public.workspaces SET (autovacuum_vacuum_scale_factor = 0.02);

-- lz4 compresses a log as well as the default does, in a fraction of the time.
-- A server may have been built without it. What is stored stays as it is.
DO $$
BEGIN
  ALTER TABLE public.provision_logs ALTER COLUMN log_chunk SET COMPRESSION lz4;
  ALTER TABLE public.provisions ALTER COLUMN config_snapshot SET COMPRESSION lz4;
EXCEPTION
  WHEN feature_not_supported THEN
    RAISE NOTICE 'this server compresses logs by pglz: it was built without lz4';
END $$;

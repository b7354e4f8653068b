-- Held calls: what a server that holds an agent's call until there is news is told.

-- Says that a call has nothing to tell, so that a server may hold it. The server repeats the call
-- when one of the topics is notified, and no later than p_again; each repeat says so again, or has
-- something to tell. PostgREST ignores it and answers at once.
--
-- Arguments:
--   p_key     who waits: a newer call with the same key ends an older one
--   p_again   when the call is to be repeated at the latest
--   p_topics  channels of NOTIFY, each with the payload after a colon
CREATE OR REPLACE FUNCTION tendril.hold(p_key text, p_again interval, p_topics text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM set_config('tendril.hold', jsonb_build_object('key', p_key, 'seconds', extract(epoch FROM p_again), 'topics', p_topics)::text, true);
END $$;

-- Whether fetch_next_provision() has something for an agent of a cluster that is not paused. What
-- another call claims at this moment counts.
CREATE OR REPLACE FUNCTION tendril.has_work(p_cluster uuid, p_instance uuid, p_contract int) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM public.workspaces w
    WHERE w.cluster_id = p_cluster AND w.only_instance IN ('00000000-0000-0000-0000-000000000000', p_instance)
      AND w.head_id IS NOT NULL AND w.running_claim IS NULL AND w.held_by_claim IS NULL AND w.locked_at IS NULL
      AND CASE WHEN p_contract >= 8 THEN true ELSE tendril.suits(w.head_id, p_contract) END);
END $$;

-- Lets a server hold a claim that found nothing until there may be something.
CREATE OR REPLACE FUNCTION tendril.hold_claim(p_cluster uuid, p_instance uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  PERFORM tendril.hold('claim ' || p_instance, tendril.held_at_most(), ARRAY['tendril_work:' || p_cluster, 'tendril_agent:' || p_instance]);
END $$;

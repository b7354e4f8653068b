-- An agent's operator asks how it would stand before it is started, or beside
-- it while it runs. Nothing is written and nothing locked, so the agent that
-- has the identity goes on undisturbed.

-- +goose Up

-- p_agent is what register_agent is told, of which name and instance_id count.
-- +goose StatementBegin
CREATE FUNCTION public.check_agent(p_token_hash text, p_agent jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_cluster public.clusters := tendril.authenticate(p_token_hash);
  v_alive   interval;
  v_other   text;
BEGIN
  SELECT s.agent_alive INTO STRICT v_alive FROM tendril.settings s;
  SELECT a.host INTO v_other FROM public.agents a
  WHERE a.cluster_id = v_cluster.id AND a.name = p_agent ->> 'name' AND a.instance_id::text IS DISTINCT FROM p_agent ->> 'instance_id'
    AND a.last_heartbeat_at BETWEEN clock_timestamp() - v_alive AND clock_timestamp() + v_alive
  LIMIT 1;
  RETURN jsonb_build_object(
    'cluster_id', v_cluster.id, 'cluster_name', v_cluster.name, 'contract', tendril.contract_version(),
    'now', clock_timestamp(), 'paused', v_cluster.paused_at IS NOT NULL, 'name_taken_on', coalesce(v_other, ''));
EXCEPTION
  WHEN lock_not_available THEN
    PERFORM tendril.refuse('PT503', 'busy', 'the database is busy', 'try again');
END $$;
-- +goose StatementEnd

SELECT tendril.deny_all(ARRAY['check_agent']);
GRANT EXECUTE ON FUNCTION public.check_agent(text, jsonb) TO anon, tendril_agent;

NOTIFY pgrst, 'reload schema';

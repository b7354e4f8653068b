-- Leases.

-- Stamps the pulse and answers whether leases may be given up now. Everything that gives up a lease
-- or an approval asks it first.
--
-- A gap between two stamps is time in which the database may have been away. At most a quarter of a
-- lease of each gap counts; the rest is added to every running lease, so short outages do not add
-- up to a lost run. After a gap of three quarters of a lease, after a clock that was set back, or
-- where a locked claim could not be extended, nothing is given up for one lease. Answers false as
-- well while another session is extending leases.
--
-- Locks: pulse, then claims, agents, clusters and workspaces that nobody else has locked.
CREATE OR REPLACE FUNCTION tendril.beat() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_counted CONSTANT double precision := 0.25; -- of a lease: the most that a gap counts
  c_outage  CONSTANT double precision := 0.75; -- of a lease: a gap that puts reaping off
  v_lease   interval := (SELECT lease FROM tendril.settings);
  v_now     timestamptz;
  v_pulse   tendril.pulse;
  v_gap     interval;
  v_stepped boolean;
  v_away    boolean;
  v_added   bigint;
BEGIN
  SELECT * INTO v_pulse FROM tendril.pulse;
  v_now := clock_timestamp(); -- after the read: nobody has stamped later than this
  v_gap := v_now - v_pulse.stamped_at;
  v_stepped := v_gap < interval '0' OR v_pulse.reap_not_before > v_now + v_lease;
  v_away := v_gap > v_lease * c_outage;
  IF v_stepped OR v_gap > v_lease * tendril.pulse_share() THEN
    -- The second to come need not wait for the first, who adds to the leases.
    PERFORM FROM tendril.pulse WHERE stamped_at = v_pulse.stamped_at FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE tendril.pulse
      SET stamped_at = v_now,
          reap_not_before = CASE WHEN v_stepped OR v_away THEN v_now + v_lease ELSE reap_not_before END
      WHERE only_row;
      IF v_gap > v_lease * c_counted AND NOT v_away THEN
        UPDATE tendril.claims SET lease_until = lease_until + (v_gap - v_lease * c_counted)
        WHERE id IN (SELECT id FROM tendril.claims WHERE state = 'running' AND lease_until < v_now + v_lease FOR NO KEY UPDATE SKIP LOCKED);
        GET DIAGNOSTICS v_added = ROW_COUNT;
        IF v_added < (SELECT count(*) FROM tendril.claims WHERE state = 'running' AND lease_until < v_now + v_lease) THEN
          -- Some are locked, and a lock must not cost a run its time: nothing is reaped for one lease.
          UPDATE tendril.pulse SET reap_not_before = v_now + v_lease WHERE only_row;
          v_away := true;
        END IF;
      END IF;
      -- It reads all agents: once a minute for stamps that a clock has left which was ahead for a moment.
      IF v_stepped OR v_pulse.stamped_at < date_trunc('minute', v_now) THEN
        PERFORM tendril.cut_future_stamps(v_now, v_lease);
      END IF;
    ELSIF v_gap > v_lease * c_counted THEN
      RETURN false;
    END IF;
  END IF;
  RETURN NOT v_stepped AND NOT v_away AND v_now >= v_pulse.reap_not_before;
END $$;

-- Gives up one claim whose lease had run out at p_decided. Before apply had begun the workspace is
-- free again; after that the claim holds it, because Terraform may still be running.
--
-- A run whose work continues by itself is set down, as often as after crashes of its agent. A lease
-- that has run out says that the agent does not reach the database, not that its program has ended.
-- But a program does nothing to a machine before its intent is acknowledged, and the claim that has
-- ended gets none acknowledged. So only what was acknowledged before can still happen: between an
-- intent and the machine's mark there is a time in which a second program finds nothing by that
-- mark, and makes the machine once more. While such an intent is open (tendril.claims.open_intents)
-- the run is given up as any other, and the workspace is held.
--
-- Arguments:
--   p_claim      the claim
--   p_workspace  its workspace
--   p_decided    when it was decided to give up leases that had run out
-- Answers: 1, or 0 where there was nothing to give up.
-- Errors: none.
-- Locks: workspace, provision, claim. It skips rows that another session has locked: its callers
--   hold claims and agents, so it must not wait.
-- Callers: the control plane.
CREATE OR REPLACE FUNCTION tendril.reap_claim(p_claim uuid, p_workspace uuid, p_decided timestamptz) RETURNS int
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_claim tendril.claims;
BEGIN
  PERFORM FROM public.workspaces WHERE id = p_workspace FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  PERFORM FROM public.provisions WHERE id = (SELECT c.provision_id FROM tendril.claims c WHERE c.id = p_claim) FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  SELECT * INTO v_claim FROM tendril.claims
  WHERE id = p_claim AND state = 'running' AND lease_until < p_decided
  FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;

  IF v_claim.open_intents = '{}'
     AND tendril.set_down_for(v_claim, format('The agent on %s is lost: its lease ran out. What this run began continues, and the next agent takes it up.', v_claim.host)) THEN
    RETURN 1;
  END IF;
  UPDATE tendril.claims SET state = 'lost', ended_at = clock_timestamp() WHERE id = p_claim;
  UPDATE public.workspaces
  SET running_claim = NULL,
      held_by_claim = CASE WHEN v_claim.apply_begun_at IS NULL THEN held_by_claim ELSE p_claim END,
      reserved_by   = CASE WHEN v_claim.apply_begun_at IS NULL AND reserved_by = v_claim.provision_id THEN NULL ELSE reserved_by END
  WHERE id = p_workspace AND running_claim = p_claim;
  -- Unless somebody has set another status by hand.
  IF EXISTS (SELECT FROM public.provisions WHERE id = v_claim.provision_id AND status = 'PROCESSING') THEN
    IF tendril.set_down_again(p_claim, 'agent_lost', 'The agent is lost: its lease ran out.') THEN
      RETURN 1;
    END IF;
    PERFORM tendril.end_provision(v_claim.provision_id, 'FAILED', 'agent_lost',
      format('The agent on %s sent no heartbeat until its lease ran out at %s, in stage %s. %s', v_claim.host,
             to_char(v_claim.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), coalesce(v_claim.stage, 'checkout'),
             CASE WHEN v_claim.apply_begun_at IS NULL
                  THEN coalesce(nullif(ltrim(tendril.left_behind(v_claim)), ''), 'Apply had not begun; deploy again when an agent is online.')
                  ELSE 'Apply had begun and may still be running: the workspace is held until the agent reports or an admin releases it.' END));
    PERFORM tendril.system_line(v_claim.provision_id, format('The agent on %s is lost: its lease ran out. Apply had %s.', v_claim.host,
      CASE WHEN v_claim.apply_begun_at IS NULL THEN 'not begun' ELSE 'begun, so the workspace stays held' END));
  END IF;
  PERFORM tendril.refresh_head(p_workspace);
  RETURN 1;
END $$;

-- Gives up claims whose lease has run out, expires approvals, starts automatic retries that are
-- due, and doubts the health of machines that nobody checks. Agents' heartbeats, trellis and pg_cron call it; several may at once.
--
-- Arguments:
--   p_limit  claims, and due workspaces, in a call
-- Answers: how many claims it gave up.
-- Errors: none.
-- Locks: cluster, workspace, provision, claim, agent.
-- Callers: the control plane.
-- Notes: The clock is read once, before the query: in its condition it would be read for each
--   claim. A claim that fails does not keep the others from their turn.
CREATE OR REPLACE FUNCTION tendril.reap(p_limit int DEFAULT 20) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
  v_now       timestamptz;
  v_candidate record;
  v_count     int := 0;
BEGIN
  IF NOT tendril.beat() THEN
    RETURN 0;
  END IF;
  v_now := clock_timestamp();
  -- In the index's order, so that no plan reads anything else.
  IF (SELECT w.due_at FROM public.workspaces w WHERE w.due_at IS NOT NULL ORDER BY w.due_at LIMIT 1) <= v_now THEN
    PERFORM tendril.settle_due(p_limit);
  END IF;
  FOR v_candidate IN
    SELECT id, workspace_id FROM tendril.claims
    WHERE state = 'running' AND lease_until < v_now
    ORDER BY lease_until LIMIT p_limit
  LOOP
    BEGIN
      v_count := v_count + tendril.reap_claim(v_candidate.id, v_candidate.workspace_id, v_now);
    EXCEPTION
      WHEN OTHERS THEN
        RAISE WARNING 'claim % cannot be given up: % (%)', v_candidate.id, SQLERRM, SQLSTATE;
    END;
  END LOOP;
  BEGIN
    PERFORM tendril.doubt_health(p_limit);
  EXCEPTION
    WHEN OTHERS THEN
      RAISE WARNING 'the health of machines could not be doubted: % (%)', SQLERRM, SQLSTATE;
  END;
  RETURN v_count;
END $$;

-- Cuts timestamps that a clock running ahead has left in the future, where they would keep dead
-- agents alive and retries waiting. Skips locked rows: their owner is stamping them now.
--
-- Locks: cluster, workspace, claim, agent.
CREATE OR REPLACE FUNCTION tendril.cut_future_stamps(p_now timestamptz, p_lease interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  UPDATE tendril.claims SET lease_until = p_now + p_lease
  WHERE id IN (SELECT id FROM tendril.claims WHERE state = 'running' AND lease_until > p_now + p_lease FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.agents SET last_heartbeat_at = p_now
  WHERE id IN (SELECT id FROM public.agents WHERE last_heartbeat_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.clusters SET last_seen_at = p_now
  WHERE id IN (SELECT id FROM public.clusters WHERE last_seen_at > p_now FOR NO KEY UPDATE SKIP LOCKED);
  UPDATE public.workspaces SET due_at = p_now
  WHERE id IN (SELECT w.id FROM public.workspaces w JOIN public.provisions p ON p.id = w.reserved_by
               WHERE w.due_at > p_now + (SELECT retry_at_most FROM tendril.settings) AND CASE p.status WHEN 'QUEUED' THEN true ELSE false END -- status = 'QUEUED' would read the whole queue
               FOR NO KEY UPDATE OF w SKIP LOCKED);
END $$;

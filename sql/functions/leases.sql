-- Leases, the pulse, and giving up claims whose agent is gone.

-- Stamps the pulse and says whether leases may be reaped now. It is the only one to decide
-- that; whatever gives a lease or an approval up asks it first.
--
-- A lease is only worth what its agent could do about it, so time in which nobody saw the
-- database hardly counts. A gap of more than a quarter of a lease between two stamps counts
-- as that quarter, and the rest is added to each running lease: short outages do not add up to
-- a lost run, and where only a timer stamps once a minute a dead agent's lease still ends.
-- After a gap of three quarters, or a clock that was set back, or where a claim was locked and
-- so could not be added to, nothing is reaped for one lease.
-- False as well while another session is adding.
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
  IF v_stepped OR v_gap > v_lease * 0.05 THEN
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
      PERFORM tendril.cut_future_stamps(v_now, v_lease);
    ELSIF v_gap > v_lease * c_counted THEN
      RETURN false;
    END IF;
  END IF;
  RETURN NOT v_stepped AND NOT v_away AND v_now >= v_pulse.reap_not_before;
END $$;

-- Gives up one claim if its lease had run out when reap() decided, at p_decided. Before apply
-- had begun the workspace is free again. After, Terraform may still be running, so the claim
-- goes on holding it.
--
-- Locks: workspace, provision, claim. Its callers hold claims and agents, so it waits for none
-- of them: what somebody else has locked is left to the next call.
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

  UPDATE tendril.claims SET state = 'lost', ended_at = clock_timestamp() WHERE id = p_claim;
  UPDATE public.workspaces
  SET running_claim = NULL,
      held_by_claim = CASE WHEN v_claim.apply_begun_at IS NULL THEN held_by_claim ELSE p_claim END,
      reserved_by   = CASE WHEN v_claim.apply_begun_at IS NULL AND reserved_by = v_claim.provision_id THEN NULL ELSE reserved_by END
  WHERE id = p_workspace AND running_claim = p_claim;
  -- Unless somebody has set another status by hand.
  IF EXISTS (SELECT FROM public.provisions WHERE id = v_claim.provision_id AND status = 'PROCESSING') THEN
    PERFORM tendril.end_provision(v_claim.provision_id, 'FAILED', 'agent_lost',
      format('The agent on %s has not been heard of since its lease ran out at %s, in stage %s. %s', v_claim.host,
             to_char(v_claim.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'), coalesce(v_claim.stage, 'checkout'),
             CASE WHEN v_claim.apply_begun_at IS NULL
                  THEN 'Apply had not begun; deploy again when an agent is online.'
                  ELSE 'Apply had begun and may still be running: the workspace is held until the agent reports or an admin releases it.' END));
    PERFORM tendril.system_line(v_claim.provision_id, format('The agent on %s is lost: its lease ran out. Apply had %s.', v_claim.host,
      CASE WHEN v_claim.apply_begun_at IS NULL THEN 'not begun' ELSE 'begun, so the workspace stays held' END));
  END IF;
  PERFORM tendril.refresh_head(p_workspace);
  RETURN 1;
END $$;

-- Gives up claims whose lease ran out, at most p_limit of them, and returns how many. One that
-- cannot be given up does not keep the others. The clock is read first. In the condition it
-- was read for each running claim, and so each claim was. Whoever reaps, an agent or a timer,
-- also does what is due. Put off with the leases: people could not approve either while the
-- database was away, and a clock that steps ahead may step back.
--
-- Locks: cluster, workspace, provision, claim, agent.
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
  RETURN v_count;
END $$;

-- Brings back what a clock that was ahead has left in the future, where it would keep the dead
-- alive. What is locked belongs to somebody who stamps it right now. An attempt waits no
-- longer because the clock was ahead.
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
               WHERE w.due_at > p_now + (SELECT retry_at_most FROM tendril.settings) AND p.not_before >= w.due_at FOR NO KEY UPDATE OF w SKIP LOCKED);
END $$;

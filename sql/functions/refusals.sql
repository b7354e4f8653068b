-- Refusals, and checks of texts and numbers in a request.

-- Raises an error that PostgREST answers with the HTTP status in its SQLSTATE: PT409 becomes 409.
-- p_reason, the error's DETAIL, is a stable word for programs; p_message and p_hint are for people.
--
-- Reasons:
--   PT401 account_not_trusted       No admin has let agents join by this service account token.
--   PT401 account_token_used        Another key has joined with this service account token.
--   PT401 account_unverified        The gateway does not verify tokens of service accounts.
--   PT401 join_token_invalid        The one-time join token is unknown, used, revoked or expired.
--   PT401 not_signed_in             The request has no user.
--   PT401 signature_missing         Only a signed request is taken.
--   PT401 token_invalid             The agent token is unknown, revoked or expired.
--   PT403 append_only               Audit events cannot be changed.
--   PT403 four_eyes                 The requester of a plan may not approve it.
--   PT403 locked_by_another         Another person locked the workspace; only an admin may unlock
--                                   it.
--   PT403 not_allowed               Users may not create organisations.
--   PT403 not_an_admin              What was asked needs the role admin.
--   PT403 not_an_approver           The cluster's policy lets only admins approve.
--   PT403 not_yours                 Another person requested it, and the caller is not an admin.
--   PT403 token_makes_token         An API token cannot create another one.
--   PT403 token_may_not             The API token may do less than its person.
--   PT404 cluster_not_found         There is no such cluster, or the caller lacks the role.
--   PT404 delivery_not_found        The webhook has no such delivery.
--   PT404 invitation_not_found      The caller has no such open invitation.
--   PT404 key_not_found             No agent of the cluster has this key.
--   PT404 machine_not_found         There is no such machine, or the caller lacks the role.
--   PT404 member_not_found          The user is not a member of the organisation.
--   PT404 org_not_found             There is no such organisation, or the caller lacks the role.
--   PT404 place_not_found           The machine has no reserved place.
--   PT404 pool_not_found            No agent of the cluster has reported such a pool, or the caller
--                                   lacks the role.
--   PT404 provision_not_found       There is no such provision, or the caller lacks the role.
--   PT404 quota_not_found           There is no such quota.
--   PT404 result_not_found          The provision left no result, or it has expired.
--   PT404 template_not_found        The catalogue has no such template.
--   PT404 webhook_not_found         There is no such webhook, or the caller lacks the role.
--   PT404 workspace_not_found       There is no such workspace, or the caller lacks the role.
--   PT409 address_taken             Another machine has the address.
--   PT409 agent_instance_elsewhere  The agent's data directory is in use on another host or in
--                                   another directory: it was copied.
--   PT409 agent_name_taken          Another live agent of the cluster has the name.
--   PT409 agent_superseded          The instance was started again since: this process must stop.
--   PT409 agent_unregistered        The instance is not registered: call register_agent().
--   PT409 already_answered          A person has answered already.
--   PT409 already_approved          A plan of the provision is approved: apply that one or none.
--   PT409 already_delegated         The claim is another runner's.
--   PT409 already_ended             The provision has ended.
--   PT409 approval_expired          The plan was not approved in time.
--   PT409 approval_needed           The plan needs approval before it is applied: report
--                                   AWAITING_APPROVAL.
--   PT409 audience_taken            Another cluster trusts this issuer and audience.
--   PT409 blob_incomplete           Earlier parts are missing: send all parts again, from 1.
--   PT409 cancel_requested          Cancellation was requested: the run must end without apply.
--   PT409 claim_lost                The claim is unknown, has ended, or has lost its lease: stop
--                                   the run before apply begins.
--   PT409 cluster_exists            The organisation has a cluster of that name.
--   PT409 commit_differs            The agent checked out another commit than the snapshot names.
--   PT409 commit_missing            The run has not reported its commit, which must come before
--                                   apply.
--   PT409 illegal_transition        The state machine has no such change of status.
--   PT409 immutable                 What identifies a provision, and its plan, cannot be changed.
--   PT409 invitation_changed        The invitation is for another role now: read it again.
--   PT409 join_changed              The agent that waits with this code has another key than was
--                                   shown.
--   PT409 key_taken                 The key is known already, of this agent or another.
--   PT409 last_admin                The organisation would have no admin.
--   PT409 machine_exists            The machine is there, so it is neither planned nor deleted.
--   PT409 member_already            The person is a member already.
--   PT409 never_fits                No node of the pool can have the machine, even if it were empty.
--   PT409 no_room                   No node of the pool has room for the machine now.
--   PT409 not_awaiting_approval     The provision does not await approval.
--   PT409 not_awaiting_input        The provision does not await what a person is to do.
--   PT409 not_detachable            The work of the run does not continue by itself, or has not begun.
--   PT409 not_ended                 The provision has not ended.
--   PT409 operation_refused         The operation applies nothing, so it needs no apply and no
--                                   approval.
--   PT409 other_cluster             The join token is for another cluster than the agent wants.
--   PT409 place_in_use              A machine has the place, or a run may still make one there.
--   PT409 plan_approved             A plan of the provision is approved: another one cannot be
--                                   stored.
--   PT409 plan_changed              The provision awaits approval of another plan: read it again.
--   PT409 plan_invalid              The agent would apply another plan than the approved one.
--   PT409 plan_missing              The plan is not stored.
--   PT409 quota                     The machines exceed a quota.
--   PT409 request_repeated          The signed request has been made already: sign a new one.
--   PT409 request_under_way         A request with the same idempotency key is in progress: ask
--                                   again later.
--   PT409 state_missing             The newest state is no longer stored.
--   PT409 state_moved               A newer version of the state is stored.
--   PT409 tag_moved                 The tag is pinned to another commit.
--   PT409 too_many_issuers          The cluster trusts as many issuers as it may.
--   PT409 too_many_tokens           The user has as many API tokens as allowed.
--   PT409 too_many_webhooks         The organisation has as many webhooks as allowed.
--   PT409 upload_taken              The id of the upload is in use.
--   PT409 webhook_disabled          The webhook is disabled.
--   PT409 webhook_exists            The organisation has a webhook of that name or id.
--   PT409 workspace_bound           The workspace belongs to another template.
--   PT409 workspace_elsewhere       The workspace's state is a file of another agent.
--   PT409 workspace_locked          A person has locked the workspace.
--   PT409 workspace_managed         The workspace's state is managed, not a file of the agent.
--   PT409 workspace_not_held        Nothing holds the workspace.
--   PT409 workspace_reserved        A plan of the workspace awaits approval or is approved.
--   PT409 workspace_running         Something runs in the workspace or holds it.
--   PT413 answer_too_large          The answer is too large to store.
--   PT413 blob_too_large            The blob or the part is too large.
--   PT413 chunks_too_large          A chunk, or all of a call, is too large.
--   PT413 detail_too_large          The report is too large.
--   PT413 too_many_chunks           The call has too many chunks.
--   PT413 too_many_claims           The call has too many claims.
--   PT413 too_many_images           The pool has names for as many images as allowed.
--   PT413 too_many_machines         Too many machines at once, or in the workspace.
--   PT413 too_many_pools            The report has too many pools or nodes.
--   PT413 too_many_quotas           The organisation has as many quotas as allowed.
--   PT413 too_many_results          The call has too many results of checks.
--   PT422 bad_agent                 p_agent or p_boot is malformed.
--   PT422 bad_blob                  An argument of a blob is malformed.
--   PT422 bad_chunks                The chunks are malformed.
--   PT422 bad_cluster               An argument of a cluster is malformed.
--   PT422 bad_detail                The report is malformed.
--   PT422 bad_email                 The e-mail address or user id is missing or malformed.
--   PT422 bad_fingerprint           The fingerprint of a key is malformed.
--   PT422 bad_id                    The id is null.
--   PT422 bad_image                 The name of an image is missing or malformed.
--   PT422 bad_input                 The answer lacks something, or has something that nobody asked.
--   PT422 bad_interval              The interval is out of range.
--   PT422 bad_issuer                A trusted issuer, its service accounts or its keys are not allowed.
--   PT422 bad_join                  What an agent says of itself to join is malformed.
--   PT422 bad_join_token            An argument of a join token is malformed.
--   PT422 bad_key                   The age recipient is malformed.
--   PT422 bad_machines              A planned machine is malformed.
--   PT422 bad_member                The user id or role is missing or malformed.
--   PT422 bad_operation             The operation is unknown.
--   PT422 bad_org                   The organisation's name is too short or too long.
--   PT422 bad_overlap               The overlap is out of range.
--   PT422 bad_paused                p_paused is null.
--   PT422 bad_policy                The policy is malformed.
--   PT422 bad_pools                 The report of pools is malformed.
--   PT422 bad_priority              The priority is out of range.
--   PT422 bad_quota                 The quota is malformed.
--   PT422 bad_reason                The reason is missing or too long.
--   PT422 bad_request_key           The idempotency key or digest is malformed.
--   PT422 bad_results               The results of checks are malformed.
--   PT422 bad_runner                p_runner_digest is neither a digest nor a key.
--   PT422 bad_share                 The sealed identity is malformed, or expires too late.
--   PT422 bad_snapshot              The snapshot is malformed; the message names each problem by
--                                   its path.
--   PT422 bad_status                The status is unknown.
--   PT422 bad_template              The repository, version, path, commit or another argument of a
--                                   template is malformed.
--   PT422 bad_token_life            The token's lifetime is out of range.
--   PT422 bad_token_name            The token's name is missing or too long.
--   PT422 bad_token_powers          The token's powers are malformed.
--   PT422 bad_wants                 What is wanted of pools is malformed.
--   PT422 bad_webhook               The webhook's settings are malformed.
--   PT422 bad_workspace             The workspace's name is missing or malformed.
--   PT422 claim_id_missing          p_claim_id is null.
--   PT422 org_missing               p_org is needed: the caller is not admin of exactly one
--                                   organisation.
--   PT422 request_key_reused        The idempotency key belongs to another request.
--   PT426 contract_too_new          The agent speaks a newer contract than the database.
--   PT429 cluster_blobs_full        The cluster stores as many bytes as allowed.
--   PT429 inspections_full          The organisation stores the variables of as many template
--                                   versions as allowed.
--   PT429 org_blobs_full            The organisation stores as many bytes as allowed.
--   PT429 queue_full                The workspace has as many queued provisions as allowed.
--   PT429 too_many_agents           The cluster has as many agents as allowed.
--   PT429 too_many_guesses          Too many wrong codes of joining agents within a minute.
--   PT429 too_many_inspections      The organisation has as many waiting inspections as allowed.
--   PT429 too_many_invitations      The organisation has as many invitations as allowed.
--   PT429 too_many_joins            As many agents wait to join as allowed.
--   PT429 too_many_pins             The cluster has as many pins as allowed.
--   PT429 too_many_planned          The organisation plans as many machines as allowed.
--   PT429 too_many_request_keys     The user's stored requests with idempotency keys reach the
--                                   limit.
--   PT429 too_many_runs             The API token has asked for as many runs within an hour as it
--                                   may.
--   PT429 too_many_tests            The webhook was tested too often within a minute.
--   PT429 uploads_full              The cluster has as many waiting uploads as allowed.
--   PT503 busy                      A lock was not free within two seconds, or another call was
--                                   faster: try again.
--   PT503 lease_expired             The claim's lease has run out: send a heartbeat, then ask
--                                   again.
CREATE OR REPLACE FUNCTION tendril.refuse(p_sqlstate text, p_reason text, p_message text, p_hint text DEFAULT '') RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_text   CONSTANT int := 2000; -- characters of the message, and of the hint
  c_reason CONSTANT int := 200;
BEGIN
  RAISE EXCEPTION USING ERRCODE = p_sqlstate, MESSAGE = tendril.one_line(p_message, c_text), DETAIL = tendril.one_line(p_reason, c_reason),
    HINT = tendril.one_line(p_hint, c_text);
END $$;

-- A text as one printable line of at most p_most characters. PostgREST puts a refusal's message
-- into the status line of its answer, where a line break would start a header of the caller's
-- choice.
CREATE OR REPLACE FUNCTION tendril.one_line(p_text text, p_most int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  -- Control characters, line and paragraph separators, and marks that turn the direction.
  c_hidden CONSTANT text := '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+';
BEGIN
  RETURN CASE WHEN length(p_text) > p_most THEN left(regexp_replace(left(p_text, p_most), c_hidden, ' ', 'g'), p_most - 1) || '…'
              ELSE regexp_replace(p_text, c_hidden, ' ', 'g') END;
END $$;

-- Several problems as one message that fits a refusal: as many as there is room for, twenty at
-- most, and the number of those left out.
--
-- Notes: Each unknown name is a problem; those of a large snapshot would fill the server's log.
CREATE OR REPLACE FUNCTION tendril.problem_list(p_problems text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_most  CONSTANT int := 20;
  c_room  CONSTANT int := 1900; -- characters, of the 2000 that refuse() lets through
  v_list  text := left(p_problems[1], c_room);
  v_shown int := 1;
BEGIN
  WHILE v_shown < least(cardinality(p_problems), c_most) AND length(v_list) + length(p_problems[v_shown + 1]) + 2 <= c_room LOOP
    v_shown := v_shown + 1;
    v_list := v_list || '; ' || p_problems[v_shown];
  END LOOP;
  RETURN v_list || CASE WHEN cardinality(p_problems) > v_shown THEN format('; (%s more)', cardinality(p_problems) - v_shown) ELSE '' END;
END $$;

-- A person's reason as one line, checked for length.
--
-- Errors: PT422 bad_reason.
CREATE OR REPLACE FUNCTION tendril.reason(p_reason text, p_needed boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_read CONSTANT int := 10000; -- characters that are looked at
  v_reason text := btrim(regexp_replace(left(coalesce(p_reason, ''), c_read), '[[:cntrl:][:space:]]+', ' ', 'g'));
BEGIN
  IF length(p_reason) > c_read OR length(v_reason) > tendril.max_reason() THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: %s characters; at most %s are allowed', length(p_reason), tendril.max_reason()));
  ELSIF p_needed AND v_reason = '' THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', 'p_reason: missing; it tells others why');
  END IF;
  RETURN v_reason;
END $$;

-- What kind of JSON a value is, as a message says it.
CREATE OR REPLACE FUNCTION tendril.kind_of(p_json jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE jsonb_typeof(p_json) WHEN 'object' THEN 'an object' WHEN 'array' THEN 'a list' WHEN 'null' THEN 'null' ELSE 'a ' || jsonb_typeof(p_json) END;
END $$;

-- What is wrong with a text; null when nothing is. Here and below, and in internal/provision, in
-- the same words.
CREATE OR REPLACE FUNCTION tendril.text_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_text text := p_text #>> '{}';
BEGIN
  RETURN CASE
    WHEN jsonb_typeof(p_text) <> 'string' THEN 'must be a string, not ' || tendril.kind_of(p_text)
    WHEN v_text = '' THEN 'missing'
    WHEN length(v_text) > p_longest THEN format('%s characters, at most %s are allowed', length(v_text), p_longest)
    WHEN v_text ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'must not contain control characters'
  END;
END $$;

-- What is wrong with a text that becomes an argument of an engine; null when nothing is.
CREATE OR REPLACE FUNCTION tendril.argument_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(tendril.text_problem(p_text, p_longest), CASE WHEN p_text #>> '{}' LIKE '-%' THEN 'must not start with a dash' END);
END $$;

-- What is wrong with a list of resource addresses.
CREATE OR REPLACE FUNCTION tendril.address_problems(p_path text, p_list jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_list) <> 'array' THEN
    RETURN ARRAY[format('%s: must be a list, not %s', p_path, tendril.kind_of(p_list))];
  ELSIF jsonb_array_length(p_list) > tendril.max_addresses() THEN
    RETURN ARRAY[format('%s: %s addresses, at most 100 are allowed', p_path, jsonb_array_length(p_list))];
  END IF;
  RETURN ARRAY(SELECT format('%s[%s]: %s', p_path, a.ord - 1, tendril.argument_problem(a.value, tendril.max_address()))
               FROM jsonb_array_elements(p_list) WITH ORDINALITY a (value, ord)
               WHERE tendril.argument_problem(a.value, tendril.max_address()) IS NOT NULL ORDER BY a.ord);
END $$;

-- What is wrong with a whole number; null when nothing is.
CREATE OR REPLACE FUNCTION tendril.number_problem(p_number jsonb, p_least bigint, p_most bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_number) <> 'number' THEN
    RETURN 'must be a number, not ' || tendril.kind_of(p_number);
  ELSIF p_number::numeric <> trunc(p_number::numeric) OR p_number::numeric NOT BETWEEN p_least AND p_most THEN
    RETURN format('must be a whole number from %s to %s', p_least, p_most);
  END IF;
  RETURN NULL;
END $$;

-- Whether a JSON value has a number that is too large to write out: 1e131071 takes ten bytes as
-- JSON and 131 KB written out, so a few of them fill the memory of every reader.
CREATE OR REPLACE FUNCTION tendril.has_vast_number(p_json jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- Zero is looked at as well, for 0e-16383 is one. As one array, for
  -- jsonb_path_query moves all that is left with each row that it returns.
  RETURN EXISTS (SELECT FROM jsonb_array_elements(jsonb_path_query_array(p_json,
                   'strict $.** ? (@.type() == "number" && !(@ > 1e-400 && @ < 1e400 || @ < -1e-400 && @ > -1e400))')) n
                 WHERE scale(n::numeric) > 400 OR abs(n::numeric) >= 1e400);
END $$;

-- A time as messages show it.
CREATE OR REPLACE FUNCTION tendril.at(p_at timestamptz) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"');
END $$;

-- A time that an agent reports, where it is within a day of p_now, the database's clock; otherwise
-- p_now. Not every reader can show times such as infinity or the year 20000.
--
-- Notes: Each row of a log asks it. A function without a search path, whose body is parsed when it
--   is created, becomes part of the statement that calls it.
CREATE OR REPLACE FUNCTION tendril.plausible_time(p_at timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN CASE WHEN p_at BETWEEN p_now - interval '1 day' AND p_now + interval '1 day' THEN p_at ELSE p_now END;

-- Every table and column says what it is for, and in which unit. docs/CONTRACT.md is made
-- from these comments. COMMENT does not keep anybody from reading or writing the table.

COMMENT ON SCHEMA tendril IS 'Tendril''s internals: token digests, claims, settings, internal functions. No outside role may use it.';

-- Settings

COMMENT ON TABLE tendril.settings IS 'One row of limits and times that an operator may change with UPDATE.';
COMMENT ON COLUMN tendril.settings.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN tendril.settings.lease IS 'How long a claim lives after its last heartbeat.';
COMMENT ON COLUMN tendril.settings.heartbeat IS 'How often agents send a heartbeat.';
COMMENT ON COLUMN tendril.settings.agent_alive IS 'An agent whose last heartbeat is at most this old is alive: no other agent may take its name or instance id.';
COMMENT ON COLUMN tendril.settings.poll IS 'How often an agent asks for work when nothing wakes it.';
COMMENT ON COLUMN tendril.settings.log_notify IS 'Each log sends at most one notification in this time.';
COMMENT ON COLUMN tendril.settings.late_log IS 'How long after the end of a run its newest claim may still append log lines.';
COMMENT ON COLUMN tendril.settings.newest_agent IS 'The newest released agent version, which heartbeats pass on to agents; NULL: not known.';
COMMENT ON COLUMN tendril.settings.log_limit IS 'Bytes of text that one provision''s log may hold. An agent sends up to 64 MiB for each run, and a provision that needs approval has two runs.';
COMMENT ON COLUMN tendril.settings.queue_limit IS 'Provisions that people may have queued in one workspace.';
COMMENT ON COLUMN tendril.settings.event_limit IS 'Bytes of events, as JSON, that one run may report.';
COMMENT ON COLUMN tendril.settings.retry_after IS 'Delay before the first automatic retry; each further retry waits twice as long, up to retry_at_most.';
COMMENT ON COLUMN tendril.settings.retry_at_most IS 'Longest delay before an automatic retry.';
COMMENT ON COLUMN tendril.settings.state_history IS 'State versions that are kept for each workspace, the newest included.';
COMMENT ON COLUMN tendril.settings.result_kept IS 'How long the result of a state operation is kept for its requester.';
COMMENT ON COLUMN tendril.settings.upload_kept IS 'How long an upload waits for its operation, and an incomplete blob for its remaining parts.';
COMMENT ON COLUMN tendril.settings.upload_limit IS 'Uploads, of up to 64 MiB each, that may wait on one cluster.';
COMMENT ON COLUMN tendril.settings.session_lasts IS 'How long a browser stays signed in.';
COMMENT ON COLUMN tendril.settings.session_idle IS 'How long a browser stays signed in without being used.';
COMMENT ON COLUMN tendril.settings.invitation_lasts IS 'How long an invitation can be accepted.';
COMMENT ON COLUMN tendril.settings.log_archive_after IS 'How long after the end of a provision its log is archived, but never before late_log has passed; NULL: never.';
COMMENT ON COLUMN tendril.settings.log_delete_after IS 'How long after the end of a provision its archived log is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.lock_salt IS 'Random number that keeps the keys of advisory locks secret.';
COMMENT ON COLUMN tendril.settings.invitation_limit IS 'Invitations that one organisation may have.';
COMMENT ON COLUMN tendril.settings.audit_delete_after IS 'Age at which audit events are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.provision_delete_after IS 'How long after its end a provision is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.event_delete_after IS 'Age at which provision events are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.claim_delete_after IS 'How long after its end a claim is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.agent_delete_after IS 'How long after its last heartbeat an agent that nothing depends on is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.token_delete_after IS 'How long after it expires or is revoked a cluster token is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.credential_delete_after IS 'How long after it expires or is revoked a credential is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.invitation_delete_after IS 'How long after it is accepted, declined or expires an invitation is deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.delivery_delete_after IS 'Age at which webhook deliveries are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.delivery_limit IS 'Deliveries that are kept for each webhook.';
COMMENT ON COLUMN tendril.settings.request_delete_after IS 'Age at which answers to requests with an idempotency key are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.inspection_delete_after IS 'Age at which inspections of template versions outside the catalogue are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.tag_delete_after IS 'Age at which tag lists of repositories outside the catalogue are deleted; NULL: never.';
COMMENT ON COLUMN tendril.settings.pin_delete_after IS 'Age at which a cluster''s pins of full commits are deleted; NULL: never. Pins of tags are kept.';
COMMENT ON COLUMN tendril.settings.agent_limit IS 'Agents that one cluster may have.';
COMMENT ON COLUMN tendril.settings.cluster_blob_limit IS 'Bytes of plans, states, results and uploads that one cluster may store.';
COMMENT ON COLUMN tendril.settings.org_blob_limit IS 'Bytes of plans, states, results and uploads that all clusters of an organisation may store. Each cluster may always use an equal share.';
COMMENT ON COLUMN tendril.settings.pin_limit IS 'Pins of tags and commits that one cluster may have.';
COMMENT ON COLUMN tendril.settings.inspection_limit IS 'Template versions whose variables one organisation may store.';
COMMENT ON COLUMN tendril.settings.resource_limit IS 'Resources that are listed for one workspace.';
COMMENT ON COLUMN tendril.settings.cluster_log_limit IS 'Bytes of text that all logs of one cluster may hold.';
COMMENT ON COLUMN tendril.settings.org_log_limit IS 'Bytes of text that all logs of an organisation may hold. Each cluster may always use an equal share.';

-- Organisations and people

COMMENT ON TABLE public.orgs IS 'Organisations: each owns its clusters, templates and members.';
COMMENT ON COLUMN public.orgs.id IS 'The organisation.';
COMMENT ON COLUMN public.orgs.name IS 'Name that people see, 1 to 200 characters.';
COMMENT ON COLUMN public.orgs.created_at IS 'When it was created.';

COMMENT ON TABLE public.org_members IS 'Which user has which role in which organisation.';
COMMENT ON COLUMN public.org_members.org_id IS 'The organisation.';
COMMENT ON COLUMN public.org_members.user_id IS 'The user.';
COMMENT ON COLUMN public.org_members.role IS 'viewer reads; operator also deploys, cancels and approves; admin also manages clusters, templates, members and webhooks.';
COMMENT ON COLUMN public.org_members.created_at IS 'When the user became a member.';

COMMENT ON TABLE tendril.persons IS 'People who have signed in or were named by an identity provider.';
COMMENT ON COLUMN tendril.persons.user_id IS 'The user.';
COMMENT ON COLUMN tendril.persons.name IS 'Name from the identity provider; empty: not known.';
COMMENT ON COLUMN tendril.persons.email IS 'E-mail address in lower case; empty: not known.';
COMMENT ON COLUMN tendril.persons.email_verified IS 'Whether the identity provider verified the e-mail address.';
COMMENT ON COLUMN tendril.persons.signed_in_at IS 'Last sign-in; NULL: never.';
COMMENT ON COLUMN tendril.persons.created_at IS 'When the row was created.';

COMMENT ON TABLE tendril.identities IS 'Which user an identity provider''s subject is.';
COMMENT ON COLUMN tendril.identities.issuer IS 'The identity provider.';
COMMENT ON COLUMN tendril.identities.subject IS 'The provider''s id of the person: not always a UUID, and unique with the issuer only.';
COMMENT ON COLUMN tendril.identities.user_id IS 'The user.';
COMMENT ON COLUMN tendril.identities.created_at IS 'When the person first signed in this way.';

COMMENT ON TABLE tendril.credentials IS 'Sessions, API tokens, sign-in links and CLI codes. Only a digest of each is stored.';
COMMENT ON COLUMN tendril.credentials.id IS 'The credential.';
COMMENT ON COLUMN tendril.credentials.kind IS 'session, api_token, link (one-time sign-in link) or cli_code (one-time code of a CLI sign-in).';
COMMENT ON COLUMN tendril.credentials.user_id IS 'The user.';
COMMENT ON COLUMN tendril.credentials.digest IS 'SHA-256 of the credential.';
COMMENT ON COLUMN tendril.credentials.label IS 'What the user calls it: a name, a browser or a host.';
COMMENT ON COLUMN tendril.credentials.challenge IS 'PKCE challenge (S256) of a CLI code; NULL for other kinds.';
COMMENT ON COLUMN tendril.credentials.created_at IS 'When it was created.';
COMMENT ON COLUMN tendril.credentials.last_used_at IS 'Last use, written at most once a minute.';
COMMENT ON COLUMN tendril.credentials.expires_at IS 'When it expires; NULL: never.';
COMMENT ON COLUMN tendril.credentials.revoked_at IS 'When it was revoked or used up; NULL: it is valid.';

COMMENT ON TABLE public.people IS 'Names of an organisation''s members and former members, copied from tendril.persons.';
COMMENT ON COLUMN public.people.org_id IS 'The organisation.';
COMMENT ON COLUMN public.people.user_id IS 'The user.';
COMMENT ON COLUMN public.people.name IS 'Name; empty: not known.';
COMMENT ON COLUMN public.people.email IS 'E-mail address; empty: not known.';

COMMENT ON TABLE public.invitations IS 'Invitations to become a member, each for an e-mail address or for a user id.';
COMMENT ON COLUMN public.invitations.id IS 'The invitation.';
COMMENT ON COLUMN public.invitations.org_id IS 'The organisation.';
COMMENT ON COLUMN public.invitations.email IS 'Invited e-mail address in lower case; NULL: the invitation is for user_id.';
COMMENT ON COLUMN public.invitations.role IS 'Role that the person gets by accepting.';
COMMENT ON COLUMN public.invitations.invited_by IS 'User who sent the invitation.';
COMMENT ON COLUMN public.invitations.created_at IS 'When it was sent, or sent again.';
COMMENT ON COLUMN public.invitations.expires_at IS 'When it can no longer be accepted.';
COMMENT ON COLUMN public.invitations.accepted_at IS 'When it was accepted; NULL: it was not.';
COMMENT ON COLUMN public.invitations.accepted_by IS 'User who accepted it.';
COMMENT ON COLUMN public.invitations.user_id IS 'Invited user; NULL: the invitation is for email.';
COMMENT ON COLUMN public.invitations.declined_at IS 'When it was declined; NULL: it was not.';

COMMENT ON TABLE public.audit_events IS 'Append-only list of what people and the control plane did.';
COMMENT ON COLUMN public.audit_events.id IS 'Grows with time.';
COMMENT ON COLUMN public.audit_events.org_id IS 'The organisation.';
COMMENT ON COLUMN public.audit_events.at IS 'When it happened.';
COMMENT ON COLUMN public.audit_events.actor IS 'User who did it; NULL: the control plane.';
COMMENT ON COLUMN public.audit_events.action IS 'What was done, for example approve_provision.';
COMMENT ON COLUMN public.audit_events.object IS 'Kind of object: provision, workspace, cluster, template, user, org, invitation, credential or webhook.';
COMMENT ON COLUMN public.audit_events.object_id IS 'The object; NULL: it has no id.';
COMMENT ON COLUMN public.audit_events.detail IS 'What changed, as an object whose keys depend on the action.';

COMMENT ON TABLE tendril.requests IS 'API requests with an idempotency key and their answers, so that a request sent twice is carried out once.';
COMMENT ON COLUMN tendril.requests.user_id IS 'User who sent the request.';
COMMENT ON COLUMN tendril.requests.key IS 'Idempotency key, 1 to 200 characters.';
COMMENT ON COLUMN tendril.requests.digest IS 'SHA-256 of the request, in hexadecimal.';
COMMENT ON COLUMN tendril.requests.location IS 'Location header of the answer; empty: none.';
COMMENT ON COLUMN tendril.requests.answer IS 'The answer; NULL: it holds a secret and is not stored.';
COMMENT ON COLUMN tendril.requests.made_at IS 'When the request was carried out.';

-- Clusters and agents

COMMENT ON TABLE public.clusters IS 'Groups of agents that run the same provisions.';
COMMENT ON COLUMN public.clusters.id IS 'The cluster.';
COMMENT ON COLUMN public.clusters.org_id IS 'The organisation.';
COMMENT ON COLUMN public.clusters.name IS 'Name, 1 to 63 letters, digits and . _ -, unique in the organisation.';
COMMENT ON COLUMN public.clusters.labels IS 'Labels of the cluster, an object.';
COMMENT ON COLUMN public.clusters.age_public_key IS 'age recipient that secrets for this cluster are sealed to; NULL: the next agent that registers sets it.';
COMMENT ON COLUMN public.clusters.paused_at IS 'Since when agents claim nothing here; NULL: the cluster is not paused.';
COMMENT ON COLUMN public.clusters.last_seen_at IS 'Last heartbeat of any of its agents, written at most every 15 seconds.';
COMMENT ON COLUMN public.clusters.created_by IS 'User who created it; NULL: the control plane.';
COMMENT ON COLUMN public.clusters.created_at IS 'When it was created.';
COMMENT ON COLUMN public.clusters.approval IS 'When a plan needs approval: never, destructive or always. The strictest of cluster, template and snapshot counts.';
COMMENT ON COLUMN public.clusters.approvers IS 'Least role that may approve a plan: operator or admin.';
COMMENT ON COLUMN public.clusters.four_eyes IS 'Whether the requester of a plan may not approve it.';
COMMENT ON COLUMN public.clusters.approval_expiry IS 'How long a plan waits for approval, 1 minute to 90 days.';

COMMENT ON TABLE tendril.cluster_tokens IS 'Digests of agent tokens. A cluster may have several, so that a rotation has no gap.';
COMMENT ON COLUMN tendril.cluster_tokens.id IS 'The token.';
COMMENT ON COLUMN tendril.cluster_tokens.cluster_id IS 'The cluster.';
COMMENT ON COLUMN tendril.cluster_tokens.digest IS 'SHA-256 of the SHA-256 that agents send, so a reader of this table has no credential.';
COMMENT ON COLUMN tendril.cluster_tokens.created_by IS 'User who created it; NULL: the control plane.';
COMMENT ON COLUMN tendril.cluster_tokens.created_at IS 'When it was created.';
COMMENT ON COLUMN tendril.cluster_tokens.expires_at IS 'When it expires; NULL: never.';
COMMENT ON COLUMN tendril.cluster_tokens.revoked_at IS 'When it was revoked; NULL: it was not.';

COMMENT ON TABLE public.agents IS 'Agent instances, one row for each data directory.';
COMMENT ON COLUMN public.agents.id IS 'The row.';
COMMENT ON COLUMN public.agents.org_id IS 'The organisation.';
COMMENT ON COLUMN public.agents.cluster_id IS 'The cluster.';
COMMENT ON COLUMN public.agents.instance_id IS 'The agent''s own id, which lives in its data directory.';
COMMENT ON COLUMN public.agents.boot_id IS 'Id of its current start. Calls with an earlier boot id are refused.';
COMMENT ON COLUMN public.agents.name IS 'Name; only one live agent of a cluster may have it.';
COMMENT ON COLUMN public.agents.host IS 'Host name.';
COMMENT ON COLUMN public.agents.version IS 'Version of the agent program.';
COMMENT ON COLUMN public.agents.contract IS 'Version of this contract that the agent speaks.';
COMMENT ON COLUMN public.agents.slots IS 'Provisions that it runs at once, 1 to 64.';
COMMENT ON COLUMN public.agents.registered_at IS 'When it last registered.';
COMMENT ON COLUMN public.agents.last_heartbeat_at IS 'Its last heartbeat.';
COMMENT ON COLUMN public.agents.past_boots IS 'Earlier boot ids, at most 20; none of them may register again.';
COMMENT ON COLUMN public.agents.directory IS 'Its data directory; NULL: the agent did not say.';
COMMENT ON COLUMN public.agents.operations IS 'Operations that the agent''s own policy allows; NULL: the agent did not say.';
COMMENT ON COLUMN public.agents.kernel IS 'Id of the machine''s current boot; NULL: the agent did not say. Another value on the same host proves that the machine was restarted.';

COMMENT ON VIEW public.cluster_overview IS 'Clusters with their connectivity, computed from the last heartbeat.';
COMMENT ON COLUMN public.cluster_overview.id IS 'The cluster.';
COMMENT ON COLUMN public.cluster_overview.org_id IS 'The organisation.';
COMMENT ON COLUMN public.cluster_overview.name IS 'Name of the cluster.';
COMMENT ON COLUMN public.cluster_overview.labels IS 'Labels of the cluster.';
COMMENT ON COLUMN public.cluster_overview.paused_at IS 'Since when it is paused; NULL: it is not.';
COMMENT ON COLUMN public.cluster_overview.last_seen_at IS 'Last heartbeat of any of its agents.';
COMMENT ON COLUMN public.cluster_overview.created_at IS 'When it was created.';
COMMENT ON COLUMN public.cluster_overview.connectivity IS 'ONLINE (last heartbeat within 45 seconds), STALE (within 5 minutes) or OFFLINE.';

COMMENT ON TABLE tendril.cluster_usage IS 'How much of its limits each cluster uses, counted from time to time.';
COMMENT ON COLUMN tendril.cluster_usage.cluster_id IS 'The cluster.';
COMMENT ON COLUMN tendril.cluster_usage.org_id IS 'The organisation.';
COMMENT ON COLUMN tendril.cluster_usage.measured_at IS 'When agents, blob_bytes, pins and inspections were counted.';
COMMENT ON COLUMN tendril.cluster_usage.agents IS 'Agents of the cluster.';
COMMENT ON COLUMN tendril.cluster_usage.blob_bytes IS 'Bytes of the cluster''s plans, states, results and uploads.';
COMMENT ON COLUMN tendril.cluster_usage.pins IS 'Pins of the cluster.';
COMMENT ON COLUMN tendril.cluster_usage.inspections IS 'Inspected template versions of the organisation.';
COMMENT ON COLUMN tendril.cluster_usage.log_bytes IS 'Bytes of text in the cluster''s logs.';
COMMENT ON COLUMN tendril.cluster_usage.org_log_bytes IS 'Bytes of text in the organisation''s logs.';

COMMENT ON TABLE tendril.pulse IS 'When the database last saw a heartbeat or a timer. A gap means that the database was away, and that leases ran out without fault of their agents.';
COMMENT ON COLUMN tendril.pulse.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN tendril.pulse.stamped_at IS 'The last stamp.';
COMMENT ON COLUMN tendril.pulse.reap_not_before IS 'No lease is given up before this time.';

-- Templates

COMMENT ON TABLE public.templates IS 'The catalogue: templates that people choose from.';
COMMENT ON COLUMN public.templates.id IS 'The template.';
COMMENT ON COLUMN public.templates.org_id IS 'The organisation.';
COMMENT ON COLUMN public.templates.name IS 'Name, 1 to 200 characters, unique in the organisation.';
COMMENT ON COLUMN public.templates.repo IS 'Address of its Git repository.';
COMMENT ON COLUMN public.templates.path IS 'Directory in the repository; empty: its root.';
COMMENT ON COLUMN public.templates.version IS 'Tag or full commit that the console offers first.';
COMMENT ON COLUMN public.templates.description IS 'Description, at most 4000 characters.';
COMMENT ON COLUMN public.templates.created_at IS 'When it was added.';
COMMENT ON COLUMN public.templates.approval IS 'When a plan of this template needs approval: never, destructive or always.';

COMMENT ON TABLE public.template_pins IS 'The commit that a tag means for a whole organisation. A tag that has moved is refused.';
COMMENT ON COLUMN public.template_pins.org_id IS 'The organisation.';
COMMENT ON COLUMN public.template_pins.repo IS 'Canonical address of the repository.';
COMMENT ON COLUMN public.template_pins.version IS 'The tag, or a full commit.';
COMMENT ON COLUMN public.template_pins.commit IS 'The commit it means, 40 hexadecimal digits.';
COMMENT ON COLUMN public.template_pins.variables IS 'Not used any more; template_inspections has the variables.';
COMMENT ON COLUMN public.template_pins.first_used_at IS 'When it was pinned.';
COMMENT ON COLUMN public.template_pins.pinned_by IS 'inspection (read from the repository by the control plane), admin, or earlier (by an older release).';

COMMENT ON TABLE public.cluster_pins IS 'The commit that a tag meant when a cluster''s agents first used it.';
COMMENT ON COLUMN public.cluster_pins.cluster_id IS 'The cluster.';
COMMENT ON COLUMN public.cluster_pins.repo IS 'Canonical address of the repository.';
COMMENT ON COLUMN public.cluster_pins.version IS 'The tag, or a full commit.';
COMMENT ON COLUMN public.cluster_pins.commit IS 'The commit it means, 40 hexadecimal digits.';
COMMENT ON COLUMN public.cluster_pins.org_id IS 'The organisation.';
COMMENT ON COLUMN public.cluster_pins.first_used_at IS 'When the cluster first used it.';

COMMENT ON TABLE public.template_inspections IS 'The variables that a version of a template declares, and the inspection that reads them.';
COMMENT ON COLUMN public.template_inspections.org_id IS 'The organisation.';
COMMENT ON COLUMN public.template_inspections.repo IS 'Canonical address of the repository.';
COMMENT ON COLUMN public.template_inspections.version IS 'Tag or full commit.';
COMMENT ON COLUMN public.template_inspections.path IS 'Canonical directory in the repository; empty: its root.';
COMMENT ON COLUMN public.template_inspections.address IS 'Address of the repository as a person wrote it.';
COMMENT ON COLUMN public.template_inspections.status IS 'wanted (trellis has a minute to take it), handed (trellis cannot reach the repository, an agent must), queued (as a provision of operation inspect), done or failed.';
COMMENT ON COLUMN public.template_inspections.commit IS 'The inspected commit.';
COMMENT ON COLUMN public.template_inspections.variables IS 'The declared variables, a list of objects; kept while the next inspection runs.';
COMMENT ON COLUMN public.template_inspections.inspected_by IS 'trellis, agent (a provision of operation inspect) or run (any other provision).';
COMMENT ON COLUMN public.template_inspections.inspected_at IS 'When the variables were read.';
COMMENT ON COLUMN public.template_inspections.problem_code IS 'Why the inspection failed or was handed to an agent, as a code.';
COMMENT ON COLUMN public.template_inspections.problem IS 'The same for people.';
COMMENT ON COLUMN public.template_inspections.provision_id IS 'The newest provision that inspects it or did.';
COMMENT ON COLUMN public.template_inspections.requested_by IS 'User who requested the inspection.';
COMMENT ON COLUMN public.template_inspections.requested_at IS 'When it was requested.';
COMMENT ON COLUMN public.template_inspections.tried IS 'Clusters whose agents could not inspect it.';
COMMENT ON COLUMN public.template_inspections.lease IS 'Which trellis process inspects it now; NULL: none.';
COMMENT ON COLUMN public.template_inspections.lease_until IS 'When another trellis process may take it.';

COMMENT ON TABLE public.template_tags IS 'The tags that a repository had when the control plane last listed them.';
COMMENT ON COLUMN public.template_tags.org_id IS 'The organisation.';
COMMENT ON COLUMN public.template_tags.repo IS 'Canonical address of the repository.';
COMMENT ON COLUMN public.template_tags.tags IS 'A list of {tag, commit}.';
COMMENT ON COLUMN public.template_tags.listed_at IS 'When they were listed.';

-- Workspaces, provisions, claims

COMMENT ON TABLE public.workspaces IS 'Terraform states, one row each. At most one provision runs in a workspace.';
COMMENT ON COLUMN public.workspaces.id IS 'The workspace. State keys are made from it.';
COMMENT ON COLUMN public.workspaces.org_id IS 'The organisation.';
COMMENT ON COLUMN public.workspaces.cluster_id IS 'The cluster whose agents run it.';
COMMENT ON COLUMN public.workspaces.name IS 'Name, unique in the cluster, for example acme/prod.';
COMMENT ON COLUMN public.workspaces.repo IS 'Canonical address of the template''s repository; NULL until the first run. Another template is refused.';
COMMENT ON COLUMN public.workspaces.path IS 'Canonical directory of the template; NULL until the first run.';
COMMENT ON COLUMN public.workspaces.running_claim IS 'The claim that runs here; NULL: none.';
COMMENT ON COLUMN public.workspaces.held_by_claim IS 'A claim that lost its lease during apply: Terraform may still be running, so nothing else may start. NULL: none.';
COMMENT ON COLUMN public.workspaces.reserved_by IS 'The provision that needs approval, is approved and not yet applied, or is an automatic retry; nothing else starts. NULL: none.';
COMMENT ON COLUMN public.workspaces.locked_at IS 'When a person locked the workspace; NULL: it is not locked.';
COMMENT ON COLUMN public.workspaces.locked_by IS 'User who locked it; NULL: the control plane.';
COMMENT ON COLUMN public.workspaces.lock_reason IS 'Why it is locked.';
COMMENT ON COLUMN public.workspaces.home_instance IS 'The agent instance whose local file the state is; NULL: the state is elsewhere.';
COMMENT ON COLUMN public.workspaces.head_id IS 'The provision that runs next; NULL: none is queued. Kept here so that a claim reads one short index.';
COMMENT ON COLUMN public.workspaces.head_priority IS 'Priority of head_id.';
COMMENT ON COLUMN public.workspaces.head_number IS 'Number of head_id.';
COMMENT ON COLUMN public.workspaces.created_at IS 'When it was first deployed to.';
COMMENT ON COLUMN public.workspaces.unsaved_state_on IS 'The agent instance that keeps a state it could not store; NULL: none.';
COMMENT ON COLUMN public.workspaces.only_instance IS 'The only agent instance that may run here, from home_instance and unsaved_state_on; all zeros: any; all f: none, because they differ.';
COMMENT ON COLUMN public.workspaces.due_at IS 'When the reservation expires (approval) or the automatic retry starts; NULL: no reservation with a time.';
COMMENT ON COLUMN public.workspaces.drift IS 'Changes outside Terraform that the newest refresh found, at most 200: a list of {address, action, attributes}; NULL: not known, or fixed by an apply since.';
COMMENT ON COLUMN public.workspaces.drift_count IS 'Number of all changes that refresh found.';
COMMENT ON COLUMN public.workspaces.drift_at IS 'When that refresh ran.';
COMMENT ON COLUMN public.workspaces.state_lock IS 'Who held the state''s lock when a run last wanted it: {id, who, operation, created, number, at}, where number and at are of the run; NULL: a run has had the lock since.';
COMMENT ON COLUMN public.workspaces.drift_every IS 'How often a refresh checks for drift, 5 minutes to 366 days; NULL: never.';
COMMENT ON COLUMN public.workspaces.drift_due_at IS 'When the next drift check is due.';
COMMENT ON COLUMN public.workspaces.state_version IS 'Newest version of the managed state; NULL: the state is elsewhere.';
COMMENT ON COLUMN public.workspaces.state_serial IS 'Terraform''s serial of that state.';
COMMENT ON COLUMN public.workspaces.state_at IS 'When that state was stored.';
COMMENT ON COLUMN public.workspaces.state_provision IS 'The provision that wrote that state.';
COMMENT ON COLUMN public.workspaces.hidden IS 'Whether this is a queue for inspections, without a state. Lists leave it out.';

COMMENT ON TABLE public.provisions IS 'The queue and history of runs. People insert rows; functions change them.';
COMMENT ON COLUMN public.provisions.id IS 'The provision. The client may choose it, so that an insert repeated after a lost reply makes no second provision.';
COMMENT ON COLUMN public.provisions.number IS 'Number that people see, unique in the database.';
COMMENT ON COLUMN public.provisions.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provisions.cluster_id IS 'The cluster.';
COMMENT ON COLUMN public.provisions.workspace_id IS 'The workspace.';
COMMENT ON COLUMN public.provisions.operation IS 'plan, apply, destroy, refresh, unlock, state or inspect.';
COMMENT ON COLUMN public.provisions.config_snapshot IS 'What to run: template, version, variables and options. It never changes.';
COMMENT ON COLUMN public.provisions.status IS 'QUEUED, PROCESSING, AWAITING_APPROVAL, SUCCESS, FAILED or CANCELLED.';
COMMENT ON COLUMN public.provisions.priority IS 'From -100 to 100; higher runs first.';
COMMENT ON COLUMN public.provisions.resolved_commit IS 'The commit that the agent checked out.';
COMMENT ON COLUMN public.provisions.engine IS 'terraform or tofu.';
COMMENT ON COLUMN public.provisions.engine_version IS 'Exact version of the engine.';
COMMENT ON COLUMN public.provisions.plan_summary IS 'What the plan changes: counts and a list of resources.';
COMMENT ON COLUMN public.provisions.outputs IS 'Outputs by name: {value, type, sensitive}. Values of sensitive outputs are never stored.';
COMMENT ON COLUMN public.provisions.error_code IS 'Why it failed or was cancelled, as a code; NULL: it did not.';
COMMENT ON COLUMN public.provisions.error_message IS 'The same for people.';
COMMENT ON COLUMN public.provisions.requested_by IS 'User who requested it; NULL: the control plane.';
COMMENT ON COLUMN public.provisions.cancel_requested_at IS 'When a person requested its cancellation; NULL: nobody did.';
COMMENT ON COLUMN public.provisions.cancel_requested_by IS 'User who requested its cancellation.';
COMMENT ON COLUMN public.provisions.created_at IS 'When it was queued.';
COMMENT ON COLUMN public.provisions.started_at IS 'When an agent first claimed it.';
COMMENT ON COLUMN public.provisions.finished_at IS 'When it ended.';
COMMENT ON COLUMN public.provisions.plan_digest IS 'SHA-256, in hexadecimal, of the plan that needs approval.';
COMMENT ON COLUMN public.provisions.approved_plan IS 'SHA-256, in hexadecimal, of the approved plan: no other plan may be applied.';
COMMENT ON COLUMN public.provisions.approved_at IS 'When the plan was approved.';
COMMENT ON COLUMN public.provisions.approved_by IS 'User who approved it.';
COMMENT ON COLUMN public.provisions.retry_of IS 'The provision that this one repeats; NULL: none.';
COMMENT ON COLUMN public.provisions.attempt IS 'Number of this automatic attempt, from 1.';
COMMENT ON COLUMN public.provisions.not_before IS 'When an automatic retry may start; NULL: at once.';

COMMENT ON TABLE tendril.claims IS 'Claims: one agent''s right to run one provision. Every write of a run names its claim.';
COMMENT ON COLUMN tendril.claims.id IS 'The claim. The agent chooses it, so that a claim repeated after a lost reply is the same claim.';
COMMENT ON COLUMN tendril.claims.number IS 'Grows with time.';
COMMENT ON COLUMN tendril.claims.provision_id IS 'The provision.';
COMMENT ON COLUMN tendril.claims.workspace_id IS 'The workspace.';
COMMENT ON COLUMN tendril.claims.cluster_id IS 'The cluster.';
COMMENT ON COLUMN tendril.claims.instance_id IS 'The agent instance that claimed it.';
COMMENT ON COLUMN tendril.claims.boot_id IS 'The agent''s boot id at the claim.';
COMMENT ON COLUMN tendril.claims.host IS 'The agent''s host at the claim.';
COMMENT ON COLUMN tendril.claims.state IS 'running; lost (the lease ran out, the agent may still report); or ended (only late log lines are accepted).';
COMMENT ON COLUMN tendril.claims.lease_until IS 'When the lease runs out.';
COMMENT ON COLUMN tendril.claims.next_chunk IS 'Number of the next log chunk, from 1.';
COMMENT ON COLUMN tendril.claims.last_report IS 'Number of the newest stored report; 0: none.';
COMMENT ON COLUMN tendril.claims.stage IS 'Stage of the run; NULL: not reported yet.';
COMMENT ON COLUMN tendril.claims.apply_begun_at IS 'When apply was permitted; NULL: nothing was changed.';
COMMENT ON COLUMN tendril.claims.cancel_requested_at IS 'When the agent was asked to stop; NULL: it was not.';
COMMENT ON COLUMN tendril.claims.created_at IS 'When it was claimed.';
COMMENT ON COLUMN tendril.claims.ended_at IS 'When it ended or was lost.';
COMMENT ON COLUMN tendril.claims.directory IS 'The agent''s data directory at the claim; NULL: the agent did not say.';
COMMENT ON COLUMN tendril.claims.percent_due IS 'Progress in percent that viewers have not seen yet; NULL: none.';
COMMENT ON COLUMN tendril.claims.event_bytes IS 'Bytes of events that the run has reported.';
COMMENT ON COLUMN tendril.claims.running_due IS 'Resources in progress that viewers have not seen yet; NULL: none.';
COMMENT ON COLUMN tendril.claims.clock_wrong IS 'Whether the log already says that the agent''s clock is wrong.';

COMMENT ON TABLE public.resources IS 'The resources that exist now in each workspace, as its state lists them.';
COMMENT ON COLUMN public.resources.workspace_id IS 'The workspace.';
COMMENT ON COLUMN public.resources.address IS 'Address in the state, at most 600 characters; a longer one ends in a digest.';
COMMENT ON COLUMN public.resources.org_id IS 'The organisation.';
COMMENT ON COLUMN public.resources.type IS 'Resource type.';
COMMENT ON COLUMN public.resources.provider IS 'Address of its provider.';
COMMENT ON COLUMN public.resources.external_id IS 'Id that the provider gave it.';
COMMENT ON COLUMN public.resources.ip_addresses IS 'Its IP addresses.';
COMMENT ON COLUMN public.resources.status IS 'Its status, as the agent reports it.';
COMMENT ON COLUMN public.resources.provision_id IS 'The provision that last changed this row.';
COMMENT ON COLUMN public.resources.updated_at IS 'When this row last changed.';

-- What a run shows

COMMENT ON TABLE public.provision_progress IS 'Current stage and progress of each provision.';
COMMENT ON COLUMN public.provision_progress.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_progress.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_progress.stage IS 'checkout, validate, engine, init, plan, approval, apply, outputs or done.';
COMMENT ON COLUMN public.provision_progress.percent IS 'Progress of the stage in percent; NULL: not known.';
COMMENT ON COLUMN public.provision_progress.updated_at IS 'When it last changed.';
COMMENT ON COLUMN public.provision_progress.running IS 'Resources in progress, at most 50: a list of {address, action, since}.';

COMMENT ON TABLE public.provision_stages IS 'When each stage of each attempt began and ended.';
COMMENT ON COLUMN public.provision_stages.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_stages.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_stages.attempt IS 'How often the provision was queued until then, from 1.';
COMMENT ON COLUMN public.provision_stages.stage IS 'The stage; queued comes first. A stage that a run returns to stays one row.';
COMMENT ON COLUMN public.provision_stages.started_at IS 'When it first began.';
COMMENT ON COLUMN public.provision_stages.ended_at IS 'When it last ended; NULL: it goes on.';

COMMENT ON TABLE public.provision_events IS 'What happened in a run: stages, and resources that started, finished or failed.';
COMMENT ON COLUMN public.provision_events.id IS 'Grows with time.';
COMMENT ON COLUMN public.provision_events.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_events.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_events.kind IS 'Kind of event, for example stage or resource_finished.';
COMMENT ON COLUMN public.provision_events.at IS 'When it happened.';
COMMENT ON COLUMN public.provision_events.detail IS 'What happened, as an object whose keys depend on the kind.';

COMMENT ON TABLE public.provision_logs IS 'Log lines that are not archived yet. public.provision_log() reads both.';
COMMENT ON COLUMN public.provision_logs.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_logs.seq IS 'Position in the log: 1, 2, 3 without a gap.';
COMMENT ON COLUMN public.provision_logs.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_logs.stream_type IS 'STDOUT, STDERR or SYSTEM (a message of the agent or the database).';
COMMENT ON COLUMN public.provision_logs.log_chunk IS 'Text: one or more lines, or a part of one.';
COMMENT ON COLUMN public.provision_logs.emitted_at IS 'When the agent read it.';
COMMENT ON COLUMN public.provision_logs.created_at IS 'When it was stored.';

COMMENT ON TABLE tendril.log_heads IS 'Where each log stands. Its row lock gives out seq.';
COMMENT ON COLUMN tendril.log_heads.provision_id IS 'The provision.';
COMMENT ON COLUMN tendril.log_heads.org_id IS 'The organisation.';
COMMENT ON COLUMN tendril.log_heads.next_seq IS 'The next position.';
COMMENT ON COLUMN tendril.log_heads.bytes IS 'Bytes of text stored; a chunk counts as 16 bytes at least.';
COMMENT ON COLUMN tendril.log_heads.notified_at IS 'When viewers were last notified.';
COMMENT ON COLUMN tendril.log_heads.cut IS 'Whether the log has reached its limit, so that output is left out.';
COMMENT ON COLUMN tendril.log_heads.archived IS 'Whether all of the log is in provision_log_archives.';
COMMENT ON COLUMN tendril.log_heads.cluster_id IS 'The cluster; NULL for a log that began before clusters had a limit.';
COMMENT ON COLUMN tendril.log_heads.cut_at IS 'Bytes that the log had when it was cut; NULL: it was not, or by an older release.';

COMMENT ON TABLE public.provision_log_archives IS 'Archived parts of logs, up to 4 MiB of text each. Element n of each array belongs to position first_seq + n - 1.';
COMMENT ON COLUMN public.provision_log_archives.provision_id IS 'The provision.';
COMMENT ON COLUMN public.provision_log_archives.first_seq IS 'First position in this part.';
COMMENT ON COLUMN public.provision_log_archives.last_seq IS 'Last position in this part.';
COMMENT ON COLUMN public.provision_log_archives.org_id IS 'The organisation.';
COMMENT ON COLUMN public.provision_log_archives.bytes IS 'Bytes of text.';
COMMENT ON COLUMN public.provision_log_archives.archived_at IS 'When it was archived.';
COMMENT ON COLUMN public.provision_log_archives.stream_types IS 'stream_type of each row.';
COMMENT ON COLUMN public.provision_log_archives.log_chunks IS 'log_chunk of each row.';
COMMENT ON COLUMN public.provision_log_archives.emitted_at IS 'emitted_at of each row.';
COMMENT ON COLUMN public.provision_log_archives.created_at IS 'created_at of each row.';

COMMENT ON TABLE tendril.log_ends IS 'Provisions that have ended and whose logs are still stored, archived or not.';
COMMENT ON COLUMN tendril.log_ends.provision_id IS 'The provision.';
COMMENT ON COLUMN tendril.log_ends.org_id IS 'The organisation.';
COMMENT ON COLUMN tendril.log_ends.ended_at IS 'When it ended; later where archiving was postponed.';
COMMENT ON COLUMN tendril.log_ends.archived IS 'Whether all of the log is archived.';

COMMENT ON TABLE tendril.log_backlog IS 'Which provisions of earlier releases still have to be entered in log_ends.';
COMMENT ON COLUMN tendril.log_backlog.only_row IS 'Always true: there is one row.';
COMMENT ON COLUMN tendril.log_backlog.next_number IS 'Number of the next provision to enter.';
COMMENT ON COLUMN tendril.log_backlog.last_number IS 'Number of the last provision to enter.';

-- Blobs

COMMENT ON TABLE tendril.blobs IS 'Sealed plans, states, results and uploads, stored in parts.';
COMMENT ON COLUMN tendril.blobs.id IS 'The blob. The uploader chooses the id of an upload.';
COMMENT ON COLUMN tendril.blobs.kind IS 'plan, state, result or upload.';
COMMENT ON COLUMN tendril.blobs.cluster_id IS 'The cluster.';
COMMENT ON COLUMN tendril.blobs.workspace_id IS 'The workspace of a state; NULL for other kinds.';
COMMENT ON COLUMN tendril.blobs.provision_id IS 'The provision of a plan or result; NULL for other kinds.';
COMMENT ON COLUMN tendril.blobs.number IS 'Version of a state; 0 for other kinds.';
COMMENT ON COLUMN tendril.blobs.claim_id IS 'The claim that stored it; NULL: a person uploaded it.';
COMMENT ON COLUMN tendril.blobs.created_by IS 'User who uploaded it; NULL: a claim stored it.';
COMMENT ON COLUMN tendril.blobs.made_for IS 'The provision of that claim, which may be deleted before a state is.';
COMMENT ON COLUMN tendril.blobs.digest IS 'SHA-256 of all bytes, in hexadecimal; of a plan, the digest that people approve.';
COMMENT ON COLUMN tendril.blobs.meta IS 'What the agent says about it; of a state, serial.';
COMMENT ON COLUMN tendril.blobs.parts IS 'Number of parts, of 512 KiB at most each.';
COMMENT ON COLUMN tendril.blobs.bytes IS 'Bytes stored so far.';
COMMENT ON COLUMN tendril.blobs.complete_at IS 'When the last part was stored; NULL: parts are missing and nobody can read it.';
COMMENT ON COLUMN tendril.blobs.expires_at IS 'When it is deleted; NULL: it does not expire.';
COMMENT ON COLUMN tendril.blobs.created_at IS 'When its first part was stored.';

COMMENT ON TABLE tendril.blob_parts IS 'The bytes of blobs.';
COMMENT ON COLUMN tendril.blob_parts.blob_id IS 'The blob.';
COMMENT ON COLUMN tendril.blob_parts.part IS 'Number of the part, from 1.';
COMMENT ON COLUMN tendril.blob_parts.data IS 'Its bytes, sealed by the agent or the uploader.';

-- Webhooks

COMMENT ON TABLE public.webhooks IS 'Where notifications are sent.';
COMMENT ON COLUMN public.webhooks.id IS 'The webhook.';
COMMENT ON COLUMN public.webhooks.org_id IS 'The organisation.';
COMMENT ON COLUMN public.webhooks.name IS 'Name, 1 to 100 characters, unique in the organisation.';
COMMENT ON COLUMN public.webhooks.kind IS 'generic (signed JSON) or slack.';
COMMENT ON COLUMN public.webhooks.host IS 'Host of its URL; the rest of the URL is secret.';
COMMENT ON COLUMN public.webhooks.events IS 'Events that it receives: awaiting_approval, success, failure, cancelled, drift.';
COMMENT ON COLUMN public.webhooks.cluster_id IS 'Only events of this cluster; NULL: of all clusters.';
COMMENT ON COLUMN public.webhooks.workspace IS 'Only events of workspaces whose name matches, * is any text; NULL: of all workspaces.';
COMMENT ON COLUMN public.webhooks.enabled IS 'Whether events are delivered.';
COMMENT ON COLUMN public.webhooks.disabled_why IS 'failing or gone, where the control plane disabled it; NULL: a person did.';
COMMENT ON COLUMN public.webhooks.failing_since IS 'Since when deliveries fail; NULL: the last one arrived.';
COMMENT ON COLUMN public.webhooks.generation IS 'Generation of the signing secret, from 1; a new one ends the previous one.';
COMMENT ON COLUMN public.webhooks.created_by IS 'User who created it; NULL: the control plane.';
COMMENT ON COLUMN public.webhooks.created_at IS 'When it was created.';

COMMENT ON TABLE tendril.webhook_urls IS 'URLs of webhooks, sealed with a key that only the control plane has.';
COMMENT ON COLUMN tendril.webhook_urls.webhook_id IS 'The webhook.';
COMMENT ON COLUMN tendril.webhook_urls.sealed IS 'The sealed URL.';

COMMENT ON TABLE public.webhook_deliveries IS 'Messages to webhooks, each with its delivery attempts.';
COMMENT ON COLUMN public.webhook_deliveries.id IS 'The delivery; it stays the same when it is sent again.';
COMMENT ON COLUMN public.webhook_deliveries.org_id IS 'The organisation.';
COMMENT ON COLUMN public.webhook_deliveries.webhook_id IS 'The webhook.';
COMMENT ON COLUMN public.webhook_deliveries.event IS 'The event; test for a test message.';
COMMENT ON COLUMN public.webhook_deliveries.provision_id IS 'The provision; NULL: the event is not about one.';
COMMENT ON COLUMN public.webhook_deliveries.payload IS 'The message.';
COMMENT ON COLUMN public.webhook_deliveries.status IS 'waiting, delivered or failed.';
COMMENT ON COLUMN public.webhook_deliveries.attempts IS 'Attempts, oldest first: a list of {at, code, duration_ms, error}.';
COMMENT ON COLUMN public.webhook_deliveries.created_at IS 'When the event happened.';
COMMENT ON COLUMN public.webhook_deliveries.next_at IS 'When the next attempt is due; NULL: delivered or given up.';
COMMENT ON COLUMN public.webhook_deliveries.taken_by IS 'Which sender has it; NULL: none.';
COMMENT ON COLUMN public.webhook_deliveries.finished_at IS 'When it was delivered or given up.';

-- Housekeeping

COMMENT ON TABLE tendril.locks IS 'Rows to lock, one for each job that only one session may do at a time.';
COMMENT ON COLUMN tendril.locks.name IS 'The job.';

COMMENT ON TABLE tendril.expiry IS 'Where the deletion of old rows goes on.';
COMMENT ON COLUMN tendril.expiry.name IS 'The pass: agents, claims, provisions or log_usage.';
COMMENT ON COLUMN tendril.expiry.next_number IS 'Number of the next provision to check; what is kept is checked again in the next pass.';
COMMENT ON COLUMN tendril.expiry.began_at IS 'When this pass began.';

COMMENT ON TABLE tendril.function_files IS 'Which function files this database has.';
COMMENT ON COLUMN tendril.function_files.file IS 'Name of the file in sql/functions, without .sql.';
COMMENT ON COLUMN tendril.function_files.digest IS 'SHA-256 of its text, in hexadecimal.';
COMMENT ON COLUMN tendril.function_files.functions IS 'Its functions, as schema.name.';
COMMENT ON COLUMN tendril.function_files.triggers IS 'Its triggers: the statement of each, by "NAME ON TABLE".';

COMMENT ON TABLE tendril.schema_migrations IS 'Which migrations this database has.';
COMMENT ON COLUMN tendril.schema_migrations.id IS 'Grows with time.';
COMMENT ON COLUMN tendril.schema_migrations.version_id IS 'Number of the migration.';
COMMENT ON COLUMN tendril.schema_migrations.is_applied IS 'Whether it was applied.';
COMMENT ON COLUMN tendril.schema_migrations.tstamp IS 'When it was applied.';

DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['org_members', 'people', 'resources', 'template_inspections', 'template_pins', 'template_tags', 'cluster_pins'] LOOP
    EXECUTE format('COMMENT ON COLUMN public.%I.row_id IS %L', v_table, 'Random id by which logical replication names a deleted row.');
  END LOOP;
END $$;

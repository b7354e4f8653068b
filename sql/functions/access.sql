-- Grants. Everything is revoked first, and each grant is made here by name. Applied last, and
-- again whenever another file of functions has changed.

SELECT tendril.deny_all(
  ARRAY['agents', 'audit_events', 'cluster_overview', 'cluster_pins', 'clusters', 'invitations', 'machine_events', 'machines', 'org_members', 'orgs', 'people', 'pool_images', 'pool_nodes', 'pool_quotas', 'pools', 'provision_events', 'provision_inputs',
        'provision_log_archives', 'provision_logs', 'provision_progress', 'provision_stages', 'provisions', 'reservations', 'resources',
        'template_inspections', 'template_pins', 'template_tags', 'templates', 'webhook_deliveries', 'webhooks', 'workspaces']
  || ARRAY(SELECT split_part(u.name, '.', 2) FROM tendril.function_files, unnest(functions) u (name) WHERE u.name LIKE 'public.%'));

-- Members read, under row-level security.
GRANT SELECT ON public.agents, public.audit_events, public.cluster_overview, public.cluster_pins, public.clusters, public.invitations, public.machine_events, public.machines, public.org_members,
  public.orgs, public.people, public.pool_images, public.pool_nodes, public.pool_quotas, public.pools, public.provision_events, public.provision_inputs, public.provision_log_archives, public.provision_logs, public.provision_progress,
  public.provision_stages, public.provisions, public.reservations, public.resources, public.template_inspections, public.template_pins, public.template_tags,
  public.templates, public.webhook_deliveries, public.webhooks, public.workspaces
  TO authenticated, service_role;

-- A deploy is an INSERT of these columns; all else is changed by functions. With
-- the id, a client may repeat a deploy after a lost reply without making two.
GRANT INSERT (id, cluster_id, config_snapshot, priority, operation) ON public.provisions TO authenticated, service_role;
GRANT INSERT (requested_by) ON public.provisions TO service_role;

-- Agents: through PostgREST as anon, directly as a login role in tendril_agent.
GRANT EXECUTE ON FUNCTION
  public.agent_heartbeat,
  public.agent_key,
  public.append_provision_log,
  public.check_agent,
  public.claim_trace,
  public.delegate_claim,
  public.fail_orphaned_provisions,
  public.fetch_next_provision,
  public.get_blob,
  public.insert_provision_log,
  public.lease_checks,
  public.pending_provisions,
  public.put_blob,
  public.register_agent,
  public.release_machines,
  public.renew_claim,
  public.report_checks,
  public.report_pools,
  public.reserve_machines,
  public.rotate_agent_key,
  public.share_identity,
  public.shared_identity,
  public.update_provision_status
  TO anon, tendril_agent;

-- Agents that are to join by key, which the gateway verifies.
GRANT EXECUTE ON FUNCTION
  public.join_status,
  public.request_join,
  public.trusted_keys
  TO anon;

-- People, and back ends of the platform that act for them.
GRANT EXECUTE ON FUNCTION
  public.approve_join,
  public.approve_provision,
  public.assign_input,
  public.cancel_provision,
  public.change_webhook,
  public.cluster_tokens,
  public.comment_provision,
  public.create_cluster,
  public.create_join_token,
  public.create_webhook,
  public.delete_planned_machine,
  public.delete_pool_quota,
  public.fetch_result,
  public.free_place,
  public.give_input,
  public.inspect_template,
  public.invite_member,
  public.join_request,
  public.lock_workspace,
  public.pause_cluster,
  public.pin_template,
  public.plan_machines,
  public.pool_loads,
  public.pool_quota_uses,
  public.preview_machines,
  public.provision_agents,
  public.provision_log,
  public.rebind_workspace,
  public.refuse_join,
  public.reject_provision,
  public.release_workspace,
  public.remove_member,
  public.remove_template,
  public.remove_webhook,
  public.retry_provision,
  public.revoke_cluster_token,
  public.revoke_invitation,
  public.rotate_cluster_token,
  public.save_template,
  public.send_webhook,
  public.set_cluster_key,
  public.set_cluster_policy,
  public.set_drift_schedule,
  public.set_member,
  public.set_pool_image,
  public.set_pool_quota,
  public.set_pool_template,
  public.state_versions,
  public.trust_issuer,
  public.trusted_issuers,
  public.unlock_workspace,
  public.untrust_issuer,
  public.upload_blob,
  public.why_waiting
  TO authenticated, service_role;

-- People only: these are about who asks.
GRANT EXECUTE ON FUNCTION
  public.accept_invitation,
  public.begin_request,
  public.create_api_token,
  public.decline_invitation,
  public.finish_request,
  public.own_credentials,
  public.own_invitations,
  public.revoke_credential,
  public.sign_out_everywhere
  TO authenticated;

-- Who may found an organisation is for the platform to say.
GRANT EXECUTE ON FUNCTION public.create_org TO service_role;

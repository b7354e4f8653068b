-- service_role is the key of a platform's own back end. Supabase's bypasses RLS,
-- and so acts as the control plane does: it reads all, deploys for whom it says,
-- and calls what people call; rows it changes no more than they do. On plain
-- PostgreSQL it bypasses nothing: a person without a name, who sees no row and is
-- a stranger everywhere.
GRANT SELECT ON public.orgs, public.org_members, public.clusters, public.agents, public.audit_events, public.templates,
  public.template_pins, public.workspaces, public.provisions, public.provision_progress, public.provision_logs,
  public.provision_events, public.resources, public.cluster_overview TO service_role;
GRANT INSERT (id, cluster_id, config_snapshot, priority, requested_by) ON public.provisions TO service_role;

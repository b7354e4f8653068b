-- Who may do what. The migrations before have taken everything away from
-- everybody; each grant stands here by name.

-- Members read; a deploy is an INSERT of these columns; all else is changed by
-- functions.
GRANT SELECT ON public.orgs, public.org_members, public.clusters, public.agents, public.audit_events, public.templates,
  public.template_pins, public.workspaces, public.provisions, public.provision_progress, public.provision_logs,
  public.provision_events, public.resources, public.cluster_overview TO authenticated;
-- With the id, a client may repeat a deploy after a lost reply without making two.
GRANT INSERT (id, cluster_id, config_snapshot, priority) ON public.provisions TO authenticated;

DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['org_members', 'clusters', 'agents', 'audit_events', 'templates', 'template_pins', 'workspaces',
                                 'provisions', 'provision_progress', 'provision_logs', 'provision_events', 'resources'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    -- The sub-select makes it one look-up per statement, not per row.
    EXECUTE format('CREATE POLICY members_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''viewer''))::uuid[]))', v_table);
  END LOOP;
END $$;
ALTER TABLE public.orgs ENABLE ROW LEVEL SECURITY;
CREATE POLICY members_read ON public.orgs FOR SELECT TO authenticated
  USING (id = ANY ((SELECT tendril.orgs_with_role('viewer'))::uuid[]));

-- accept_deploy() has checked already and filled in the org; this is the second lock.
CREATE POLICY operators_deploy ON public.provisions FOR INSERT TO authenticated
  WITH CHECK (org_id = ANY ((SELECT tendril.orgs_with_role('operator'))::uuid[]));

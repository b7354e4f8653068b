-- What a DELETE publishes. No policy can be asked about a row that is gone, so Realtime
-- tells every subscriber its replica identity, where a publication covers all tables. The
-- keys of these tables name people, repositories and resources: they get a random one to
-- be known by instead. (REPLICA IDENTITY NOTHING would have each DELETE fail there.)

SELECT tendril.lock_tables('public.org_members, public.people, public.resources, public.template_inspections, public.template_pins, public.template_tags, public.cluster_pins');

DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['org_members', 'people', 'resources', 'template_inspections', 'template_pins', 'template_tags', 'cluster_pins'] LOOP
    EXECUTE format('ALTER TABLE public.%I ADD COLUMN row_id uuid NOT NULL DEFAULT gen_random_uuid()', v_table);
    EXECUTE format('CREATE UNIQUE INDEX %I ON public.%I (row_id)', v_table || '_row_id', v_table);
    EXECUTE format('ALTER TABLE public.%I REPLICA IDENTITY USING INDEX %I', v_table, v_table || '_row_id');
    EXECUTE format('COMMENT ON COLUMN public.%I.row_id IS %L', v_table, 'Random: what logical replication names a deleted row by.');
  END LOOP;
END $$;

-- Machines: what people see of the machines that templates have made. Credentials never come
-- here: they are in the sealed state alone.
CREATE TABLE public.machines (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id       uuid NOT NULL,
  workspace_id uuid NOT NULL REFERENCES public.workspaces ON DELETE CASCADE,
  name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  status       text NOT NULL CHECK (status IN ('creating', 'running', 'stopped', 'failed', 'unknown', 'gone')),
  address      text,
  pool         text CHECK (length(pool) <= 600),
  node         text CHECK (length(node) <= 600),
  external_id  text CHECK (length(external_id) <= 600),
  ip_addresses text[] NOT NULL DEFAULT '{}'
               CHECK (CASE WHEN coalesce(array_ndims(ip_addresses), 1) = 1 THEN array_position(ip_addresses, NULL) IS NULL ELSE false END
                      AND octet_length(array_to_string(ip_addresses, ' ')) <= 4096),
  ssh_port     int CHECK (ssh_port BETWEEN 1 AND 65535),
  ssh_user     text CHECK (length(ssh_user) <= 600),
  image        text CHECK (length(image) <= 600),
  cores        int CHECK (cores > 0),
  memory_mib   int CHECK (memory_mib > 0),
  disk_gib     int CHECK (disk_gib > 0),
  labels       jsonb NOT NULL DEFAULT '{}' 
               CHECK (jsonb_typeof(labels) = 'object' AND octet_length(labels::text) <= 16384 AND NOT jsonb_path_exists(labels, '$.* ? (@.type() != "string")')),
  owner        uuid,
  provision_id uuid REFERENCES public.provisions ON DELETE SET NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- A machine's identity is its name within its workspace.
  UNIQUE (workspace_id, name)
);
CREATE INDEX machines_org       ON public.machines (org_id, name, id);
CREATE INDEX machines_provision ON public.machines (provision_id);
CREATE INDEX machines_gone      ON public.machines (updated_at) WHERE status = 'gone';

CREATE TABLE public.machine_events (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  org_id       uuid NOT NULL,
  machine_id   uuid NOT NULL REFERENCES public.machines ON DELETE CASCADE,
  status       text NOT NULL,
  -- No foreign key: a run that was deleted says nothing more, and the history stays.
  provision_id uuid,
  at           timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX machine_events_machine ON public.machine_events (machine_id, id);

COMMENT ON TABLE public.machines IS 'The machines that runs have made, as they were last reported. One that is gone stays for a while.';
COMMENT ON COLUMN public.machines.id IS 'Random id.';
COMMENT ON COLUMN public.machines.org_id IS 'The organisation.';
COMMENT ON COLUMN public.machines.workspace_id IS 'The workspace.';
COMMENT ON COLUMN public.machines.name IS 'Its name, which is its identity within the workspace; at most 200 characters.';
COMMENT ON COLUMN public.machines.status IS 'creating, running, stopped, failed, unknown (nobody could ask) or gone.';
COMMENT ON COLUMN public.machines.address IS 'Address in the state, which targets name it by; NULL: the template says its machines in an output.';
COMMENT ON COLUMN public.machines.pool IS 'The pool that it belongs to.';
COMMENT ON COLUMN public.machines.node IS 'The host that it runs on.';
COMMENT ON COLUMN public.machines.external_id IS 'Its id in its cloud.';
COMMENT ON COLUMN public.machines.ip_addresses IS 'Its IP addresses, the one to reach it at first.';
COMMENT ON COLUMN public.machines.ssh_port IS 'Port of its SSH server; NULL: 22.';
COMMENT ON COLUMN public.machines.ssh_user IS 'Who to sign in as; NULL: not said.';
COMMENT ON COLUMN public.machines.image IS 'What it was made from.';
COMMENT ON COLUMN public.machines.cores IS 'Its processor cores.';
COMMENT ON COLUMN public.machines.memory_mib IS 'Its memory in MiB.';
COMMENT ON COLUMN public.machines.disk_gib IS 'Its disk in GiB.';
COMMENT ON COLUMN public.machines.labels IS 'Its labels: an object of texts, at most 16 KiB.';
COMMENT ON COLUMN public.machines.owner IS 'Who asked for the run that made it; NULL: nobody in particular.';
COMMENT ON COLUMN public.machines.provision_id IS 'The provision that last changed this row.';
COMMENT ON COLUMN public.machines.created_at IS 'When it was first reported; again after it was gone.';
COMMENT ON COLUMN public.machines.updated_at IS 'When this row last changed.';
COMMENT ON TABLE public.machine_events IS 'What each machine has been: a row for each change of its status.';
COMMENT ON COLUMN public.machine_events.id IS 'Grows with time.';
COMMENT ON COLUMN public.machine_events.org_id IS 'The organisation.';
COMMENT ON COLUMN public.machine_events.machine_id IS 'The machine.';
COMMENT ON COLUMN public.machine_events.status IS 'What it was from then on.';
COMMENT ON COLUMN public.machine_events.provision_id IS 'The provision that reported it; it may be deleted since.';
COMMENT ON COLUMN public.machine_events.at IS 'When.';

ALTER TABLE tendril.settings ADD COLUMN machine_delete_after interval DEFAULT '90 days' CHECK (machine_delete_after >= '1 day');
COMMENT ON COLUMN tendril.settings.machine_delete_after IS 'How long a machine that is gone stays listed; NULL: for ever.';

-- after the functions
DO $$
DECLARE
  v_table text;
BEGIN
  FOREACH v_table IN ARRAY ARRAY['machines', 'machine_events'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', v_table);
    EXECUTE format('CREATE POLICY members_read ON public.%I FOR SELECT TO authenticated
                    USING (org_id = ANY ((SELECT tendril.orgs_with_role(''viewer''))::uuid[]))', v_table);
  END LOOP;
END $$;

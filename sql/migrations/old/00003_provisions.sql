-- The queue and what belongs to a run: workspaces, provisions, claims, logs.

CREATE TABLE public.templates (
  id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id      uuid NOT NULL REFERENCES public.orgs,
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  repo        text NOT NULL,
  path        text NOT NULL DEFAULT '',
  version     text NOT NULL, -- the one offered first
  description text NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  UNIQUE (org_id, name)
);

-- What a tag meant when it was first used. A tag that moved is refused.
CREATE TABLE public.template_pins (
  org_id        uuid NOT NULL REFERENCES public.orgs,
  repo          text NOT NULL, -- as tendril.plain_repo() has it
  version       text NOT NULL,
  commit        text NOT NULL CHECK (commit ~ '^[0-9a-f]{40}$'),
  variables     jsonb,         -- what this version declares, once inspected
  first_used_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (org_id, repo, version)
);

-- One Terraform state object.
CREATE TABLE public.workspaces (
  id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  org_id        uuid NOT NULL REFERENCES public.orgs,
  cluster_id    uuid NOT NULL REFERENCES public.clusters,
  name          text NOT NULL,
  -- Bound at first use; another template there is refused.
  repo          text,
  path          text,
  -- At most one claim runs here. One that lost its lease during apply holds the
  -- workspace: Terraform may still be at work.
  running_claim uuid,
  held_by_claim uuid,
  -- A provision that awaits approval, or is approved and not yet applied.
  reserved_by   uuid,
  locked_at     timestamptz,
  locked_by     uuid,
  lock_reason   text,
  -- The only agent instance that can run it, where its state is a local file.
  home_instance uuid,
  -- The provision to run next: kept here so that a claim reads one short index
  -- however long the queue of one busy workspace is.
  head_id       uuid,
  head_priority smallint,
  head_number   bigint,
  created_at    timestamptz NOT NULL DEFAULT now(),
  UNIQUE (cluster_id, name),
  CHECK ((locked_at IS NULL) = (lock_reason IS NULL)),
  CHECK ((head_id IS NULL) = (head_number IS NULL) AND (head_id IS NULL) = (head_priority IS NULL))
) WITH (fillfactor = 70);

CREATE INDEX workspaces_runnable ON public.workspaces (cluster_id, head_priority DESC, head_number)
  WHERE head_id IS NOT NULL AND running_claim IS NULL AND held_by_claim IS NULL AND locked_at IS NULL;

CREATE TABLE public.provisions (
  id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  number              bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  -- The workspace implies both; SQL sets them, and a foreign key would lock
  -- one shared row at every insert and claim.
  org_id              uuid NOT NULL,
  cluster_id          uuid NOT NULL,
  workspace_id        uuid NOT NULL REFERENCES public.workspaces,
  operation           text NOT NULL DEFAULT 'apply' CHECK (operation IN ('plan', 'apply', 'destroy', 'refresh')),
  config_snapshot     jsonb NOT NULL,
  status              text NOT NULL DEFAULT 'QUEUED'
                      CHECK (status IN ('QUEUED', 'PROCESSING', 'AWAITING_APPROVAL', 'SUCCESS', 'FAILED', 'CANCELLED')),
  priority            smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
  resolved_commit     text,
  engine              text,
  engine_version      text,
  plan_summary        jsonb,
  outputs             jsonb,
  error_code          text,
  error_message       text,
  requested_by        uuid,
  cancel_requested_at timestamptz,
  cancel_requested_by uuid,
  created_at          timestamptz NOT NULL DEFAULT now(),
  started_at          timestamptz,
  finished_at         timestamptz
) WITH (fillfactor = 80);

CREATE INDEX provisions_queue ON public.provisions (workspace_id, priority DESC, number) WHERE status = 'QUEUED';
CREATE INDEX provisions_workspace ON public.provisions (workspace_id, number);
CREATE INDEX provisions_org ON public.provisions (org_id, number);

-- One agent's hold on one provision. The agent chooses the id, so that a claim
-- repeated after a lost reply is the same claim; every write is fenced by it.
CREATE TABLE tendril.claims (
  id                  uuid PRIMARY KEY,
  number              bigint GENERATED ALWAYS AS IDENTITY,
  provision_id        uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  workspace_id        uuid NOT NULL REFERENCES public.workspaces,
  cluster_id          uuid NOT NULL,
  instance_id         uuid NOT NULL,
  boot_id             uuid NOT NULL,
  host                text NOT NULL,
  -- running: its agent has it. lost: the lease ran out, the agent may still
  -- report. ended: settled, nothing more is accepted but late lines.
  state               text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'lost', 'ended')),
  lease_until         timestamptz NOT NULL,
  next_chunk          bigint NOT NULL DEFAULT 1,
  last_report         bigint NOT NULL DEFAULT 0, -- the number of the newest report stored
  stage               text,
  apply_begun_at      timestamptz,
  cancel_requested_at timestamptz,
  created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at            timestamptz
) WITH (fillfactor = 70);

CREATE INDEX claims_provision ON tendril.claims (provision_id, number);
CREATE INDEX claims_workspace ON tendril.claims (workspace_id, number);
CREATE INDEX claims_leases    ON tendril.claims (lease_until) WHERE state = 'running';
-- Whatever else goes wrong: never two at once on a workspace.
CREATE UNIQUE INDEX claims_one_running ON tendril.claims (workspace_id) WHERE state = 'running';
CREATE INDEX claims_instance  ON tendril.claims (instance_id) WHERE state <> 'ended';

ALTER TABLE public.workspaces
  ADD FOREIGN KEY (running_claim) REFERENCES tendril.claims,
  ADD FOREIGN KEY (held_by_claim) REFERENCES tendril.claims,
  ADD FOREIGN KEY (reserved_by)   REFERENCES public.provisions;

-- Small and often written, so that provisions stays quiet.
CREATE TABLE public.provision_progress (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  stage        text NOT NULL CHECK (stage IN ('checkout', 'validate', 'engine', 'init', 'plan', 'approval', 'apply', 'outputs', 'done')),
  percent      smallint CHECK (percent BETWEEN 0 AND 100),
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- seq counts a provision's rows 1, 2, 3, … without a gap, over all its claims.
CREATE TABLE public.provision_logs (
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  seq          bigint NOT NULL,
  org_id       uuid NOT NULL,
  stream_type  text NOT NULL CHECK (stream_type IN ('STDOUT', 'STDERR', 'SYSTEM')),
  log_chunk    text NOT NULL,
  emitted_at   timestamptz NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (provision_id, seq)
);

-- Where a provision's log stands. Only its holder gives out seq.
CREATE TABLE tendril.log_heads (
  provision_id uuid PRIMARY KEY REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  next_seq     bigint NOT NULL DEFAULT 1,
  bytes        bigint NOT NULL DEFAULT 0,
  notified_at  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

CREATE TABLE public.provision_events (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  provision_id uuid NOT NULL REFERENCES public.provisions ON DELETE CASCADE,
  org_id       uuid NOT NULL,
  kind         text NOT NULL,
  at           timestamptz NOT NULL,
  detail       jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX provision_events_provision ON public.provision_events (provision_id, id);

-- What exists now. Values that a provider marks sensitive never come here.
CREATE TABLE public.resources (
  workspace_id uuid NOT NULL REFERENCES public.workspaces ON DELETE CASCADE,
  address      text NOT NULL,
  org_id       uuid NOT NULL,
  type         text NOT NULL,
  provider     text,
  external_id  text,
  ip_addresses text[] NOT NULL DEFAULT '{}',
  status       text,
  provision_id uuid REFERENCES public.provisions ON DELETE SET NULL,
  updated_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (workspace_id, address)
);

-- When something last beat here: heartbeats and reaping timers stamp it. An old
-- stamp means that the database itself was away, and that leases ran out
-- through no fault of their agents.
CREATE TABLE tendril.pulse (
  only_row        boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  stamped_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  reap_not_before timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 20);
INSERT INTO tendril.pulse DEFAULT VALUES;

-- What is too large for a report and must outlive the agent that made it: the
-- plan that awaits approval, the states of a workspace, and what people bring to
-- a state operation and take away from one. All of it is sealed before it comes
-- here; the database keeps it, and who may put and get what is decided here.

SELECT tendril.lock_tables('tendril.settings, public.workspaces, public.provisions');

ALTER TABLE tendril.settings
  -- How many states of a workspace are kept, the newest included.
  ADD COLUMN state_history int NOT NULL DEFAULT 20 CHECK (state_history > 0),
  -- How long what a state operation has read waits for who asked for it.
  ADD COLUMN result_kept interval NOT NULL DEFAULT '7 days' CHECK (result_kept > interval '0'),
  -- How long what a person has brought waits for its operation, and what was
  -- put in part for the rest.
  ADD COLUMN upload_kept interval NOT NULL DEFAULT '1 day' CHECK (upload_kept > interval '0'),
  -- How many of a cluster's uploads may wait, of up to 64 MiB each.
  ADD COLUMN upload_limit int NOT NULL DEFAULT 20 CHECK (upload_limit > 0);

-- The newest managed state: its version here, the serial it has within, since
-- when, and the provision whose run wrote it. NULL: the state is elsewhere.
ALTER TABLE public.workspaces
  ADD COLUMN state_version   bigint,
  ADD COLUMN state_serial    bigint,
  ADD COLUMN state_at        timestamptz,
  ADD COLUMN state_provision uuid;

CREATE TABLE tendril.blobs (
  id           uuid PRIMARY KEY DEFAULT gen_random_uuid(), -- of an upload: who brought it chose it
  kind         text NOT NULL CHECK (kind IN ('plan', 'state', 'result', 'upload')),
  cluster_id   uuid NOT NULL,
  workspace_id uuid REFERENCES public.workspaces,
  provision_id uuid REFERENCES public.provisions ON DELETE CASCADE,
  number       bigint NOT NULL DEFAULT 0, -- the version of a state
  -- Who made it: a claim, or a person.
  claim_id     uuid,
  created_by   uuid,
  -- The provision of that claim, which may be deleted before a state is.
  made_for     uuid,
  digest       text,
  meta         jsonb NOT NULL DEFAULT '{}',
  parts        int NOT NULL CHECK (parts > 0),
  bytes        bigint NOT NULL DEFAULT 0,
  -- NULL while parts are missing: nobody gets it.
  complete_at  timestamptz,
  -- When it goes by itself. NULL: something else ends it.
  expires_at   timestamptz,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK ((kind = 'state') = (workspace_id IS NOT NULL)),
  CHECK ((kind IN ('plan', 'result')) = (provision_id IS NOT NULL))
);
-- One plan and one result for a provision, one state of a version.
CREATE UNIQUE INDEX blobs_of_provision ON tendril.blobs (provision_id, kind) WHERE provision_id IS NOT NULL;
CREATE UNIQUE INDEX blobs_of_workspace ON tendril.blobs (workspace_id, number) WHERE workspace_id IS NOT NULL;
CREATE INDEX blobs_uploads ON tendril.blobs (cluster_id) WHERE kind = 'upload';
CREATE INDEX blobs_expiring ON tendril.blobs (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE tendril.blob_parts (
  blob_id uuid NOT NULL REFERENCES tendril.blobs ON DELETE CASCADE,
  part    int NOT NULL CHECK (part > 0),
  data    bytea NOT NULL,
  PRIMARY KEY (blob_id, part)
);
-- It is sealed: trying to compress it is in vain.
ALTER TABLE tendril.blob_parts ALTER COLUMN data SET STORAGE EXTERNAL;

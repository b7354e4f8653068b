-- What an API token may do less than its person, and runs that such a token asked for.
ALTER TABLE tendril.credentials ADD COLUMN powers jsonb, ADD COLUMN audience text, ADD COLUMN client text;
ALTER TABLE tendril.credentials DROP CONSTRAINT credentials_kind_check,
  ADD CONSTRAINT credentials_kind_check CHECK (kind IN ('session', 'api_token', 'link', 'cli_code', 'oauth_code'));
COMMENT ON COLUMN tendril.credentials.powers IS 'What an API token may do: {change, may_apply, workspaces, destroy, approve, calls_per_minute, runs_per_hour}; NULL: all that its person may.';
COMMENT ON COLUMN tendril.credentials.audience IS 'URL of the resource that an API token is for, such as https://trellis.example/mcp; NULL: the whole REST API.';
COMMENT ON COLUMN tendril.credentials.client IS 'OAuth client that an API token or its code was given to; NULL: none.';

ALTER TABLE public.provisions ADD COLUMN asked_with uuid, ADD COLUMN least_approval text;
-- Not valid, or each of the runs that are there would be read.
ALTER TABLE public.provisions ADD CONSTRAINT provisions_least_approval_check CHECK (least_approval IN ('destructive', 'always')) NOT VALID;
DROP TRIGGER IF EXISTS provisions_guard_identity ON public.provisions; -- the functions make it again, for these columns too
COMMENT ON COLUMN public.provisions.asked_with IS 'The API token with which it was asked for, where that one has powers of its own; NULL: a person, or a token that may do all that its person may.';
COMMENT ON COLUMN public.provisions.least_approval IS 'When its plan must be approved whatever other rules say, because of how it was asked for: destructive or always; NULL: by the other rules alone.';

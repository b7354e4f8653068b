-- The last answer to a request with an idempotency key, where that is a refusal or comes later than
-- the request is carried out.
ALTER TABLE tendril.requests ADD COLUMN status int CHECK (status BETWEEN 400 AND 599), ADD COLUMN settled boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN tendril.requests.status IS 'HTTP status where the answer is a problem; NULL: it is none.';
COMMENT ON COLUMN tendril.requests.settled IS 'Whether the answer is the last one; false: the request has begun, and its sender waits for what becomes of it.';

-- The server that a run provisions.
ALTER TABLE public.provisions ADD COLUMN server jsonb;
COMMENT ON COLUMN public.provisions.server IS 'The bare-metal server that a deploy has made its machine of: {pool, node, id}, as far as they are known; NULL: none yet, or none.';
UPDATE public.provisions p
SET server = jsonb_strip_nulls(jsonb_build_object('pool', m.pool, 'node', m.node, 'id', substring(m.external_id FROM '^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$')))
FROM public.machines m JOIN public.pools o ON o.name = m.pool AND o.kind = 'ironic'
WHERE m.node IS NOT NULL AND m.status <> 'planned' AND o.cluster_id = p.cluster_id AND p.workspace_id = m.workspace_id AND p.operation = 'apply'
  AND NOT EXISTS (SELECT FROM public.provisions q WHERE q.workspace_id = p.workspace_id AND q.number > p.number AND q.operation = 'apply');

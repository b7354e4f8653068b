-- The trace that a run belongs to.
ALTER TABLE public.provisions ADD COLUMN traceparent text;
COMMENT ON COLUMN public.provisions.traceparent IS 'The span that the request for the run was in, as W3C Trace Context writes it; NULL: none was given.';

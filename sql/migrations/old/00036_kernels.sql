-- Which run of its machine's kernel an agent is on: who comes with the same host and
-- another run knows that the agent of the run before is dead.
SELECT tendril.lock_tables('public.agents');

ALTER TABLE public.agents ADD COLUMN kernel text CHECK (length(kernel) <= 100);

-- The functions of documented.json: of the signatures that PostgREST's
-- documentation and its specifications tell of, under names of our own.
CREATE FUNCTION public.slots_together(large integer, small integer) RETURNS integer LANGUAGE sql AS 'SELECT large + small';
CREATE FUNCTION public.one_more(counts int[]) RETURNS int[] LANGUAGE sql AS 'SELECT array_agg(n + 1) FROM unnest(counts) n';
CREATE FUNCTION public.greeting_for(name text) RETURNS text LANGUAGE sql AS $$SELECT 'Welcome, ' || name$$;
CREATE FUNCTION public.engine_of_choice() RETURNS text LANGUAGE sql AS $$SELECT 'opentofu'$$;
CREATE FUNCTION public.timeouts_together(plan int DEFAULT 5, apply int DEFAULT 20, destroy int DEFAULT 10) RETURNS int LANGUAGE sql AS 'SELECT plan + apply + destroy';
CREATE FUNCTION public.tells_nothing() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.not_known_yet() RETURNS int LANGUAGE sql AS 'SELECT NULL::int';
CREATE FUNCTION public.open_ports() RETURNS int[] LANGUAGE sql AS $$SELECT '{22,443,8080}'::int[]$$;
CREATE FUNCTION public.each_port() RETURNS SETOF int LANGUAGE sql AS $$SELECT unnest('{22,443,8080}'::int[])$$;
CREATE FUNCTION public.attempts_after(seen bigint, latest bigint) RETURNS TABLE (attempt bigint) LANGUAGE sql AS 'SELECT generate_series(seen + 1, latest)';
CREATE FUNCTION public.none_waiting() RETURNS SETOF int LANGUAGE sql AS 'SELECT 1 WHERE false';
CREATE FUNCTION public.labels_of_one() RETURNS TABLE (label text, content text) LANGUAGE sql AS $$SELECT 'team', 'core'$$;
CREATE FUNCTION public.one_summary(OUT tags json, OUT serial int, OUT owner text) LANGUAGE sql AS $$SELECT '{"team": "core", "tier": 2}'::json, 41, 'ada'$$;
CREATE FUNCTION public.kind_of_json(value json) RETURNS text LANGUAGE sql AS 'SELECT json_typeof(value)';
CREATE FUNCTION public.every_kind(load double precision, label varchar, locked boolean, since date, zones text[], slots integer, settings json, sizes jsonb)
RETURNS json LANGUAGE sql AS $$
  SELECT json_build_object('load', load, 'label', label, 'locked', locked, 'since', since, 'zones', zones, 'slots', slots, 'settings', settings, 'sizes', sizes)
$$;
CREATE FUNCTION public.always_refuses() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'The gate is shut.' USING DETAIL = 'It opens at nine.', HINT = 'Come back then.'; END $$;
CREATE FUNCTION public.raises_status() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE SQLSTATE 'PT402' USING MESSAGE = 'The runs of this month are used up', DETAIL = '40 of 40', HINT = 'Wait for the next month'; END $$;
CREATE FUNCTION public.raises_no_status() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE SQLSTATE 'PT4NO' USING MESSAGE = 'There is no such status'; END $$;
CREATE FUNCTION public.asserts() RETURNS void LANGUAGE plpgsql AS $$
BEGIN ASSERT false; END $$;

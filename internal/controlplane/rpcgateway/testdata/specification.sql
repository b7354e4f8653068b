-- Functions for specification_test.go, besides those of documented.sql: one
-- for each kind of signature that its cases are about, with our own names and values.
CREATE TYPE public.stage AS ENUM ('plan', 'apply');
CREATE DOMAIN public.slots AS int CHECK (VALUE BETWEEN 1 AND 64);
CREATE TYPE public.place AS (rack int, unit int);
CREATE DOMAIN public.own_place AS public.place;
CREATE SCHEMA hidden;
CREATE TYPE hidden.place_high AS (rack int, unit int, floor int);

CREATE TABLE public.regions (id int, name text, provider_id int);
INSERT INTO public.regions SELECT n, 'region ' || n, 7 FROM generate_series(1, 4) n;
GRANT SELECT, UPDATE ON public.regions TO anon;
CREATE FUNCTION public.region_by_id(id int) RETURNS SETOF public.regions LANGUAGE sql STABLE AS 'SELECT * FROM public.regions r WHERE r.id = $1';
CREATE FUNCTION public.all_regions() RETURNS SETOF public.regions LANGUAGE sql STABLE AS 'SELECT * FROM public.regions ORDER BY id';
CREATE FUNCTION public.regions_below(id int) RETURNS SETOF public.regions LANGUAGE sql STABLE AS 'SELECT * FROM public.regions r WHERE r.id < $1';
CREATE FUNCTION public.rename_regions(lowest int, highest int, name text) RETURNS SETOF public.regions LANGUAGE sql
AS 'UPDATE public.regions r SET name = $3 WHERE r.id BETWEEN lowest AND highest RETURNING r.*';
CREATE FUNCTION public.one_region(id int) RETURNS public.regions LANGUAGE sql STABLE AS 'SELECT r FROM public.regions r WHERE r.id = $1';

CREATE FUNCTION public.of_several() RETURNS SETOF int LANGUAGE sql AS 'SELECT generate_series(7, 9)';
CREATE FUNCTION public.of_several(large int, small int) RETURNS int LANGUAGE sql AS 'SELECT large + small';
CREATE FUNCTION public.of_several(large text, small text, unit text) RETURNS text LANGUAGE sql AS 'SELECT large || small || unit';
CREATE FUNCTION public.of_two_types(which int) RETURNS int LANGUAGE sql AS 'SELECT which';
CREATE FUNCTION public.of_two_types(which text, serial int DEFAULT 0) RETURNS text LANGUAGE sql AS 'SELECT which';
CREATE FUNCTION public.with_default(note text DEFAULT 'none') RETURNS SETOF public.regions LANGUAGE sql AS 'SELECT * FROM public.regions WHERE id = 3';
CREATE FUNCTION public.with_default(needed int, OUT given int) LANGUAGE sql AS 'SELECT needed';
CREATE FUNCTION public.with_default(region int, note text DEFAULT 'none') RETURNS SETOF public.regions LANGUAGE sql AS 'SELECT * FROM public.regions WHERE id = region';
CREATE FUNCTION public.with_default(INOUT region int, needed int, OUT given int) LANGUAGE sql AS 'SELECT region, needed';
CREATE FUNCTION public.place_of_several(rack int, unit int) RETURNS public.place LANGUAGE sql AS 'SELECT (rack, unit)::public.place';
CREATE FUNCTION public.place_of_several(rack json) RETURNS json LANGUAGE sql AS 'SELECT rack';
CREATE FUNCTION public."mixedCase"("owner" text, "workSpace" text, "ID" text) RETURNS json LANGUAGE sql
AS $$SELECT json_build_object('owner', "owner", 'workSpace', "workSpace", 'ID', "ID")$$;

CREATE FUNCTION public.stage_called(name text) RETURNS public.stage LANGUAGE sql AS 'SELECT name::public.stage';
CREATE FUNCTION public.as_slots(number int) RETURNS public.slots LANGUAGE sql AS 'SELECT number::public.slots';
CREATE FUNCTION public.port_range(first int, beyond int) RETURNS int4range LANGUAGE sql AS 'SELECT int4range(first, beyond)';
CREATE FUNCTION public.one_of_each() RETURNS TABLE (region text, stage public.stage, slots public.slots, ports int4range) LANGUAGE sql
AS $$SELECT 'north', 'plan'::public.stage, 6::public.slots, int4range(8000, 8010)$$;
CREATE FUNCTION public.where_it_is() RETURNS public.place LANGUAGE sql AS 'SELECT (3, 12)::public.place';
CREATE FUNCTION public.own_place_of_it() RETURNS public.own_place LANGUAGE sql AS 'SELECT (3, 12)::public.own_place';
-- plpgsql looks the type's schema up when it runs, as role anon
CREATE FUNCTION public.where_it_hides() RETURNS hidden.place_high LANGUAGE plpgsql AS 'BEGIN RETURN (3, 12, -1)::hidden.place_high; END';
CREATE FUNCTION public.a_record() RETURNS record LANGUAGE sql AS 'SELECT * FROM public.regions WHERE id = 1';
CREATE FUNCTION public.record_of(id int, name text) RETURNS record LANGUAGE sql AS 'SELECT * FROM public.regions r WHERE r.id = $1 AND r.name LIKE $2';
CREATE FUNCTION public.some_records() RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.regions WHERE id < 3';
CREATE FUNCTION public.records_of(id int, name text) RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.regions r WHERE r.id >= $1 AND r.name LIKE $2';
CREATE FUNCTION public.engine() RETURNS TABLE (engine text, major int) LANGUAGE sql AS $$SELECT 'opentofu', 2$$;
CREATE FUNCTION public.one_out(serial int, OUT next int) LANGUAGE sql AS 'SELECT serial + 1';
CREATE FUNCTION public.json_out(tier int, team text, OUT tags json) LANGUAGE sql AS $$SELECT json_build_object('tier', tier, 'team', team)$$;
CREATE FUNCTION public.one_inout(INOUT serial int) LANGUAGE sql AS 'SELECT serial + 1';
CREATE FUNCTION public.three_inout(INOUT serial int, INOUT owner text, INOUT locked boolean DEFAULT true) LANGUAGE sql AS 'SELECT serial, owner, locked';
CREATE FUNCTION public.one_column() RETURNS TABLE (label text) LANGUAGE sql AS $$SELECT 'team'$$;
CREATE FUNCTION public.words(VARIADIC said text[] DEFAULT '{}') RETURNS text[] LANGUAGE sql AS 'SELECT said';
CREATE FUNCTION public.greet_all(name text, VARIADIC others text[]) RETURNS text LANGUAGE sql AS $$SELECT 'Welcome, ' || name$$;
CREATE FUNCTION public.char_seen(code char(4), codes char(4)[]) RETURNS TABLE (code text, codes text[]) LANGUAGE sql AS 'SELECT $1, $2::text[]';
CREATE FUNCTION public.bit_seen(mask bit(6), masks bit(6)[]) RETURNS TABLE (mask text, masks text[]) LANGUAGE sql AS 'SELECT $1::text, $2::text[]';
CREATE TABLE public.fixed (code char(5), mask bit(5));
GRANT INSERT ON public.fixed TO anon;
CREATE FUNCTION public.char_kept(code char) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (code) VALUES ($1)';
CREATE FUNCTION public.bit_kept(mask bit) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (mask) VALUES ($1)';
CREATE FUNCTION public.after_stage(stage public.stage) RETURNS text LANGUAGE sql AS $$SELECT stage || ', then'$$;
CREATE FUNCTION public.price_seen(price money) RETURNS numeric LANGUAGE sql AS 'SELECT price::numeric';

CREATE FUNCTION public.out_of_order() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'out of order'; END$$;
CREATE SEQUENCE public.turns_seq;
GRANT ALL ON SEQUENCE public.turns_seq TO anon;
CREATE FUNCTION public.turns_from(number int) RETURNS void LANGUAGE sql AS $$SELECT setval('public.turns_seq', number, false)$$;
CREATE FUNCTION public.next_turn() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('public.turns_seq')$$;
CREATE FUNCTION public.greet_the_few(name text) RETURNS text LANGUAGE sql AS $$SELECT 'Welcome, ' || name$$;
CREATE TABLE public.seats (number int UNIQUE DEFERRABLE INITIALLY IMMEDIATE);
INSERT INTO public.seats VALUES (5);
GRANT INSERT ON public.seats TO anon;
CREATE FUNCTION public.take_seat(late boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF late THEN SET CONSTRAINTS ALL DEFERRED; END IF;
  INSERT INTO public.seats VALUES (5);
END$$;
CREATE FUNCTION public.out_of_temp() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE SQLSTATE '53400' USING MESSAGE = 'temporary file size exceeds temp_file_limit (1kB)'; END$$;
CREATE FUNCTION public.raise_pgrst(message text, detail text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF detail IS NULL THEN RAISE SQLSTATE 'PGRST' USING MESSAGE = message; END IF;
  RAISE SQLSTATE 'PGRST' USING MESSAGE = message, DETAIL = detail;
END$$;

CREATE FUNCTION public.nameless_json(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_text(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_xml(xml) RETURNS xml LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_bytes(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_int(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_several(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_several(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_several(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_several() RETURNS int LANGUAGE sql AS 'SELECT 9';
CREATE FUNCTION public.nameless_several(large int, small int) RETURNS int LANGUAGE sql AS 'SELECT large + small';
CREATE FUNCTION public.nameless_json_twice(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_json_twice(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';

CREATE FUNCTION public.setting_value(setting text, field text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(setting, true), '')::json ->> field$$;
CREATE FUNCTION public.setting_value(setting text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(setting, true), '')$$;
CREATE FUNCTION public.number_with_headers(serial int) RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"X-Region": "north"}]', true); SELECT serial$$;
CREATE FUNCTION public.headers_malformed() RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '{"X-Region": "north"}', true); SELECT 1$$;
CREATE FUNCTION public.two_cookies() RETURNS void LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"Set-Cookie": "taste=sweet"}, {"Set-Cookie": "other=sour"}]', true)$$;
CREATE FUNCTION public.sends_403() RETURNS json LANGUAGE sql AS $$SELECT set_config('response.status', '403', true); SELECT '{"message": "not for you"}'::json$$;
CREATE FUNCTION public.sends_no_status() RETURNS text LANGUAGE sql AS $$SELECT set_config('response.status', 'well', true)$$;
CREATE FUNCTION public.hail() RETURNS text LANGUAGE sql AS $$SELECT 'Hail'$$;
CREATE FUNCTION public.hail_twice() RETURNS SETOF text LANGUAGE sql AS $$SELECT 'Hail' FROM generate_series(1, 2)$$;
CREATE FUNCTION public.some_xml() RETURNS xml LANGUAGE sql AS $$SELECT '<note/>'::xml$$;

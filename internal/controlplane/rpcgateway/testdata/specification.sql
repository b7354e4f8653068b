-- Functions for specification_test.go, besides those of documented.sql: with our
-- own names and values: one for each kind of signature that its cases are about.
CREATE TYPE public.stage AS ENUM ('plan', ', then');
CREATE DOMAIN public.slots AS int CHECK (VALUE BETWEEN 1 AND 10);
CREATE TYPE public.place AS (x int, y int);
CREATE DOMAIN public.own_place AS public.place;
CREATE SCHEMA hidden;
CREATE TYPE hidden.place_high AS (x int, y int, z int);

CREATE TABLE public.projects (id int, name text, client_id int);
INSERT INTO public.projects SELECT n, 'project ' || n, 1 FROM generate_series(1, 5) n;
GRANT SELECT, UPDATE ON public.projects TO anon;
CREATE FUNCTION public.project_by_id(id int) RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects p WHERE p.id = $1';
CREATE FUNCTION public.all_projects() RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects ORDER BY id';
CREATE FUNCTION public.projects_below(id int) RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects p WHERE p.id < $1';
CREATE FUNCTION public.rename_projects(first_id int, last_id int, name text) RETURNS SETOF public.projects LANGUAGE sql
AS 'UPDATE public.projects p SET name = $3 WHERE p.id BETWEEN first_id AND last_id RETURNING p.*';
CREATE FUNCTION public.one_project(id int) RETURNS public.projects LANGUAGE sql STABLE AS 'SELECT p FROM public.projects p WHERE p.id = $1';

CREATE FUNCTION public.of_several() RETURNS SETOF int LANGUAGE sql AS 'SELECT generate_series(1, 3)';
CREATE FUNCTION public.of_several(a int, b int) RETURNS int LANGUAGE sql AS 'SELECT a + b';
CREATE FUNCTION public.of_several(a text, b text, c text) RETURNS text LANGUAGE sql AS 'SELECT a || b || c';
CREATE FUNCTION public.of_two_types(arg int) RETURNS int LANGUAGE sql AS 'SELECT arg';
CREATE FUNCTION public.of_two_types(arg text, num int DEFAULT 0) RETURNS text LANGUAGE sql AS 'SELECT arg';
CREATE FUNCTION public.with_default(optional text DEFAULT 'x') RETURNS SETOF public.projects LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = 2';
CREATE FUNCTION public.with_default(needed int, OUT val int) LANGUAGE sql AS 'SELECT needed';
CREATE FUNCTION public.with_default(a int, optional text DEFAULT 'x') RETURNS SETOF public.projects LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = a';
CREATE FUNCTION public.with_default(INOUT a int, needed int, OUT val int) LANGUAGE sql AS 'SELECT a, needed';
CREATE FUNCTION public.ret_point_of_several(x int, y int) RETURNS public.place LANGUAGE sql AS 'SELECT (x, y)::public.place';
CREATE FUNCTION public.ret_point_of_several(x json) RETURNS json LANGUAGE sql AS 'SELECT x';
CREATE FUNCTION public."mixedCase"("user" text, "workSpace" text, "ID" text) RETURNS json LANGUAGE sql
AS $$SELECT json_build_object('user', "user", 'workSpace', "workSpace", 'ID', "ID")$$;

CREATE FUNCTION public.ret_enum(val text) RETURNS public.stage LANGUAGE sql AS 'SELECT val::public.stage';
CREATE FUNCTION public.ret_domain(val int) RETURNS public.slots LANGUAGE sql AS 'SELECT val::public.slots';
CREATE FUNCTION public.ret_range(low int, up int) RETURNS int4range LANGUAGE sql AS 'SELECT int4range(low, up)';
CREATE FUNCTION public.ret_scalars() RETURNS TABLE (a text, b public.stage, c public.slots, d int4range) LANGUAGE sql
AS $$SELECT 'scalars', 'plan'::public.stage, 1::public.slots, int4range(10, 20)$$;
CREATE FUNCTION public.ret_place() RETURNS public.place LANGUAGE sql AS 'SELECT (10, 5)::public.place';
CREATE FUNCTION public.ret_own_place() RETURNS public.own_place LANGUAGE sql AS 'SELECT (10, 5)::public.own_place';
-- plpgsql looks the type's schema up when it runs, as role anon
CREATE FUNCTION public.ret_place_high() RETURNS hidden.place_high LANGUAGE plpgsql AS 'BEGIN RETURN (7, -3, 4)::hidden.place_high; END';
CREATE FUNCTION public.a_record() RETURNS record LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = 1';
CREATE FUNCTION public.record_of(id int, name text) RETURNS record LANGUAGE sql AS 'SELECT * FROM public.projects p WHERE p.id = $1 AND p.name LIKE $2';
CREATE FUNCTION public.some_records() RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id < 3';
CREATE FUNCTION public.records_of(id int, name text) RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.projects p WHERE p.id >= $1 AND p.name LIKE $2';
CREATE FUNCTION public.test() RETURNS TABLE (test text, value int) LANGUAGE sql AS $$SELECT 'hello', 1$$;
CREATE FUNCTION public.one_out(num int, OUT next int) LANGUAGE sql AS 'SELECT num + 1';
CREATE FUNCTION public.json_out(a int, b text, OUT my_json json) LANGUAGE sql AS $$SELECT json_build_object('a', a, 'b', b)$$;
CREATE FUNCTION public.one_inout(INOUT num int) LANGUAGE sql AS 'SELECT num + 1';
CREATE FUNCTION public.three_inout(INOUT num int, INOUT str text, INOUT b boolean DEFAULT true) LANGUAGE sql AS 'SELECT num, str, b';
CREATE FUNCTION public.one_column() RETURNS TABLE (a text) LANGUAGE sql AS $$SELECT 'A'$$;
CREATE FUNCTION public.words(VARIADIC v text[] DEFAULT '{}') RETURNS text[] LANGUAGE sql AS 'SELECT v';
CREATE FUNCTION public.greet_all(name text, VARIADIC v text[]) RETURNS text LANGUAGE sql AS $$SELECT 'Hello, ' || name$$;
CREATE FUNCTION public.char_seen(char_ char(4), char_arr char(4)[]) RETURNS TABLE (char_ text, char_arr text[]) LANGUAGE sql AS 'SELECT $1, $2::text[]';
CREATE FUNCTION public.bit_seen(bit_ bit(6), bit_arr bit(6)[]) RETURNS TABLE (bit_ text, bit_arr text[]) LANGUAGE sql AS 'SELECT $1::text, $2::text[]';
CREATE TABLE public.fixed (c char(5), b bit(5));
GRANT INSERT ON public.fixed TO anon;
CREATE FUNCTION public.char_kept(char_ char) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (c) VALUES ($1)';
CREATE FUNCTION public.bit_kept(bit_ bit) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (b) VALUES ($1)';
CREATE FUNCTION public.stage_argument(stage public.stage) RETURNS text LANGUAGE sql AS $$SELECT stage || ', then'$$;
CREATE FUNCTION public.money_argument(money money) RETURNS numeric LANGUAGE sql AS 'SELECT money::numeric';

CREATE FUNCTION public.problem() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'out of order'; END$$;
CREATE SEQUENCE public.turns_seq;
GRANT ALL ON SEQUENCE public.turns_seq TO anon;
CREATE FUNCTION public.reset_sequence(name text, value int) RETURNS void LANGUAGE sql AS $$SELECT setval(name::regclass, value, false)$$;
CREATE FUNCTION public.next_turn() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('public.turns_seq')$$;
CREATE FUNCTION public.greet_the_few(name text) RETURNS text LANGUAGE sql AS $$SELECT 'Hello, ' || name$$;
CREATE TABLE public.deferrable (col int UNIQUE DEFERRABLE INITIALLY IMMEDIATE);
INSERT INTO public.deferrable VALUES (1);
GRANT INSERT ON public.deferrable TO anon;
CREATE FUNCTION public.break_constraint(deferred boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF deferred THEN SET CONSTRAINTS ALL DEFERRED; END IF;
  INSERT INTO public.deferrable VALUES (1);
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
CREATE FUNCTION public.nameless_several() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION public.nameless_several(x int, y int) RETURNS int LANGUAGE sql AS 'SELECT x + y';
CREATE FUNCTION public.nameless_json_twice(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.nameless_json_twice(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';

CREATE FUNCTION public.setting_value(prefix text, name text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(prefix, true), '')::json ->> name$$;
CREATE FUNCTION public.setting_value(name text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(name, true), '')$$;
CREATE FUNCTION public.number_with_headers(num int) RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"X-Test": "key1=val1"}]', true); SELECT num$$;
CREATE FUNCTION public.headers_malformed() RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '{"X-Test": "invalid"}', true); SELECT 1$$;
CREATE FUNCTION public.two_cookies() RETURNS void LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"Set-Cookie": "a=1"}, {"Set-Cookie": "b=2"}]', true)$$;
CREATE FUNCTION public.sends_403() RETURNS json LANGUAGE sql AS $$SELECT set_config('response.status', '403', true); SELECT '{"message": "not for you"}'::json$$;
CREATE FUNCTION public.sends_no_status() RETURNS text LANGUAGE sql AS $$SELECT set_config('response.status', 'bad', true)$$;
CREATE FUNCTION public.hail() RETURNS text LANGUAGE sql AS $$SELECT 'Hail'$$;
CREATE FUNCTION public.hail_twice() RETURNS SETOF text LANGUAGE sql AS $$SELECT 'Hail' FROM generate_series(1, 2)$$;
CREATE FUNCTION public.some_xml() RETURNS xml LANGUAGE sql AS $$SELECT '<note/>'::xml$$;

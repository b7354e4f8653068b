-- Functions for specification_test.go, besides those of documented.sql: by name and signature
-- those that PostgREST's specification of RPC calls is about, in words of our own.
CREATE TYPE public.enum_menagerie AS ENUM ('foo', 'bar');
CREATE DOMAIN public.one_to_ten AS int CHECK (VALUE BETWEEN 1 AND 10);
CREATE TYPE public.point_2d AS (x int, y int);
CREATE DOMAIN public.composite_domain AS public.point_2d;
CREATE SCHEMA hidden;
CREATE TYPE hidden.point_3d AS (x int, y int, z int);

CREATE TABLE public.projects (id int, name text, client_id int);
INSERT INTO public.projects SELECT n, 'project ' || n, 1 FROM generate_series(1, 5) n;
GRANT SELECT, UPDATE ON public.projects TO anon;
CREATE FUNCTION public.getproject(id int) RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects p WHERE p.id = $1';
CREATE FUNCTION public.getallprojects() RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects ORDER BY id';
CREATE FUNCTION public.get_projects_below(id int) RETURNS SETOF public.projects LANGUAGE sql STABLE AS 'SELECT * FROM public.projects p WHERE p.id < $1';
CREATE FUNCTION public.setprojects(id_l int, id_h int, name text) RETURNS SETOF public.projects LANGUAGE sql
AS 'UPDATE public.projects p SET name = $3 WHERE p.id BETWEEN id_l AND id_h RETURNING p.*';
CREATE FUNCTION public.single_article(id int) RETURNS public.projects LANGUAGE sql STABLE AS 'SELECT p FROM public.projects p WHERE p.id = $1';

CREATE FUNCTION public.overloaded() RETURNS SETOF int LANGUAGE sql AS 'SELECT generate_series(1, 3)';
CREATE FUNCTION public.overloaded(a int, b int) RETURNS int LANGUAGE sql AS 'SELECT a + b';
CREATE FUNCTION public.overloaded(a text, b text, c text) RETURNS text LANGUAGE sql AS 'SELECT a || b || c';
CREATE FUNCTION public.overloaded_same_args(arg int) RETURNS int LANGUAGE sql AS 'SELECT arg';
CREATE FUNCTION public.overloaded_same_args(arg text, num int DEFAULT 0) RETURNS text LANGUAGE sql AS 'SELECT arg';
CREATE FUNCTION public.overloaded_default(opt_param text DEFAULT 'x') RETURNS SETOF public.projects LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = 2';
CREATE FUNCTION public.overloaded_default(must_param int, OUT val int) LANGUAGE sql AS 'SELECT must_param';
CREATE FUNCTION public.overloaded_default(a int, opt_param text DEFAULT 'x') RETURNS SETOF public.projects LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = a';
CREATE FUNCTION public.overloaded_default(INOUT a int, must_param int, OUT val int) LANGUAGE sql AS 'SELECT a, must_param';
CREATE FUNCTION public.ret_point_overloaded(x int, y int) RETURNS public.point_2d LANGUAGE sql AS 'SELECT (x, y)::public.point_2d';
CREATE FUNCTION public.ret_point_overloaded(x json) RETURNS json LANGUAGE sql AS 'SELECT x';
CREATE FUNCTION public."quotedFunction"("user" text, "fullName" text, "SSN" text) RETURNS json LANGUAGE sql
AS $$SELECT json_build_object('user', "user", 'fullName', "fullName", 'SSN', "SSN")$$;

CREATE FUNCTION public.ret_enum(val text) RETURNS public.enum_menagerie LANGUAGE sql AS 'SELECT val::public.enum_menagerie';
CREATE FUNCTION public.ret_domain(val int) RETURNS public.one_to_ten LANGUAGE sql AS 'SELECT val::public.one_to_ten';
CREATE FUNCTION public.ret_range(low int, up int) RETURNS int4range LANGUAGE sql AS 'SELECT int4range(low, up)';
CREATE FUNCTION public.ret_scalars() RETURNS TABLE (a text, b public.enum_menagerie, c public.one_to_ten, d int4range) LANGUAGE sql
AS $$SELECT 'scalars', 'foo'::public.enum_menagerie, 1::public.one_to_ten, int4range(10, 20)$$;
CREATE FUNCTION public.ret_point_2d() RETURNS public.point_2d LANGUAGE sql AS 'SELECT (10, 5)::public.point_2d';
CREATE FUNCTION public.ret_composite_domain() RETURNS public.composite_domain LANGUAGE sql AS 'SELECT (10, 5)::public.composite_domain';
-- plpgsql looks the type's schema up when it runs, as role anon
CREATE FUNCTION public.ret_point_3d() RETURNS hidden.point_3d LANGUAGE plpgsql AS 'BEGIN RETURN (7, -3, 4)::hidden.point_3d; END';
CREATE FUNCTION public.returns_record() RETURNS record LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id = 1';
CREATE FUNCTION public.returns_record_params(id int, name text) RETURNS record LANGUAGE sql AS 'SELECT * FROM public.projects p WHERE p.id = $1 AND p.name LIKE $2';
CREATE FUNCTION public.returns_setof_record() RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.projects WHERE id < 3';
CREATE FUNCTION public.returns_setof_record_params(id int, name text) RETURNS SETOF record LANGUAGE sql AS 'SELECT * FROM public.projects p WHERE p.id >= $1 AND p.name LIKE $2';
CREATE FUNCTION public.test() RETURNS TABLE (test text, value int) LANGUAGE sql AS $$SELECT 'hello', 1$$;
CREATE FUNCTION public.single_out_param(num int, OUT num_plus_one int) LANGUAGE sql AS 'SELECT num + 1';
CREATE FUNCTION public.single_json_out_param(a int, b text, OUT my_json json) LANGUAGE sql AS $$SELECT json_build_object('a', a, 'b', b)$$;
CREATE FUNCTION public.single_inout_param(INOUT num int) LANGUAGE sql AS 'SELECT num + 1';
CREATE FUNCTION public.many_inout_params(INOUT num int, INOUT str text, INOUT b boolean DEFAULT true) LANGUAGE sql AS 'SELECT num, str, b';
CREATE FUNCTION public.single_column_table_return() RETURNS TABLE (a text) LANGUAGE sql AS $$SELECT 'A'$$;
CREATE FUNCTION public.variadic_param(VARIADIC v text[] DEFAULT '{}') RETURNS text[] LANGUAGE sql AS 'SELECT v';
CREATE FUNCTION public.sayhello_variadic(name text, VARIADIC v text[]) RETURNS text LANGUAGE sql AS $$SELECT 'Hello, ' || name$$;
CREATE FUNCTION public.char_param_select(char_ char(4), char_arr char(4)[]) RETURNS TABLE (char_ text, char_arr text[]) LANGUAGE sql AS 'SELECT $1, $2::text[]';
CREATE FUNCTION public.bit_param_select(bit_ bit(6), bit_arr bit(6)[]) RETURNS TABLE (bit_ text, bit_arr text[]) LANGUAGE sql AS 'SELECT $1::text, $2::text[]';
CREATE TABLE public.fixed (c char(5), b bit(5));
GRANT INSERT ON public.fixed TO anon;
CREATE FUNCTION public.char_param_insert(char_ char) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (c) VALUES ($1)';
CREATE FUNCTION public.bit_param_insert(bit_ bit) RETURNS void LANGUAGE sql AS 'INSERT INTO public.fixed (b) VALUES ($1)';
CREATE FUNCTION public.test_arg(my_arg public.enum_menagerie) RETURNS text LANGUAGE sql AS $$SELECT my_arg || 'bar'$$;
CREATE FUNCTION public.money_argument(money money) RETURNS numeric LANGUAGE sql AS 'SELECT money::numeric';

CREATE FUNCTION public.problem() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'bad thing'; END$$;
CREATE SEQUENCE public.callcounter_count;
GRANT ALL ON SEQUENCE public.callcounter_count TO anon;
CREATE FUNCTION public.reset_sequence(name text, value int) RETURNS void LANGUAGE sql AS $$SELECT setval(name::regclass, value, false)$$;
CREATE FUNCTION public.callcounter() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('public.callcounter_count')$$;
CREATE FUNCTION public.privileged_hello(name text) RETURNS text LANGUAGE sql AS $$SELECT 'Hello, ' || name$$;
CREATE TABLE public.deferrable (col int UNIQUE DEFERRABLE INITIALLY IMMEDIATE);
INSERT INTO public.deferrable VALUES (1);
GRANT INSERT ON public.deferrable TO anon;
CREATE FUNCTION public.raise_constraint(deferred boolean DEFAULT false) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF deferred THEN SET CONSTRAINTS ALL DEFERRED; END IF;
  INSERT INTO public.deferrable VALUES (1);
END$$;
CREATE FUNCTION public.temp_file_limit() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE SQLSTATE '53400' USING MESSAGE = 'temporary file size exceeds temp_file_limit (1kB)'; END$$;
CREATE FUNCTION public.raise_sqlstate(message text, detail text DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF detail IS NULL THEN RAISE SQLSTATE 'PGRST' USING MESSAGE = message; END IF;
  RAISE SQLSTATE 'PGRST' USING MESSAGE = message, DETAIL = detail;
END$$;

CREATE FUNCTION public.unnamed_json_param(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.unnamed_text_param(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.unnamed_xml_param(xml) RETURNS xml LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.unnamed_bytea_param(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.unnamed_int_param(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.overloaded_unnamed_param(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.overloaded_unnamed_param(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.overloaded_unnamed_param(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.overloaded_unnamed_param() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION public.overloaded_unnamed_param(x int, y int) RETURNS int LANGUAGE sql AS 'SELECT x + y';
CREATE FUNCTION public.overloaded_unnamed_json_jsonb_param(json) RETURNS json LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION public.overloaded_unnamed_json_jsonb_param(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';

CREATE FUNCTION public.get_guc_value(prefix text, name text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(prefix, true), '')::json ->> name$$;
CREATE FUNCTION public.get_guc_value(name text) RETURNS text LANGUAGE sql AS $$SELECT nullif(current_setting(name, true), '')$$;
CREATE FUNCTION public.get_int_and_guc_headers(num int) RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"X-Test": "key1=val1"}]', true); SELECT num$$;
CREATE FUNCTION public.bad_guc_headers() RETURNS int LANGUAGE sql AS $$SELECT set_config('response.headers', '{"X-Test": "invalid"}', true); SELECT 1$$;
CREATE FUNCTION public.set_cookie_twice() RETURNS void LANGUAGE sql AS $$SELECT set_config('response.headers', '[{"Set-Cookie": "a=1"}, {"Set-Cookie": "b=2"}]', true)$$;
CREATE FUNCTION public.send_body_status_403() RETURNS json LANGUAGE sql AS $$SELECT set_config('response.status', '403', true); SELECT '{"message": "invalid user or password"}'::json$$;
CREATE FUNCTION public.send_bad_status() RETURNS text LANGUAGE sql AS $$SELECT set_config('response.status', 'bad', true)$$;
CREATE FUNCTION public.welcome() RETURNS text LANGUAGE sql AS $$SELECT 'Welcome'$$;
CREATE FUNCTION public.welcome_twice() RETURNS SETOF text LANGUAGE sql AS $$SELECT 'Welcome' FROM generate_series(1, 2)$$;
CREATE FUNCTION public.return_scalar_xml() RETURNS xml LANGUAGE sql AS $$SELECT '<my-xml-tag/>'::xml$$;

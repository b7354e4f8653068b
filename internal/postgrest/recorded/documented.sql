-- The functions of documented.json: by name and signature those of PostgREST's
-- documentation and of its specifications, in words of our own.
CREATE FUNCTION public.add_them(a integer, b integer) RETURNS integer LANGUAGE sql AS 'SELECT a + b';
CREATE FUNCTION public.plus_one(arr int[]) RETURNS int[] LANGUAGE sql AS 'SELECT array_agg(n + 1) FROM unnest(arr) n';
CREATE FUNCTION public.sayhello(name text) RETURNS text LANGUAGE sql AS $$SELECT 'Hello, ' || name$$;
CREATE FUNCTION public.noparamsproc() RETURNS text LANGUAGE sql AS $$SELECT 'Return value of no parameters procedure.'$$;
CREATE FUNCTION public.three_defaults(a int DEFAULT 1, b int DEFAULT 2, c int DEFAULT 3) RETURNS int LANGUAGE sql AS 'SELECT a + b + c';
CREATE FUNCTION public.ret_void() RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION public.ret_null() RETURNS int LANGUAGE sql AS 'SELECT NULL::int';
CREATE FUNCTION public.ret_array() RETURNS int[] LANGUAGE sql AS $$SELECT '{1,2,3}'::int[]$$;
CREATE FUNCTION public.ret_setof_integers() RETURNS SETOF int LANGUAGE sql AS 'SELECT generate_series(1, 3)';
CREATE FUNCTION public.getitemrange(min bigint, max bigint) RETURNS TABLE (id bigint) LANGUAGE sql AS 'SELECT generate_series(min + 1, max)';
CREATE FUNCTION public.test_empty_rowset() RETURNS SETOF int LANGUAGE sql AS 'SELECT 1 WHERE false';
CREATE FUNCTION public.multi_column_table_return() RETURNS TABLE (a text, b text) LANGUAGE sql AS $$SELECT 'A', 'B'$$;
CREATE FUNCTION public.many_out_params(OUT my_json json, OUT num int, OUT str text) LANGUAGE sql AS $$SELECT '{"a": 1, "b": "two"}'::json, 3, 'four'$$;
CREATE FUNCTION public.json_argument(arg json) RETURNS text LANGUAGE sql AS 'SELECT json_typeof(arg)';
CREATE FUNCTION public.varied_arguments(double double precision, "varchar" varchar, "boolean" boolean, date date, arr text[], "integer" integer, "json" json, jsonb jsonb)
RETURNS json LANGUAGE sql AS $$
  SELECT json_build_object('double', double, 'varchar', "varchar", 'boolean', "boolean", 'date', date, 'arr', arr, 'integer', "integer", 'json', "json", 'jsonb', jsonb)
$$;
CREATE FUNCTION public.just_fail() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'I refuse!' USING DETAIL = 'Pretty simple', HINT = 'There is nothing you can do.'; END $$;
CREATE FUNCTION public.raise_pt402() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE SQLSTATE 'PT402' USING MESSAGE = 'Payment Required', DETAIL = 'Quota exceeded', HINT = 'Upgrade your plan'; END $$;
CREATE FUNCTION public.raise_bad_pt() RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE SQLSTATE 'PT40A' USING MESSAGE = 'Wrong'; END $$;
CREATE FUNCTION public.assert() RETURNS void LANGUAGE plpgsql AS $$
BEGIN ASSERT false; END $$;
